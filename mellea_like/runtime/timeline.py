"""A clock that goes on from one event loop to the next."""

from __future__ import annotations

import time

import anyio
from anyio.lowlevel import EventLoopToken, current_token

__all__ = ["Timeline"]


class Timeline:
    """The time of an object that outlives event loops.

    Each event loop has a clock of its own, and two need not agree: trio's starts at a random
    number, and a virtual one at 0. A timeline starts at 0.0, follows the clock of the event loop
    that asks, and between two event loops goes on by the time that really passed.
    """

    __slots__ = ("_last", "_loop", "_offset", "_real")

    def __init__(self) -> None:
        self._loop: EventLoopToken | None = None
        self._offset = 0.0
        self._last = 0.0
        self._real = 0.0

    def now(self) -> float:
        """Return the time in seconds; never less than the time before.

        Raises:
            anyio.NoEventLoopError: no event loop is running.
        """
        loop, reading = current_token(), anyio.current_time()
        if loop != self._loop:
            between = 0.0 if self._loop is None else max(0.0, time.monotonic() - self._real)
            self._offset = self._last + between - reading
            self._loop = loop
        self._last = max(self._last, reading + self._offset)
        self._real = time.monotonic()
        return self._last

    def on_loop(self, at: float) -> float:
        """Turn a time of this timeline into the running event loop's.

        Args:
            at: the time, in seconds, as `now` counts them.

        Returns:
            When that is on ``anyio.current_time``'s clock.
        """
        return at - self.now() + anyio.current_time()
