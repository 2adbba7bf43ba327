"""Decide when to stop gathering items. Nothing here reads a clock: callers pass the time in."""

from __future__ import annotations

import math
from typing import NamedTuple


class GatheringWindow(NamedTuple):
    """The limits that end gathering: seconds without a new item, total seconds, number of items."""

    quiet: float
    max_wait: float
    max_items: int | None = None


def due_at(window: GatheringWindow, first: float, last: float, count: int) -> float:
    """Return when gathered items are due: inf without items, and -inf from ``max_items`` on."""
    if not count:
        return math.inf
    if window.max_items is not None and count >= window.max_items:
        return -math.inf
    return min(last + window.quiet, first + window.max_wait)
