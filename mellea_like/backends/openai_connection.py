"""A request's way to the server and back: the SDK's clients, what has left, and the reply's bytes.

A client's connections belong to the event loop that opened them. So a backend that outlives a loop
(`sample_sync` starts a new one at each call) needs a client for each. The client of a loop that
ends is closed by an async generator that it leaves suspended: asyncio and trio both run the rest of
such generators before a loop ends. A backend that was dropped without `aclose` is closed then, too.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import current_token

from mellea_like.backends.openai_wire import EventDecoder, Reply, ReplyTooLongError, ServerError
from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import estimate_input_tokens
from mellea_like.core.generation import Generation
from mellea_like.errors import BackendError, BackendTimeout, BackendUnavailable, MalformedResponse
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from openai import AsyncOpenAI

    from mellea_like.backends.openai_errors import Translator
    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter

__all__ = [
    "SENDING",
    "Bounds",
    "LoopClient",
    "LoopClients",
    "OpenReply",
    "Sending",
    "bound_body",
    "tell_when_sent",
]

CLOSE_SECONDS = 1.0
"""How long closing connections may take; what is not closed by then is cut."""


_suspended: WeakKeyDictionary[object, set[AsyncGenerator[None, None]]] = WeakKeyDictionary()
"""By event loop, so that none is garbage before its loop ends: trio would warn of that."""


class LoopClient:
    """The client of one event loop."""

    __slots__ = ("_client", "active", "closing", "lock", "retired")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.active = 0
        self.retired = False
        self.closing: AsyncGenerator[None, None] | None = None
        self._client: AsyncOpenAI | None = None

    @property
    def client(self) -> AsyncOpenAI:
        """The SDK's client; there once `start` has returned."""
        return cast("AsyncOpenAI", self._client)

    async def start(self, make: Callable[[], AsyncOpenAI], *, close: bool) -> None:
        """Make the client, unless that is done."""
        async with self.lock:
            if self._client is not None:
                return
            with anyio.CancelScope(shield=True):
                self._client = await run_in_thread(make)
            if close:
                self.closing = _close_when_resumed(self.client)
                await anext(self.closing)  # Runs to its yield without waiting.
                _suspended.setdefault(current_token().native_token, set()).add(self.closing)

    async def stop(self) -> None:
        """Close the client, if it is ours to close."""
        if self.closing is not None:
            _suspended[current_token().native_token].discard(self.closing)
            await self.closing.aclose()


async def _close_when_resumed(client: AsyncOpenAI) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await client.close()


class LoopClients:
    """Makes a client when an event loop first needs one."""

    __slots__ = ("__weakref__", "_clients", "_close", "_make")

    def __init__(self, make: Callable[[], AsyncOpenAI], *, close: bool) -> None:
        self._make = make
        self._close = close
        self._clients: WeakKeyDictionary[object, LoopClient] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LoopClients, close=self._close), (self._make,)  # Clients are made anew.

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[LoopClient, None]:
        """Hold the running event loop's client; it stays open meanwhile."""
        held = self._clients.get(current_token().native_token)
        if held is None:
            for clients in (self._clients, _suspended):
                _forget_dead_loops(clients)
            held = self._clients[current_token().native_token] = LoopClient()
        held.active += 1
        try:
            await held.start(self._make, close=self._close)
            yield held
        finally:
            held.active -= 1
            if held.retired and not held.active:
                await held.stop()

    async def aclose(self) -> None:
        """Close the running event loop's client once no request holds it any more."""
        held = self._clients.pop(current_token().native_token, None)
        if held is None:
            return
        held.retired = True
        if not held.active:
            await held.stop()


def _forget_dead_loops(by_loop: WeakKeyDictionary[object, Any]) -> None:
    # What a loop leaves behind that was closed without running its generators.
    for loop in list(by_loop):
        if getattr(loop, "is_closed", bool)():
            by_loop.pop(loop, None)


TRACING = "AsyncHTTPTransport"
"""The transport of httpx and httpx2 that tells how far a request is; others need not."""


class Sending:
    """The cost of one request, which counts from the moment that it has left."""

    meter: RequestMeter | None = None
    _posting = False

    def __init__(self, request: Request) -> None:
        self._request = request

    def sent(self) -> RequestMeter:
        """Count the request as sent, its prompt as it is estimated; return the count."""
        if self.meter is None:
            self.meter = self._request.meter.start()
            self.meter.update(input_tokens=estimate_input_tokens(self._request))
        return self.meter

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Hear from the HTTP library how far it is; see its ``trace`` extension."""
        if event.endswith("send_request_headers.started"):
            # A proxy is asked for a tunnel first.
            self._posting = info["request"].method == b"POST"
        elif self._posting and event.endswith("send_request_body.complete"):
            self.sent()

    def failed(self, error: BackendError) -> None:
        """Hear that there is no reply: what the server refuses to work on costs nothing."""
        meter = self.meter
        worked = isinstance(error, BackendTimeout | MalformedResponse)
        if meter is not None and not worked and not meter.output_tokens and not meter.settled:
            meter.update(input_tokens=0)

    def ended(self) -> None:
        """Say that nothing was sent, if that is so."""
        if self.meter is None:
            self._request.meter.sent_nothing()


SENDING: ContextVar[Sending | None] = ContextVar("mellea_like_sending", default=None)
"""The request that the running task is about to send."""


def tell_when_sent(client: AsyncOpenAI) -> None:
    """Have a client tell `SENDING` when it has sent a request."""
    transport: Any = getattr(client._client, "_transport", None)  # pyright: ignore[reportPrivateUsage]
    tells = any(kind.__name__ == TRACING for kind in type(transport).__mro__)
    prepare = client._prepare_request  # pyright: ignore[reportPrivateUsage]

    async def prepared(request: Any) -> None:
        await prepare(request)
        sending = SENDING.get()
        if sending is None:
            return
        if tells:
            request.extensions["trace"] = sending.trace
        else:
            sending.sent()

    # The SDK's own place for what is to be done with each request.
    client._prepare_request = prepared  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]


MAX_BODY = 128 * 2**20
"""Bytes of an answer, most of which is packaging: a token comes in about 200 to 300."""

PACKAGING = 64
"""... and where longer replies are allowed, bytes for each of their characters."""

MAX_OTHER_BODY = 2**20
"""Bytes that are read of an answer that isn't a reply: an error, or a list of models."""

OK = 200


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of an answer, checked."""

    timeout: float | None
    total_timeout: float | None
    max_characters: int

    def __post_init__(self) -> None:
        for name in ("timeout", "total_timeout"):
            seconds = getattr(self, name)
            if seconds is not None:
                real_number(name, seconds, over=0, most=math.inf, unit="seconds")
        whole_number("max_characters", self.max_characters)

    @property
    def silence(self) -> float:
        """The longest silence, in seconds."""
        return math.inf if self.timeout is None else self.timeout

    @property
    def max_bytes(self) -> int:
        """Bytes of the longest answer, packaging included."""
        return max(MAX_BODY, PACKAGING * self.max_characters)

    def end(self) -> float:
        """Return when the time of a request that begins now is up."""
        return math.inf if self.total_timeout is None else anyio.current_time() + self.total_timeout


async def bound_body(response: Any) -> None:  # noqa: RUF029 (the HTTP library awaits it)
    """Response hook: read only a bounded part of an error response.

    The SDK would read all of it into memory.
    """
    if response.status_code == OK and response.request.method == "POST":
        return
    library = import_module(type(response).__module__.partition(".")[0])
    inner = response.stream

    class Bounded(library.AsyncByteStream):  # type: ignore[misc,name-defined]
        async def __aiter__(self) -> AsyncGenerator[bytes, None]:
            left = MAX_OTHER_BODY
            pieces = aiter(inner)
            try:
                while left > 0 and (chunk := await anext(pieces, None)) is not None:
                    yield chunk[:left]
                    left -= len(chunk)
            finally:
                # Closed, and read until it fails for that: this takes the library's nested
                # generators to their ends, of which closing the outermost would forget some.
                with suppress(Exception):
                    await inner.aclose()
                    async for _ in pieces:
                        pass

        async def aclose(self) -> None:
            await inner.aclose()

    response.stream = Bounded()


DRAIN_SECONDS = 0.1
"""How long to wait, after the reply, for the end of the body: only then can the connection stay."""

HEAD = 1000
"""Bytes of the body that are kept to be shown if it turns out to be no reply."""


class OpenReply:
    """The iterator over a reply's pieces: texts, and the whole generation last.

    It is an object and no async generator, so that leaving it half read leaves nothing behind once
    `close` was called.
    """

    def __init__(
        self,
        response: Any,
        reply: Reply,
        model: str,
        translator: Translator,
        bounds: Bounds,
        ends: float,
    ) -> None:
        self._response = response
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        self._decoder = EventDecoder()
        self._events: deque[str] = deque()
        self._reply = reply
        self._model = model
        self._translator = translator
        self._bounds = bounds
        self._ends = ends
        self._since = 0.0
        self._bytes = 0
        self._event = ""
        self._head = b""
        self._at_end = False
        self._handed_over = False

    def __aiter__(self) -> OpenReply:
        return self

    async def __anext__(self) -> str | Generation:
        if self._handed_over:
            raise StopAsyncIteration
        error: BackendError | None = None
        try:
            piece = await self._next_piece()
        except Exception as exc:  # noqa: BLE001 (nothing but HTTP and parsing happens in there)
            piece = ""
            error = self._broken(exc)
        if piece:
            return piece
        self._handed_over = True
        if error is not None:
            # Outside the handler, so that no foreign exception hangs on as the context.
            raise error
        return self._generation()

    async def whole(self) -> Generation:
        """Read to the end."""
        while isinstance(piece := await anext(self), str):
            pass
        return piece

    async def close(self) -> None:
        """Close the request: of a reply that is not read to its end, the connection too.

        After that the body is read until it fails for being closed. This takes the HTTP library's
        nested generators to their ends, of which closing the outermost would forget some.
        """
        with anyio.move_on_after(CLOSE_SECONDS, shield=True), suppress(Exception):
            await self._response.aclose()
            async for _ in self._chunks:
                pass

    async def _next_piece(self) -> str:
        self._since = anyio.current_time()
        while True:
            while self._events:
                self._event = self._events.popleft()
                self._since = anyio.current_time()
                if piece := self._reply.read(self._event):
                    return piece
            if self._at_end:
                return self._require_end()
            await self._receive()

    async def _receive(self) -> None:
        if self._reply.done:
            with anyio.move_on_after(DRAIN_SECONDS):
                async for _ in self._chunks:
                    pass
            self._at_end = True
            return
        # Bytes that make up no event are silence, too, which the HTTP library does not see.
        quiet = self._since + self._bounds.silence
        chunk: bytes | None = None
        with anyio.CancelScope(deadline=min(quiet, self._ends)) as time_left:
            chunk = await anext(self._chunks, None)
        if time_left.cancelled_caught:
            self._require_whole(quiet)
            return
        if chunk is None:
            self._at_end = True
            self._events.extend(self._decoder.finish())
        else:
            self._bytes += len(chunk)
            if self._bytes > self._bounds.max_bytes:
                msg = f"an answer of more than {self._bounds.max_bytes:,} bytes"
                raise ReplyTooLongError(msg)
            if len(self._head) < HEAD:
                self._head += chunk[:HEAD]
            self._events.extend(self._decoder.feed(chunk))

    def _require_whole(self, quiet: float) -> None:
        if not self._reply.whole:
            raise self._translator.late() if quiet > self._ends else self._translator.silent()
        self._at_end = True  # The time that is up takes only the usage with it.

    def _require_end(self) -> str:
        if not self._reply.whole:
            head = self._head.decode("utf-8", "replace")
            what = "a reply that breaks off" if self._reply.began else "an answer without a reply"
            raise self._translator.malformed(what, head)
        return ""

    def _broken(self, exc: Exception) -> BackendError | None:
        if isinstance(exc, BackendError | ServerError):
            return self._translator.of(exc)
        if isinstance(exc, ReplyTooLongError):
            return self._translator.malformed(str(exc))
        if isinstance(exc, ValueError):
            why = f"an event that can't be read ({self._translator.clean(str(exc))})"
            return self._translator.malformed(why, self._event)
        if self._reply.whole:
            return None  # A connection that breaks after the reply's end takes only the usage.
        error = self._translator.of(exc)
        if self._reply.began and isinstance(error, BackendUnavailable):
            # It has cost its tokens, so that it isn't a broken connection to be tried again.
            return self._translator.malformed(f"a reply that breaks off ({error})")
        return error

    def _generation(self) -> Generation:
        reply = self._reply
        return Generation(
            "".join(reply.text),
            usage=reply.usage,
            model=reply.model or self._model,
            finish_reason=reply.finish_reason,
        )
