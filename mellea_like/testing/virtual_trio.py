"""Trio's own virtual clock, with a watch for standstills, which trio has not."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from mellea_like.testing.virtual_clock import PATIENCE, others_may_wake_it

try:
    import trio
    from trio.testing import MockClock
except ImportError as exc:
    msg = "virtual time on trio needs trio: pip install 'mellea-like[testing]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["virtual_options"]


def virtual_options(at_standstill: Callable[[], bool]) -> dict[str, Any]:
    """Return the options of a trio run in virtual time."""
    return {"clock": MockClock(autojump_threshold=0), "instruments": [_Watch(at_standstill)]}


class _Watch(trio.abc.Instrument):
    """Notices that nothing has happened, and that no timer will make anything happen."""

    def __init__(self, at_standstill: Callable[[], bool]) -> None:
        self._at_standstill = at_standstill
        self._since: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        self._since = None

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        now = trio.lowlevel.current_statistics()
        if now.tasks_runnable or now.seconds_to_next_deadline < math.inf:
            self._since = None
            return
        if self._since is None:
            self._since = time.monotonic()
            return
        # Without a thread that might wake the loop, the second look in a row is proof enough.
        if others_may_wake_it() and time.monotonic() - self._since < PATIENCE:
            time.sleep(0.001)
            return
        if not self._at_standstill():
            time.sleep(0.001)
