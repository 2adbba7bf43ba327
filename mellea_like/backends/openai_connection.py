"""Reading one streamed reply off its connection."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.backends.openai_clients import CLOSE_SECONDS
from mellea_like.backends.openai_wire import (
    EventDecoder,
    Reply,
    ReplyTooLongError,
    ServerError,
)
from mellea_like.core.generation import Generation
from mellea_like.errors import BackendError, BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mellea_like.backends.openai_bounds import Bounds
    from mellea_like.backends.openai_errors import Translator

__all__ = ["OpenReply"]

DRAIN_SECONDS = 0.1
"""How long to wait, after the reply, for the end of the body: only then can the connection stay."""

HEAD = 1000
"""Bytes of the body that are kept to be shown if it turns out to be no reply."""


class OpenReply:
    """The iterator over a reply's pieces: texts, and the whole generation last.

    It is an object and no async generator, so that leaving it half read leaves nothing behind once
    `close` was called.

    Args:
        response: the HTTP response, its body not yet read.
        reply: takes the events.
        model: the model that was asked.
        translator: puts errors into words.
        bounds: how long and how big the answer may be.
        ends: when the whole request's time is up, on the event loop's clock.
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
        """Read to the end.

        Returns:
            The whole reply.

        Raises:
            BackendError: the reply can't be read, or breaks off.
        """
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
            # It has cost its tokens, so that it is no broken connection to be tried again.
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
