"""Which of many things is to be looked at next, and when: one timer serves them all."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

__all__ = ["Alarms"]

T = TypeVar("T")

SLACK = 64
"""Entries that may be out of date before they are thrown out."""


class Alarms(Generic[T]):
    """At most one alarm for each thing. Setting one takes O(log n) amortised."""

    __slots__ = ("_at", "_heap", "_order")

    def __init__(self) -> None:
        self._at: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._at)

    def set(self, thing: T, at: float) -> None:
        """Have a thing looked at, at that time or before."""
        if at < self._at.get(thing, math.inf):
            self._at[thing] = at
            heappush(self._heap, (at, next(self._order), thing))
            if len(self._heap) > 2 * len(self._at) + SLACK:
                self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
                heapify(self._heap)

    def clear(self, thing: T) -> None:
        """Forget a thing's alarm, if it has one."""
        self._at.pop(thing, None)

    def next(self) -> float:
        """Return when the next alarm goes off; ``math.inf`` for never."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def due(self, now: float) -> list[T]:
        """Take out what is to be looked at now."""
        found: list[T] = []
        while self.next() <= now:
            thing = heappop(self._heap)[2]
            del self._at[thing]
            found.append(thing)
        return found
