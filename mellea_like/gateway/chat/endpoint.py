"""The base class of the endpoints, which turn an admitted request into the bytes of an answer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from mellea_like.gateway.chat.request import model_of
from mellea_like.gateway.current_request import CURRENT, admitted
from mellea_like.gateway.refusal import Refusal
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

    Write = Callable[[str, PreparedRequest, Sequence[ReplyOutcome]], Answer]


class LiveAnswer(Protocol):
    """An answer that is sent while the reply arrives."""

    @property
    def begun(self) -> bool:
        """Whether anything has been sent."""
        ...

    def piece(self, text: str) -> bytes:
        """Return the events for a piece of the text."""
        ...

    def end(self, outcomes: Sequence[ReplyOutcome]) -> bytes:
        """Return the events after the text, or raise a `Refusal` if there is no reply to show."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """Format a refusal as the last event of the stream."""
        ...


class Reading(NamedTuple):
    """A parsed request, and the endpoint's functions that format the answer to this request."""

    request: ChatRequest
    write: Write
    """Makes the answer from the outcomes; raises a `Refusal` if there is no reply to show."""
    failed: Callable[[Refusal], bytes]
    """Formats a refusal as the last event of a stream that has begun."""
    named: Callable[[str], str] = str
    """Translates the name of a field in chat completions to the endpoint's name for that field."""
    begin: Callable[[str, PreparedRequest], LiveAnswer] | None = None
    """Begins an answer that is sent while the reply arrives; None if the request prevents this."""


class Endpoint(ABC):
    """The ASGI application of one route. Models that join ``models`` later are served, too."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: Metrics,
        streaming: StreamingConfig,
        workers: Workers,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._streaming = streaming
        self._workers = workers

    @abstractmethod
    def read(self, body: Mapping[str, Any], rules: FieldRules) -> Reading:
        """Parse a request; raise a `Refusal` if it is invalid."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        caller = admitted(scope)
        name = model_of(caller.body)
        model = self._models.get(name) if caller.limits.allows(name) else None
        if model is None:
            raise unknown_model()
        reading = self.read(caller.body, model.rules)

        async def answer() -> None:
            try:
                prepared = await model.prepare(reading.request, caller, self._workers)
                if reading.request.stream:
                    await self._stream(name, prepared, reading, send)
                else:
                    await self._whole(name, prepared, reading, send)
            except Refusal as refusal:
                refusal.rename(reading.named)
                raise

        await while_here(receive, answer)

    async def _whole(
        self, name: str, prepared: PreparedRequest, reading: Reading, send: Send
    ) -> None:
        answer = reading.write(name, prepared, await self._sample(name, prepared))
        body = json.dumps(answer.whole()).encode("ascii")
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        await _start(send, {**fields, **answer.headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(
        self, name: str, prepared: PreparedRequest, reading: Reading, send: Send
    ) -> None:
        events = EventStream(send)
        live = show = None
        if self._streaming.release == "prefix" and reading.begin and prepared.n == 1:
            live = reading.begin(name, prepared)
            show = partial(_send_piece, events, live)
        async with events.kept_alive(self._streaming.keep_alive):
            outcomes = await self._sample(name, prepared, show)
        failed = reading.failed
        try:
            if live is not None and live.begun:
                failed = live.failed
                end = live.end(outcomes)
            else:
                answer = reading.write(name, prepared, outcomes)
                events.headers |= answer.headers
                # It is sent in one piece, because each piece costs a system call.
                end = b"".join(answer.events())
        except Refusal as refusal:
            if not events.begun:
                raise
            refusal.rename(reading.named)
            end = failed(refusal)
        await events.write(end, more=False)

    async def _sample(
        self,
        name: str,
        prepared: PreparedRequest,
        show: Callable[[str], Awaitable[object]] | None = None,
    ) -> Sequence[ReplyOutcome]:
        """Sample the replies, and count the calls. ``show`` gets a reply's text as it arrives."""
        try:
            outcomes = await prepared.sample() if show is None else [await prepared.stream(show)]
        except BaseException:
            self._metrics.sampled(name, "cancelled")
            raise
        for outcome in outcomes:
            result = outcome.result
            self._metrics.sampled(name, outcome.status, 0 if result is None else len(result.slices))
            if result is not None:
                CURRENT.get().sampling_ids.append(result.sampling_id)
        return outcomes


async def _send_piece(events: EventStream, live: LiveAnswer, text: str) -> None:
    await events.write(live.piece(text))


def unknown_model() -> Refusal:
    """Return the refusal for a model that doesn't exist, or that the caller's key may not use."""
    message = "there is no such model, or this key may not use it: see /v1/models"
    return Refusal(404, message, code="model_not_found", param="model")


async def _start(send: Send, fields: Mapping[str, str]) -> None:
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def event_of(data: Mapping[str, Any], kind: str | None = None) -> bytes:
    """Format a server-sent event. ``kind`` isn't escaped, so it must be a fixed event name."""
    # JSON in ASCII has no line breaks of any kind, so nothing in it can end or begin an event.
    text = _encode(data)
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
