"""An asyncio event loop whose time jumps from timer to timer."""

from __future__ import annotations

import asyncio
import math
import selectors
from typing import TYPE_CHECKING, TypeVarTuple

from mellea_like.testing.virtual_clock import PATIENCE, DeadlockError, others_may_wake_it

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

__all__ = ["VirtualLoop"]

Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never sleeps: when all tasks wait, its time jumps to the next timer."""

    def __init__(self, at_standstill: Callable[[], bool]) -> None:
        self._clock = _JumpingSelector(at_standstill)
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self._clock.now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback; one at infinity is never scheduled, or time would walk there."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)


class _JumpingSelector(selectors.DefaultSelector):
    """Looks at the files without waiting, and moves the time forward by what it did not wait."""

    def __init__(self, at_standstill: Callable[[], bool]) -> None:
        super().__init__()
        self.now = 0.0
        self._at_standstill = at_standstill

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None:
            self.now += timeout
            return ready
        # The loop's own wake-up socket is always among the files.
        if others_may_wake_it() or len(self.get_map()) > 1:
            ready = super().select(PATIENCE)
        if not ready and not self._at_standstill():
            msg = "deadlock: every task waits and no timer is set"
            raise DeadlockError(msg)
        return ready
