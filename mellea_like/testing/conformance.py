"""Check that a backend keeps the promises that the library relies on."""

from __future__ import annotations

import base64
import inspect
import math
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.core.argument_checks import check_type
from mellea_like.core.backend import Backend, Request
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Meter, Usage
from mellea_like.core.parts import Audio, File, Image
from mellea_like.core.tools import Tool, ToolCall
from mellea_like.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable
    from typing import TypeGuard

    from mellea_like.core.backend import StreamingBackend

Rule = Literal[
    "shape",
    "reply",
    "meter",
    "again",
    "usage",
    "cancellation",
    "stream",
    "parts",
    "tools",
    "errors",
]

Factory: TypeAlias = "Callable[[], Backend | Awaitable[Backend]]"
Send: TypeAlias = "Callable[[Backend, Request], Awaitable[Generation]]"

STEPS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Requests are cancelled after these numbers of event loop steps, one request for each number."""

SHARES = (0.25, 0.5, 0.75)
"""The shares of a reply's duration after which a request is cancelled."""

NOTICEABLE = 0.01
"""A request that is cancelled within this many seconds of its start may still be answered."""

RACES = 1
"""How many requests may be answered despite cancellation, because the clock isn't exact."""


_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_WAV = base64.b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=")
_CALL = ToolCall("call_1", "look_up", '{"word": "tree"}')

CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "a message with two texts": (Message("user", ["Say hello.", "In English."]),),
    "a message with an image": (Message("user", ["Say hello.", Image(data=_PNG)]),),
    "a message with audio": (Message("user", ["Say hello.", Audio(_WAV, "wav")]),),
    "a message with a file": (Message("user", ["Say hello.", File(b"Hello!", filename="a.txt")]),),
    "a conversation with a tool call": (
        Message("user", "What is a tree?"),
        Message("assistant", "", tool_calls=[_CALL]),
        Message("tool", "A tall plant.", tool_call_id="call_1"),
    ),
}
"""Conversations that a backend may refuse. The image is a single pixel, and the sound is empty."""

TOOL = Tool(
    "look_up",
    "Look a word up in a dictionary.",
    {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    },
)


class ConformanceError(AssertionError):
    """A backend broke a rule.

    Args:
        rule: the rule's name.
        message: the backend's behaviour, and the expected behaviour.
    """

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule: Rule = rule


async def check_backend(
    factory: Factory,
    *,
    request: Request | None = None,
    failing_request: Request | None = None,
    calls_tools: bool = False,
    sent: Callable[[], int] | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109 (the longest that a single reply may take)
    grace: float = 1.0,
) -> tuple[Rule, ...]:
    """Check that a backend keeps its promises. Call this in a test on each event loop.

    | rule | what must hold |
    |---|---|
    | shape | it has an async ``generate``; ``can_judge`` is a bool, ``model`` a str or None |
    | reply | ``generate`` returns a `Generation` whose text is a str |
    | meter | the request is counted on its meter, which agrees with the generation's usage; a \
cancelled request is counted if it was sent, and otherwise reported as not sent |
    | again | it can answer a second request, two at the same time, and another after ``aclose`` |
    | usage | two requests on one meter cost the sum of both |
    | cancellation | a request cancelled at any moment stops in time, leaves no task behind, and \
lets the cancellation through |
    | stream | the pieces add up to the text, and the last item is the generation; the caller can \
leave early |
    | parts | texts in parts, images, sounds, files and tool calls in a conversation are \
answered, or refused with a `BackendError` that isn't retryable |
    | tools | requests with tools are also answered or refused; a reply calls only these tools |
    | errors | a failing request raises a `BackendError` |

    Args:
        factory: a plain or async function that makes a backend. It is called several times, and
            each backend is closed after its checks. If the backend is opened by an ``async with``
            block, return the same one each time: ``check_backend(lambda: backend)``.
        request: the request to send, which should succeed every time. The default is one short
            user message.
        failing_request: a request that the backend can't serve, or None to skip that rule.
        calls_tools: whether the model can call tools. If so, a request that requires a tool call
            must get one, also in a stream.
        sent: a function that returns the number of requests sent so far, as counted by a server or
            a wrapped backend: for a wrapper around the `ScriptedBackend` ``inner``, pass ``lambda:
            len(inner.requests)``. If given, the check also fails if a cancelled request is counted
            but was never sent. Use it for backends that wait before they send.
        timeout: how long a reply may take, in seconds.
        grace: how long a cancelled request may take to stop, in seconds.

    Returns:
        The names of the checked rules. They include ``"stream"`` only if the backend streams, and
        ``"errors"`` only if a failing request was given.

    Raises:
        ConformanceError: a rule is broken. The first broken rule is reported.
        TypeError: ``factory`` isn't a function.
    """
    check_type("factory", factory, Callable, "a function, as in check_backend(lambda: backend)")
    asked = Request((Message("user", "Say hello."),)) if request is None else request
    check = _Check(factory, asked, timeout, grace, sent)
    rules: list[Rule] = ["shape", "reply", "meter", "again", "usage", "cancellation"]
    await check.replies()
    await check.works_again()
    await check.usage_adds_up()
    await check.cancels(_whole)
    if await check.streams():
        rules.append("stream")
        await check.cancels(_streamed)
    await check.takes_parts()
    await check.takes_tools(must=calls_tools)
    rules.append("parts")
    rules.append("tools")
    if failing_request is not None:
        rules.append("errors")
        await check.fails(failing_request)
    return tuple(rules)


@dataclass
class _Run:
    """A request to cancel; ``too_late`` tells whether it was answered despite the cancellation."""

    request: Request
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    answered: bool = False
    too_late: bool = False
    error: Exception | None = None

    async def send(self, send: Send, backend: Backend) -> None:
        try:
            with self.scope:
                await send(backend, self.request)
                self.answered = True
        except Exception as exc:  # noqa: BLE001 (reported by who reads it)
            self.error = exc
        finally:
            self.done.set()


@dataclass
class _Check:
    factory: Factory
    template: Request
    timeout: float
    grace: float
    sent: Callable[[], int] | None
    quickest: float = math.inf

    def request(self) -> Request:
        return replace(self.template, meter=Meter())

    @asynccontextmanager
    async def backend(self) -> AsyncGenerator[Backend]:
        made = self.factory()
        backend: Any = await made if inspect.isawaitable(made) else made
        _check_shape(backend)
        try:
            yield backend
        finally:
            await _close(backend)

    async def send(self, send: Send, backend: Backend, request: Request) -> Generation:
        began = anyio.current_time()
        reply = await self.outcome(send, backend, request)
        if isinstance(reply, BackendError):
            msg = f"the request failed with {reply!r}"
            raise ConformanceError("reply", msg) from reply
        if isinstance(reply, Exception):
            msg = f"the request raised {reply!r}, which isn't a BackendError"
            raise ConformanceError("errors", msg) from reply
        if reply is None:
            msg = f"there was no reply within {self.timeout:g} s"
            raise ConformanceError("reply", msg)
        self.quickest = min(self.quickest, anyio.current_time() - began)
        return reply

    async def outcome(
        self, send: Send, backend: Backend, request: Request
    ) -> Generation | Exception | None:
        """Send a request; return its reply, its exception, or None if it took too long."""
        try:
            with anyio.move_on_after(self.timeout):
                return await send(backend, request)
        except ConformanceError:
            raise
        except Exception as exc:  # noqa: BLE001 (the caller reports it)
            return exc
        return None

    async def replies(self) -> None:
        async with self.backend() as backend:
            reply = await self.send(_whole, backend, request := self.request())
            _check_meter(reply, request)

    async def works_again(self) -> None:
        async with self.backend() as backend:
            await self.send(_whole, backend, self.request())
            await self.send(_whole, backend, self.request())
            failures: list[ConformanceError] = []

            async def one_of_two() -> None:
                try:
                    reply = await self.send(_whole, backend, request := self.request())
                    _check_meter(reply, request)
                except ConformanceError as exc:
                    failures.append(exc)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one_of_two)
                tasks.start_soon(one_of_two)
            for failure in failures:
                msg = f"one of two concurrent requests failed: {failure}"
                raise ConformanceError("again", msg) from failure
            await _close(backend)
            try:
                await self.send(_whole, backend, self.request())
            except ConformanceError as exc:
                msg = f"after aclose() it must open again: {exc}"
                raise ConformanceError("again", msg) from exc

    async def usage_adds_up(self) -> None:
        async with self.backend() as backend:
            request = self.request()
            costs: list[Usage] = []
            for _ in range(2):
                reply = await self.send(_whole, backend, request)
                costs.append(reply.usage)
            if request.meter.usage != costs[0] + costs[1]:
                msg = (
                    f"two requests on one meter cost {costs[0]} and {costs[1]}, but the meter says"
                    f" {request.meter.usage}: a generation's usage must be that of its own"
                    " request alone"
                )
                raise ConformanceError("usage", msg)

    async def cancels(self, send: Send) -> None:
        async with self.backend() as backend:
            before = {task.id for task in anyio.get_running_tasks()}
            if (await self.cancelled(send, backend, None)).answered:
                msg = (
                    "a request was answered although its caller was already cancelled: yield to"
                    " the event loop at least once (anyio.lowlevel.checkpoint()), and let the"
                    " cancellation through"
                )
                raise ConformanceError("cancellation", msg)
            for steps in STEPS:
                await self.cancelled(send, backend, partial(_turns, steps))
            races = 0
            for seconds in [self.quickest * share for share in SHARES]:
                run = await self.cancelled(send, backend, partial(anyio.sleep, seconds))
                races += run.too_late and seconds > NOTICEABLE
            if races > RACES:
                msg = "cancelled requests are still answered: let the cancellation through"
                raise ConformanceError("cancellation", msg)
            await checkpoint()
            left = [task for task in anyio.get_running_tasks() if task.id not in before]
            if left:
                msg = f"cancelled requests left tasks behind: {left}"
                raise ConformanceError("cancellation", msg)
            await self.send(send, backend, self.request())

    async def cancelled(
        self, send: Send, backend: Backend, moment: Callable[[], Awaitable[None]] | None
    ) -> _Run:
        """Send a request; cancel it when ``moment`` returns or, with None, before it starts."""
        run = _Run(self.request())
        in_time = in_flight = True
        before = 0 if self.sent is None else self.sent()
        async with anyio.create_task_group() as tasks:
            if moment is None:
                run.scope.cancel()
            tasks.start_soon(run.send, send, backend)
            began = anyio.current_time()
            if moment is not None:
                await moment()
            # If the moment itself came too late, the reply was already there.
            in_flight = not run.done.is_set() and anyio.current_time() - began < self.quickest
            run.scope.cancel()
            with anyio.move_on_after(self.grace):
                await run.done.wait()
            in_time = run.done.is_set()
        if not in_time:
            msg = f"a request was still running {self.grace:g} s after it was cancelled"
            raise ConformanceError("cancellation", msg)
        if run.error is not None:
            msg = f"a cancelled request raised {run.error!r}: let the cancellation through"
            raise ConformanceError("cancellation", msg) from run.error
        run.too_late = in_flight and run.answered
        if not run.answered:
            await self.counts_what_was_sent(run.request.meter, before)
        return run

    async def counts_what_was_sent(self, meter: Meter, before: int) -> None:
        """Make sure that a cancelled request is counted only if it was sent."""
        if not meter.started:
            msg = (
                "a cancelled request is neither counted nor reported as not sent: call"
                " request.meter.start() when it is sent, or request.meter.sent_nothing() if it"
                " ends while it waits to be sent"
            )
            raise ConformanceError("meter", msg)
        if self.sent is None:
            return
        counted = meter.usage.requests
        with anyio.move_on_after(self.grace):
            while counted > self.sent() - before:  # noqa: ASYNC110 (it may still be on its way)
                await anyio.sleep(self.grace / 100)
        if counted > (really := self.sent() - before):
            msg = f"a cancelled request is counted as {counted}, but {really} were sent"
            raise ConformanceError("meter", msg)

    async def streams(self) -> bool:
        async with self.backend() as backend:
            if not _streams(backend):
                return False
            reply = await self.send(_streamed, backend, request := self.request())
            _check_meter(reply, request)
            await self.leaves_early(backend)
            await self.passes_exceptions(backend)
            return True

    async def leaves_early(self, backend: StreamingBackend) -> None:
        request = self.request()
        left = -math.inf
        with anyio.move_on_after(self.timeout + self.grace) as scope:
            async with backend.stream(request) as pieces:
                async for _ in pieces:
                    break
                left = anyio.current_time()
        if scope.cancelled_caught or anyio.current_time() - left > self.grace:
            msg = f"leaving a stream after its first piece took more than {self.grace:g} s"
            raise ConformanceError("stream", msg)
        if not request.meter.started:
            msg = "a stream that was left after its first piece is not counted on the meter"
            raise ConformanceError("meter", msg)

    async def passes_exceptions(self, backend: StreamingBackend) -> None:
        mine = _CallersError()
        try:
            async with backend.stream(self.request()) as pieces:
                async for _ in pieces:
                    raise mine
        except _CallersError as exc:
            if exc is mine:
                return
        except Exception as exc:
            msg = f"an exception that the caller raised inside the block came out as {exc!r}"
            raise ConformanceError("stream", msg) from exc
        msg = "an exception that the caller raised inside the block did not come out of it"
        raise ConformanceError("stream", msg)

    async def takes_parts(self) -> None:
        async with self.backend() as backend:
            for what, messages in CONVERSATIONS.items():
                asked = replace(self.request(), messages=messages)
                await self.answers_or_refuses("parts", _whole, backend, asked, what)

    async def takes_tools(self, *, must: bool) -> None:
        async with self.backend() as backend:
            asked = replace(self.request(), tools=(TOOL,), tool_choice="auto")
            await self.answers_or_refuses("tools", _whole, backend, asked, "a request with a tool")
            for send in _ways(backend) if must else ():
                required = replace(asked, tool_choice="required", meter=Meter())
                what = "a request that requires a tool call"
                reply = await self.answers_or_refuses("tools", send, backend, required, what)
                if reply is None or not reply.tool_calls:
                    msg = f"{what} was not answered with one"
                    raise ConformanceError("tools", msg)

    async def answers_or_refuses(
        self, rule: Rule, send: Send, backend: Backend, request: Request, what: str
    ) -> Generation | None:
        """Send a request that a backend may refuse; return the reply, or None if it is refused."""
        reply = await self.outcome(send, backend, request)
        if isinstance(reply, BackendError) and reply.retryable:
            reply = await self.outcome(send, backend, replace(request, meter=Meter()))
        if isinstance(reply, BackendError):
            if reply.retryable:
                msg = f"{what} raised {reply!r}, which is retryable: it would fail again"
                raise ConformanceError(rule, msg) from reply
            return None
        if isinstance(reply, Exception):
            msg = f"{what} raised {reply!r}: answer it, or refuse it with an InvalidRequest"
            raise ConformanceError(rule, msg) from reply
        if reply is None:
            msg = f"{what} got no reply within {self.timeout:g} s"
            raise ConformanceError(rule, msg)
        calls: object = reply.tool_calls
        if type(calls) is not tuple or not all(isinstance(c, ToolCall) for c in reply.tool_calls):
            msg = f"a Generation's tool_calls must be a tuple of ToolCall objects, not {calls!r}"
            raise ConformanceError("tools", msg)
        offered = {tool.name for tool in request.tools}
        if odd := [call.name for call in reply.tool_calls if call.name not in offered]:
            msg = f"{what} was answered with a call of {odd[0]!r}, which is not one of its tools"
            raise ConformanceError("tools", msg)
        return reply

    async def fails(self, failing: Request) -> None:
        async with self.backend() as backend:
            for send in _ways(backend):
                reply = await self.outcome(send, backend, replace(failing, meter=Meter()))
                if isinstance(reply, BackendError):
                    continue
                if isinstance(reply, Exception):
                    msg = f"the failing request raised {reply!r}, which isn't a BackendError"
                    raise ConformanceError("errors", msg) from reply
                msg = "the failing request did not fail"
                raise ConformanceError("errors", msg)
            await self.send(_whole, backend, self.request())


class _CallersError(Exception):
    pass


async def _turns(count: int) -> None:
    for _ in range(count):
        await checkpoint()


# --- a single reply ------------------------------------------------------------------------------


async def _whole(backend: Backend, request: Request) -> Generation:
    """Send a request and return the whole reply."""
    reply: object = await backend.generate(request)
    return _checked(reply)


async def _streamed(backend: Any, request: Request) -> Generation:
    """Stream a reply, check that its pieces add up to the text, and return the whole reply."""
    items: list[object] = []
    async with backend.stream(request) as pieces:
        async for piece in pieces:
            items.append(piece)  # noqa: PERF401 (a comprehension gives way to nobody else)
    last = items.pop() if items else None
    if not isinstance(last, Generation):
        msg = f"the last item of a stream is {last!r}, but should be the whole Generation"
        raise ConformanceError("stream", msg)
    odd = next((item for item in items if not isinstance(item, str)), None)
    if odd is not None:
        msg = f"a stream must yield str pieces before its last item, not {odd!r}"
        raise ConformanceError("stream", msg)
    text = "".join(map(str, items))
    if text != last.text:
        msg = f"the pieces of a stream make up {text!r}, but the whole is {last.text!r}"
        raise ConformanceError("stream", msg)
    return _checked(last)


def _streams(backend: Backend) -> TypeGuard[StreamingBackend]:
    return hasattr(backend, "stream")


def _ways(backend: Backend) -> tuple[Send, ...]:
    """Return the ways to send a request to a backend."""
    return (_whole, _streamed) if _streams(backend) else (_whole,)


async def _close(backend: Any) -> None:
    aclose = getattr(backend, "aclose", None)
    if aclose is not None:
        await aclose()


def _checked(reply: object) -> Generation:
    if not isinstance(reply, Generation) or not isinstance(reply.text, str):
        msg = f"generate must return a Generation whose text is a str, not {reply!r}"
        raise ConformanceError("reply", msg)
    return reply


def _check_shape(backend: Any) -> None:
    problem = None
    if not isinstance(backend, Backend) or not inspect.iscoroutinefunction(backend.generate):
        problem = f"{backend!r} has no async generate(request)"
    elif not isinstance(getattr(backend, "can_judge", True), bool):
        problem = f"can_judge must be a bool, not {getattr(backend, 'can_judge', None)!r}"
    elif not isinstance(getattr(backend, "model", None), str | None):
        problem = f"model must be a str or None, not {getattr(backend, 'model', None)!r}"
    if problem is not None:
        raise ConformanceError("shape", problem)


def _check_meter(reply: Generation, request: Request) -> None:
    """Make sure that a reply's cost agrees with the meter."""
    if not request.meter.started:
        msg = "the request is not counted: call request.meter.start() when it is sent"
        raise ConformanceError("meter", msg)
    if reply.usage != request.meter.usage:
        msg = f"the meter says {request.meter.usage}, but the generation says {reply.usage}"
        raise ConformanceError("meter", msg)
