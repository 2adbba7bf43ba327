"""Quantiles of a stream of any length, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter

__all__ = ["Sketch"]

_LEAST, _MOST = 1e-9, 1e12


class Sketch:
    """Counts values in buckets whose bounds grow by a constant factor.

    This is DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch with
    relative-error guarantees", PVLDB 12, 2019): each quantile that it gives lies within
    ``accuracy`` of the true one, whatever the values and their order. At 1 % it has at most 2,420
    buckets.

    Args:
        accuracy: the greatest relative error.
    """

    def __init__(self, accuracy: float = 0.01) -> None:
        self._log = math.log1p(2 * accuracy / (1 - accuracy))
        self._centre = 1 - accuracy
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def add(self, value: float) -> None:
        """Count a value.

        Args:
            value: what is not a finite number is left out, and less than 0 counts as 0.
        """
        if not math.isfinite(value):
            return
        value = max(value, 0.0)
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        inside = min(max(value, _LEAST), _MOST)
        self._buckets[math.ceil(math.log(inside) / self._log)] += 1

    def quantile(self, share: float) -> float:
        """Return the least value that a share of the values do not exceed.

        Args:
            share: from 0.0 to 1.0.

        Returns:
            The value; 0.0 where there is none.
        """
        # What floating point adds to 0.95 * 20, say, is no further value.
        rank = max(1, math.ceil(share * self.count - 1e-9))
        seen = 0
        for value, number in self.values():
            seen += number
            if seen >= rank:
                return value
        return 0.0

    def values(self) -> list[tuple[float, int]]:
        """Return what was counted, in ascending order.

        Returns:
            For each bucket that is not empty, a value within its bounds and how often it occurred.
        """
        return [
            (
                min(max(self._centre * math.exp(bucket * self._log), self.least), self.most),
                self._buckets[bucket],
            )
            for bucket in sorted(self._buckets)
        ]
