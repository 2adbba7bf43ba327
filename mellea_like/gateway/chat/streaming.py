"""A streamed reply: comments while nothing has passed, then the winner's text as chunks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.gateway.http.safe_text import comment, frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from mellea_like.gateway.http.refusal import Refusal

    Send = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ["EventStream"]

DONE = b"data: [DONE]\n\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # Asks proxies such as nginx not to hold anything back.
    "x-accel-buffering": "no",
}


class EventStream:
    """The events of one answer. It begins with the first event or comment, and not before.

    So what fails at once is answered with a status of its own.

    Args:
        send: the application's ``send``.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = anyio.Lock()
        self._headers = dict(HEADERS)
        self.begun = False

    @asynccontextmanager
    async def kept_alive(self, seconds: float) -> AsyncGenerator[None]:
        """Send a comment now and then while the block runs.

        Args:
            seconds: how often.

        Yields:
            Nothing.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_alive, seconds, name="keeps a stream alive")
            yield
            async with self._lock:  # Not in the middle of a comment.
                tasks.cancel_scope.cancel("the reply is there")

    async def _keep_alive(self, seconds: float) -> None:
        while True:
            await anyio.sleep(seconds)
            await self._write(comment("keep-alive"))

    async def send(self, data: Mapping[str, Any]) -> None:
        """Send an event.

        Args:
            data: what it says.
        """
        await self._write(frame(data))

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Have the answer say more in its headers; too late once it has begun.

        Args:
            headers: their names and values.
        """
        self._headers |= headers

    async def end(self) -> None:
        """Send the last event, and end the answer."""
        await self._write(DONE, more=False)

    async def fail(self, refusal: Refusal) -> None:
        """End an answer that has begun with an error.

        Args:
            refusal: what would have been answered.
        """
        await self._write(b"data: " + refusal.body() + b"\n\n", more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        async with self._lock:
            if not self.begun:
                self.begun = True
                headers = [(k.encode("ascii"), v.encode("ascii")) for k, v in self._headers.items()]
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._send(start)
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
