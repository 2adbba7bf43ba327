"""A clock that continues from one event loop to the next."""

from __future__ import annotations

import time
from typing import Any

import anyio
from anyio.lowlevel import EventLoopToken, current_token

TICK = 1e-6
"""Waits up to this many seconds count as zero, because clocks and timers are rounded."""


class Timeline:
    """A clock for objects that are used in several event loops, whose own clocks may differ."""

    # The clocks of two event loops need not agree: trio's starts at a random number, and a virtual
    # one at 0. A timeline follows the clock of the running event loop, and between event loops it
    # advances with real time.

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # This is set as one tuple, because event loops in several threads may ask at once, and
        # must not mix up their clocks. One may then overwrite the other's last time, which does no
        # harm.
        self._state: tuple[EventLoopToken | None, float, float, float] = None, 0.0, 0.0, 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Timeline, (), (None, {"_state": (None, 0.0, self._state[2], 0.0)})

    def now(self) -> float:
        """Return the time in seconds. Within a thread, this time never decreases."""
        asking, reading, real = current_token(), anyio.current_time(), time.monotonic()
        loop, offset, last, seen = self._state
        if asking != loop:
            between = 0.0 if loop is None else max(0.0, real - seen)
            offset = last + between - reading
        now = max(last, reading + offset)
        self._state = asking, offset, now, real
        return now

    def on_loop(self, at: float) -> float:
        """Convert a time of this timeline to the running event loop's clock."""
        return at - self.now() + anyio.current_time()
