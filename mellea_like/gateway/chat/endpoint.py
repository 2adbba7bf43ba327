"""The endpoints, which turn an admitted request into the bytes of an answer."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.gateway.chat.request import model_of
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.refusal import Refusal, encoded
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from mellea_like.gateway.chat.answer import Answer
    from mellea_like.gateway.chat.caller_checks import Workers
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.chat.served_model import PreparedRequest, ReplyOutcome, ServedModel
    from mellea_like.gateway.config.gateway_config import StreamingConfig
    from mellea_like.gateway.fields import FieldRules
    from mellea_like.gateway.metrics import Metrics


@dataclass(eq=False)
class Endpoint:
    """The ASGI application of one route. Models that join ``models`` later are served, too."""

    read: Callable[[Mapping[str, Any], FieldRules], ChatRequest]
    """Parses a request, or raises a `Refusal`."""
    answer: Callable[[Any, str, PreparedRequest], Answer]
    """Begins the answer to a request."""
    models: Mapping[str, ServedModel]
    metrics: Metrics
    streaming: StreamingConfig
    workers: Workers

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        caller = CURRENT.get()
        name = model_of(caller.body)
        model = self.models.get(name) if caller.limits.allows(name) else None
        if model is None:
            raise unknown_model()
        request = self.read(caller.body, model.rules)

        async def work() -> None:
            try:
                prepared = await model.prepare(request, caller, self.workers)
                answer = self.answer(request, name, prepared)
                if request.stream:
                    await self._stream(answer, send)
                else:
                    await self._whole(answer, send)
            except Refusal as refusal:
                refusal.rename(request.name_of)
                raise

        await while_here(receive, work)

    async def _whole(self, answer: Answer, send: Send) -> None:
        answer.take(await self._sample(answer))
        body = _as_json(answer.whole()).encode("ascii")
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        await _start(send, {**fields, **answer.headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, answer: Answer, send: Send) -> None:
        events = EventStream(send)

        async def show(text: str) -> None:
            await events.write(answer.piece(text))

        # A text's log-probabilities are known only when it is complete.
        live = answer.prepared.n == 1 and not answer.request.logprobs
        live = live and self.streaming.release == "prefix"
        async with events.kept_alive(self.streaming.keep_alive):
            outcomes = await self._sample(answer, show if live else None)
        try:
            answer.take(outcomes)
            events.headers |= answer.headers
            # It is sent in one piece, because each piece costs a system call.
            end = answer.rest()
        except Refusal as refusal:
            if not events.begun:
                raise
            refusal.rename(answer.request.name_of)
            end = answer.failed(refusal)
        await events.write(end, more=False)

    async def _sample(
        self, answer: Answer, show: Callable[[str], Awaitable[object]] | None = None
    ) -> Sequence[ReplyOutcome]:
        """Sample the replies, and count the calls. ``show`` gets a reply's text as it arrives."""
        name, prepared = answer.model, answer.prepared
        try:
            outcomes = await prepared.sample() if show is None else [await prepared.stream(show)]
        except BaseException:
            self.metrics.sampled(name, "cancelled")
            raise
        for outcome in outcomes:
            result = outcome.result
            draws = None if result is None else len(result.slices)
            self.metrics.sampled(name, outcome.status, draws)
            if result is not None:
                CURRENT.get().sampling_ids.append(result.sampling_id)
        return outcomes


def unknown_model() -> Refusal:
    """Return the refusal for a model that doesn't exist, or that the caller's key may not use."""
    message = "there is no such model, or this key may not use it: see /v1/models"
    return Refusal(404, message, code="model_not_found", param="model")


async def _start(send: Send, fields: Mapping[str, str]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": encoded(fields)})


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _as_json(data: Mapping[str, Any]) -> str:
    """Return data as JSON in ASCII, with null for numbers that JSON lacks, such as NaN."""
    try:
        return _encode(data)
    except ValueError:
        return _encode(json.loads(json.dumps(data), parse_constant=lambda _: None))


def event_of(data: Mapping[str, Any], kind: str | None = None) -> bytes:
    """Format a server-sent event. ``kind`` isn't escaped, so it must be a fixed event name."""
    # JSON in ASCII has no line breaks of any kind, so nothing in it can end or begin an event.
    text = _as_json(data)
    named = "" if kind is None else f"event: {kind}\n"
    return f"{named}data: {text}\n\n".encode("ascii")


class EventStream:
    """Sends the events of one answer. The HTTP status is sent together with the first event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._writing = anyio.Lock(fast_acquire=True)
        self._heard = 0.0
        self.begun = False
        self.headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            # This asks proxies such as nginx not to buffer.
            "x-accel-buffering": "no",
        }

    @asynccontextmanager
    async def kept_alive(self, seconds: float) -> AsyncGenerator[None]:
        """While the block runs, send a comment whenever nothing was sent for ``seconds``."""
        there = anyio.Event()
        self._heard = anyio.current_time()

        async def comment() -> None:
            while not there.is_set():
                left = self._heard + seconds - anyio.current_time()
                with anyio.move_on_after(seconds if self._writing.locked() else left):
                    await there.wait()
                silent = anyio.current_time() >= self._heard + seconds
                if silent and not self._writing.locked() and not there.is_set():
                    await self.write(b": keep-alive\n\n")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(comment, name="keeps a stream alive")
            yield
            # The task ends by itself, perhaps after a comment. Cancelling it would cost more, and
            # leave a cycle of some ninety objects to the garbage collector.
            there.set()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send events or a comment, as bytes. If ``more`` is false, the answer ends with them."""
        async with self._writing:
            if not self.begun:
                self.begun = True
                if not more:
                    self.headers["content-length"] = str(len(data))
                await _start(self._send, self.headers)
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            self._heard = anyio.current_time()
