"""One SDK client for each event loop, closed with it.

A client's connections belong to the event loop that opened them. So a backend that outlives a loop
(`sample_sync` starts a new one at each call) needs a client for each. The client of a loop that
ends is closed by an async generator that it leaves suspended: asyncio and trio both run the rest of
such generators before a loop ends.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from openai import AsyncOpenAI

__all__ = ["CLOSE_SECONDS", "LoopClient", "LoopClients"]

CLOSE_SECONDS = 1.0
"""How long closing connections may take; what is not closed by then is cut."""


class LoopClient:
    """The client of one event loop.

    Attributes:
        client: the client.
        lock: for what is done once for all requests.
    """

    __slots__ = ("active", "client", "closing", "lock", "retired")

    def __init__(self, client: AsyncOpenAI, *, close: bool) -> None:
        self.client = client
        self.lock = anyio.Lock()
        self.closing = _close_when_resumed(client if close else None)
        self.active = 0
        self.retired = False


async def _close_when_resumed(client: AsyncOpenAI | None) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if client is not None:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await client.close()


class LoopClients:
    """Makes a client when an event loop first needs one.

    Args:
        make: makes a new client; does not wait.
        close: whether the clients are ours to close.
    """

    __slots__ = ("__weakref__", "_clients", "_close", "_make")

    def __init__(self, make: Callable[[], AsyncOpenAI], *, close: bool) -> None:
        self._make = make
        self._close = close
        self._clients: WeakKeyDictionary[object, LoopClient] = WeakKeyDictionary()

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[LoopClient, None]:
        """Hold the running event loop's client; it stays open meanwhile.

        Yields:
            The client.
        """
        held = self._clients.get(current_token().native_token)
        if held is None:
            held = await self._start()
        held.active += 1
        try:
            yield held
        finally:
            held.active -= 1
            if held.retired and not held.active:
                await held.closing.aclose()

    async def _start(self) -> LoopClient:
        # A loop that was closed without running its generators leaves its entry behind.
        for loop in list(self._clients):
            if getattr(loop, "is_closed", bool)():
                del self._clients[loop]
        held = LoopClient(self._make(), close=self._close)
        self._clients[current_token().native_token] = held
        await anext(held.closing)  # Runs to its yield without waiting.
        return held

    async def aclose(self) -> None:
        """Close the running event loop's client once no request holds it any more."""
        held = self._clients.pop(current_token().native_token, None)
        if held is None:
            return
        held.retired = True
        if not held.active:
            await held.closing.aclose()
