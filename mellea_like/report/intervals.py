"""How long something went on that was interrupted: the time that its parts cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["PAUSE", "Spans"]

PAUSE = 10.0
"""A gap of so many seconds or more is a pause: nobody was at work. A shorter one counts."""


class Spans:
    """The times that spans cover together, overlaps counted once.

    Spans that are less than a pause apart become one, so that few are kept however many are added.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def add(self, start: float, end: float) -> None:
        """Add a span.

        Args:
            start: when it began, in seconds.
            end: when it ended, in seconds; not before its start.
        """
        # Those less than a pause away become one with it.
        first = bisect_right(self._ends, start - PAUSE)
        last = bisect_left(self._starts, end + PAUSE)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def total(self) -> float:
        """How long they are together, in seconds."""
        return sum(self._ends) - sum(self._starts)
