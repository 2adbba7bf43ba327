"""``/v1/chat/completions``: from an admitted request to its answer."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.errors import HookError, LimitExceeded, SamplingFailed
from mellea_like.gateway.chat.replies import Draw, Reply, answerable, refusal_of, usage_of
from mellea_like.gateway.chat.request import model_of, read_chat
from mellea_like.gateway.http.keys import admitted
from mellea_like.gateway.refusal import Refusal
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.caller_checks import Workers
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.chat.served_model import Plan, ServedModel
    from mellea_like.gateway.http.guard import Receive, Scope, Send
    from mellea_like.gateway.http.metrics import Metrics

__all__ = ["ChatCompletions", "event_of", "unknown_model"]

PASSED = "x-mellea-like-passed"
"""The header that says whether all replies of an answer have passed."""


class ChatCompletions:
    """The route's application. The models may be filled in later."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: Metrics,
        keep_alive: float,
        workers: Workers,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._keep_alive = keep_alive
        self._workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI wants it."""
        caller = admitted(scope)
        name = model_of(caller.body)
        model = self._models.get(name)
        if model is None:
            raise unknown_model()
        request = read_chat(caller.body, model.config.overrides.pass_on)

        async def answer() -> None:
            plan = await model.plan(request, caller, self._workers)
            if request.stream:
                await self._stream(name, request, plan, send)
            else:
                await self._whole(name, plan, send)

        await while_here(receive, answer)

    async def _whole(self, name: str, plan: Plan, send: Send) -> None:
        draws = _answerable(plan, await self._run(name, plan))
        body = json.dumps(Reply(name).completion(draws, best=plan.best)).encode("ascii")
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        await _start(send, {**fields, **_passed(draws)})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, name: str, request: ChatRequest, plan: Plan, send: Send) -> None:
        events, reply = EventStream(send), Reply(name)

        async def tell(index: int, done: Slice) -> None:
            await events.send(reply.progress(index, done))

        try:
            async with events.kept_alive(self._keep_alive):
                told = tell if request.mellea_like.progress else None
                draws = await self._run(name, plan, told)
            draws = _answerable(plan, draws)
        except Refusal as refusal:
            if not events.begun:
                raise
            await events.fail(refusal)
            return
        events.headers |= _passed(draws)
        include_usage = request.stream_options.include_usage
        for chunk in reply.chunks(draws, best=plan.best, include_usage=include_usage):
            await events.send(chunk)
        await events.end()

    async def _run(self, name: str, plan: Plan, tell: Any = None) -> Sequence[Draw]:
        try:
            draws = await _run_plan(plan, tell)
        except BaseException:
            self._metrics.sampled(name, "cancelled")
            raise
        for draw in draws:
            iterations = 0 if draw.result is None else len(draw.result.slices)
            self._metrics.sampled(name, draw.outcome, iterations, usage_of([draw]))
        return draws


def unknown_model() -> Refusal:
    """Make the answer to a request for a model that doesn't exist."""
    message = "there is no such model: see /v1/models"
    return Refusal(404, message, code="model_not_found", param="model")


def _answerable(plan: Plan, draws: Sequence[Draw]) -> Sequence[Draw]:
    # All of them: those without a reply count in what the answer cost.
    if not any(answerable(draw, best=plan.best) for draw in draws):
        raise refusal_of(draws, retried=plan.retried)
    return draws


def _passed(draws: Sequence[Draw]) -> dict[str, str]:
    return {PASSED: "true" if all(draw.passed for draw in draws) else "false"}


async def _start(send: Send, fields: Mapping[str, str]) -> None:
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


# --- sampling ------------------------------------------------------------------------------------


async def _run_plan(
    plan: Plan, on_slice: Callable[[int, Slice], Awaitable[None]] | None
) -> tuple[Draw, ...]:
    """Sample as many replies as are wanted, all at a time."""
    draws: dict[int, Draw] = {}

    async def run(index: int) -> None:
        draws[index] = await _draw(plan, index, on_slice)

    if plan.n == 1:
        await run(0)
    else:
        async with anyio.create_task_group() as tasks:
            for index in range(plan.n):
                tasks.start_soon(run, index)
    return tuple(draws[index] for index in range(plan.n))


async def _draw(
    plan: Plan, index: int, on_slice: Callable[[int, Slice], Awaitable[None]] | None
) -> Draw:
    seed = plan.options.seed
    try:
        result = await plan.strategy.sample(
            plan.action,
            plan.requirements,
            context=plan.context,
            options=replace(plan.options, seed=None if seed is None else seed + index),
            on_slice=None if on_slice is None else partial(on_slice, index),
            budget=plan.budget,
        )
    except (HookError, LimitExceeded, SamplingFailed) as exc:
        return Draw(exc.result, exc)
    except Exception as exc:  # noqa: BLE001 (whatever it is, the caller gets an answer)
        return Draw(None, exc)
    return Draw(result)


# --- streams -------------------------------------------------------------------------------------


def event_of(data: Mapping[str, Any]) -> bytes:
    """Write an event."""
    # JSON in ASCII has no line break of any kind: nothing in it ends an event or begins one.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode("ascii") + b"\n\n"


class EventStream:
    """The events of one answer, which begins with the first of them: no status is sent before."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = anyio.Lock()
        self.begun = False
        self.headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            # Asks proxies such as nginx not to hold anything back.
            "x-accel-buffering": "no",
        }

    @asynccontextmanager
    async def kept_alive(self, seconds: float) -> AsyncGenerator[None]:
        """Send a comment now and then while the block runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_alive, seconds, name="keeps a stream alive")
            yield
            async with self._lock:  # Not in the middle of a comment.
                tasks.cancel_scope.cancel("the reply is there")

    async def _keep_alive(self, seconds: float) -> None:
        while True:
            await anyio.sleep(seconds)
            await self._write(b": keep-alive\n\n")

    async def send(self, data: Mapping[str, Any]) -> None:
        """Send an event."""
        await self._write(event_of(data))

    async def fail(self, refusal: Refusal) -> None:
        """End an answer that has begun with an error."""
        await self._write(b"data: " + refusal.body() + b"\n\n", more=False)

    async def end(self) -> None:
        """Send the last event, and end the answer."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        async with self._lock:
            if not self.begun:
                self.begun = True
                await _start(self._send, self.headers)
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
