"""A plain cap on the requests in flight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import whole_number
from mellea_like.limits.fair_queue import QueuedLimit

if TYPE_CHECKING:
    from mellea_like.limits.fair_queue import QueuedPermit

__all__ = ["ConcurrencyLimiter", "ConcurrencyStatistics"]


class ConcurrencyStatistics(NamedTuple):
    """A look at a `ConcurrencyLimiter`.

    Attributes:
        concurrency: requests in flight at most.
        in_flight: requests admitted that have not ended.
        waiting: requests that wait.
        admitted: requests admitted since the limiter was made.
        max_in_flight: the most that were in flight at one time.
    """

    concurrency: int
    in_flight: int
    waiting: int
    admitted: int
    max_in_flight: int


class ConcurrencyLimiter(QueuedLimit):
    """At most so many requests in flight, over all backends and calls that share it.

    Waiting requests go in the order of a `FairQueue`. Change ``limiter.concurrency`` at any time: a
    lower one lets what is in flight end.

    Args:
        concurrency: requests in flight at most, at least 1.

    Raises:
        TypeError: the concurrency is not an int.
        ValueError: the concurrency is less than 1.
    """

    def __init__(self, concurrency: int) -> None:
        super().__init__()
        self._concurrency = whole_number("ConcurrencyLimiter: concurrency", concurrency)

    @property
    def concurrency(self) -> int:
        """Requests in flight at most; setting it takes effect at once."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._concurrency = whole_number("ConcurrencyLimiter: concurrency", concurrency)
        self._changed()

    def statistics(self) -> ConcurrencyStatistics:
        """Return how many requests wait and are in flight."""
        queue = self._queue
        return ConcurrencyStatistics(
            self._concurrency, queue.in_flight, queue.waiting, self._admitted, self._max_in_flight
        )

    def _delay(self, now: float, permit: QueuedPermit) -> float:  # noqa: ARG002
        return 0.0 if self._queue.in_flight < self._concurrency else math.inf
