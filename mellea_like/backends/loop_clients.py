"""A client for each event loop.

A client's connections belong to the event loop that opened them. So a backend that outlives a loop
needs one client for each loop (`sample_sync` starts a new loop at each call). To close a client
when its loop ends, each client leaves an async generator suspended: asyncio and trio both run the
rest of such generators before a loop ends. This also closes the connections of a backend that was
dropped without `aclose`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import current_token

from mellea_like.backends.closing import CLOSE_SECONDS
from mellea_like.runtime.threads import run_to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class _Closing(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closing)

_suspended: WeakKeyDictionary[object, set[AsyncGenerator[None]]] = WeakKeyDictionary()
"""The suspended generators that will close clients, by event loop. They are kept here because trio
warns if a generator is garbage-collected before its loop ends."""


class _LoopClient(Generic[T]):
    """Holds the client of one event loop, and counts the requests that use it (``active``)."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self.active = 0
        self.retired = False
        self._closing: AsyncGenerator[None] | None = None
        self.client: T | None = None

    async def start(self, make: Callable[[], T], *, close: bool) -> T:
        """Return the client, made if necessary; with ``close``, close it when the loop ends."""
        async with self._lock:
            if self.client is None:
                self.client = await run_to_its_end(make)
                if close:
                    self._closing = _close_when_resumed(self.client)
                    await anext(self._closing)  # This runs to the yield without waiting.
                    _suspended.setdefault(current_token().native_token, set()).add(self._closing)
            return self.client

    async def stop(self) -> None:
        """Close the client, if this library made it."""
        if self._closing is not None:
            _suspended[current_token().native_token].discard(self._closing)
            await self._closing.aclose()


async def _close_when_resumed(client: _Closing) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await client.close()


class LoopClients(Generic[T]):
    """Holds one client for each event loop, made when the loop first needs it."""

    def __init__(self, make: Callable[[], T], *, close: bool) -> None:
        self._make = make
        self._close = close
        self._clients: WeakKeyDictionary[object, _LoopClient[T]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy makes its own clients.
        return partial(LoopClients, close=self._close), (self._make,)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[T]:
        """Yield the running event loop's client, made if necessary and kept open in the block."""
        held = self._clients.get(current_token().native_token)
        if held is None:
            for clients in (self._clients, _suspended):
                _forget_dead_loops(clients)
            held = self._clients[current_token().native_token] = _LoopClient()
        held.active += 1
        try:
            yield await held.start(self._make, close=self._close)
        finally:
            held.active -= 1
            if held.retired and not held.active:
                await held.stop()

    async def aclose(self) -> None:
        """Close the running event loop's client as soon as no request uses it."""
        held = self._clients.pop(current_token().native_token, None)
        if held is None:
            return
        held.retired = True
        if not held.active:
            await held.stop()


def _forget_dead_loops(by_loop: WeakKeyDictionary[object, Any]) -> None:
    # These are left over from a loop that was closed without running its generators.
    for loop in list(by_loop):
        if getattr(loop, "is_closed", bool)():
            by_loop.pop(loop, None)
