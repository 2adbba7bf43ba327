"""How long iterations take: running quantiles that calls share."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.slice import Outcome

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mellea_like.core.slice import Slice

__all__ = ["LatencyQuantiles", "LatencyStatistics"]


class LatencyStatistics(NamedTuple):
    """What is known of the durations under one key, in seconds.

    Attributes:
        observed: how many durations the window holds, the censored ones included.
        censored: of how many of them only a lower bound is known.
        median: half of the iterations take at most this long; None while too few are known.
        p90: nine in ten take at most this long; None while too few are known.
        p99: 99 in 100 take at most this long; None while too few are known.
    """

    observed: int
    censored: int
    median: float | None
    p90: float | None
    p99: float | None


class LatencyQuantiles:
    """The running quantiles of durations, kept per key, and shared by all who are given it.

    An iteration that was cancelled after t seconds says only that it would have taken longer than
    t. As the slow ones are those that get cancelled when a sibling wins, leaving them out would
    make the quantiles too low. So quantiles are those of the product-limit estimate (Kaplan and
    Meier, "Nonparametric Estimation from Incomplete Observations", JASA 53, 1958), over the latest
    ``window`` durations of a key, so that they follow a drift.

    An observation costs a binary search; a quantile is computed anew when the window has changed by
    2 %.

    Args:
        window: how many durations are kept per key, at least 1.
        least: how many complete durations must be known before there are quantiles, at least 1.
        keys: for how many keys, at least 1; beyond it, the one used longest ago is forgotten.

    Raises:
        TypeError: an argument isn't an int.
        ValueError: an argument is out of its range.
    """

    def __init__(self, window: int = 1000, *, least: int = 10, keys: int = 100) -> None:
        whole_number("LatencyQuantiles: window", window)
        whole_number("LatencyQuantiles: least", least)
        whole_number("LatencyQuantiles: keys", keys)
        if least > window:
            msg = f"LatencyQuantiles: least, {least}, is more than the window, {window}, holds"
            raise ValueError(msg)
        self._window = window
        self._least = least
        self._keys = keys
        self._known: OrderedDict[Hashable, _Durations] = OrderedDict()

    def observe(self, seconds: float, key: Hashable = None, *, censored: bool = False) -> None:
        """Take note of a duration.

        Args:
            seconds: how long it took, at least 0 and finite.
            key: what took so long.
            censored: whether it would have taken longer, had it not been cancelled.

        Raises:
            ValueError: it isn't a duration.
        """
        if not 0 <= seconds < float("inf"):
            msg = f"LatencyQuantiles: a duration is at least 0 seconds and finite, not {seconds!r}"
            raise ValueError(msg)
        durations = self._known.get(key)
        if durations is None:
            durations = self._known[key] = _Durations(self._window)
            if len(self._known) > self._keys:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        durations.add(float(seconds), censored=censored)

    def learn(self, slice_: Slice, key: Hashable = None) -> None:
        """Take note of how long an iteration took, by its record.

        One that errored or was cancelled is censored: a good reply would have taken longer. (So a
        server that refuses at once does not look like a fast one.)

        Args:
            slice_: its record.
            key: what took so long.
        """
        judged = slice_.outcome is Outcome.PASSED or slice_.outcome is Outcome.FAILED
        self.observe(max(0.0, slice_.duration), key, censored=not judged)

    def quantile(self, q: float, key: Hashable = None) -> float | None:
        """Return the duration within which a share ``q`` of the iterations ends.

        Args:
            q: the share, between 0 and 1.
            key: of what.

        Returns:
            Seconds; None while fewer than ``least`` complete durations are known, or too few to
            tell such a quantile at all: ``1 / (1 - q)``. Where the longest ones were all cancelled,
            a lower bound: the longest known duration.

        Raises:
            TypeError: ``q`` isn't a number.
            ValueError: ``q`` is out of its range.
        """
        real_number("LatencyQuantiles: q", q, over=0, under=1)
        durations = self._known.get(key)
        if durations is None or durations.complete < max(self._least, round(1 / (1 - q), 6)):
            return None
        return durations.quantile(q)

    def statistics(self) -> dict[Hashable, LatencyStatistics]:
        """Return what is known under each key.

        Returns:
            A look at each key, the one used longest ago first.
        """
        return {
            key: LatencyStatistics(
                len(durations),
                len(durations) - durations.complete,
                *(self.quantile(q, key) for q in (0.5, 0.9, 0.99)),
            )
            for key, durations in self._known.items()
        }


class _Durations:
    """The latest durations under one key."""

    __slots__ = ("_cached", "_changes", "_latest", "_sorted", "_window", "complete")

    def __init__(self, window: int) -> None:
        self.complete = 0
        self._window = window
        self._latest: deque[tuple[float, bool]] = deque()
        self._sorted: list[tuple[float, bool]] = []  # Of equal ones the complete come first.
        self._cached: dict[float, tuple[int, float]] = {}
        self._changes = 0

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float, *, censored: bool) -> None:
        if len(self._latest) == self._window:
            oldest = self._latest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self.complete -= not oldest[1]
        newest = (seconds, censored)
        self._latest.append(newest)
        insort(self._sorted, newest)
        self.complete += not censored
        self._changes += 1

    def quantile(self, q: float) -> float:
        known = self._cached.get(q)
        if known is not None and (self._changes - known[0]) * 50 < len(self._sorted):
            return known[1]
        value = _product_limit_quantile(self._sorted, q)
        if len(self._cached) >= MOST_CACHED:
            self._cached.clear()
        self._cached[q] = (self._changes, value)
        return value


MOST_CACHED = 16
"""How many different quantiles are remembered under a key."""


def _product_limit_quantile(durations: list[tuple[float, bool]], q: float) -> float:
    """Return the least duration by which a share ``q`` has ended, by the product-limit estimate."""
    left, at_risk = 1.0, len(durations)
    for seconds, censored in durations:
        if not censored:
            left *= 1 - 1 / at_risk
            if left <= 1 - q + 1e-9:
                return seconds
        at_risk -= 1
    return durations[-1][0]
