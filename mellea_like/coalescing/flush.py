"""When to stop gathering: a pure decision, with the time passed in."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Window", "due_at"]


class Window(NamedTuple):
    """How long to gather before what was gathered goes.

    Attributes:
        quiet: seconds without a newcomer after which it goes; each newcomer restarts them.
        max_wait: seconds after the first one at which it goes whatever happens, so that a steady
            stream can't starve it.
        max_items: how many there may be; then it goes at once. None for no limit.
    """

    quiet: float
    max_wait: float
    max_items: int | None = None


def due_at(window: Window, first: float, last: float, count: int) -> float:
    """Decide when what was gathered goes.

    Args:
        window: how long to gather.
        first: when the first item came, in seconds.
        last: when the newest one came.
        count: how many there are; 0 for none.

    Returns:
        The time; ``-math.inf`` for at once, ``math.inf`` where there is nothing.
    """
    if not count:
        return math.inf
    if window.max_items is not None and count >= window.max_items:
        return -math.inf
    return min(last + window.quiet, first + window.max_wait)
