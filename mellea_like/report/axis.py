"""Axes: where to put ticks, and how to cut a range into bins."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mellea_like.report.quantiles import Sketch

__all__ = ["bins_of", "log_ticks", "nice_step", "ticks"]

_STEPS = (1, 2, 5, 10)
_NARROWEST = 1.07
"""A bin is at least as wide as a few buckets of a sketch: else the buckets show as a comb."""


def nice_step(reach: float, most: int) -> float:
    """Choose the distance between ticks: 1, 2 or 5 times a power of ten.

    Args:
        reach: how long the axis is, greater than 0.
        most: how many ticks there may be, besides that at 0.

    Returns:
        The distance.
    """
    least = reach / most
    power = 10.0 ** math.floor(math.log10(least))
    # Whoever divides by a power of ten may get a little more than what was meant.
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def ticks(reach: float, most: int) -> list[float]:
    """Choose the ticks of an axis that begins at 0.

    Args:
        reach: how long it is, greater than 0.
        most: how many ticks there may be, besides that at 0.

    Returns:
        The ticks, that at 0 included.
    """
    step = nice_step(reach, most)
    return [number * step for number in range(int(reach / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose the ticks of a logarithmic axis.

    Args:
        low: where it begins, greater than 0.
        high: where it ends, greater than ``low``.
        most: how many ticks there may be.

    Returns:
        Ticks: at 1, 2 and 5 times powers of ten, as far as there is room.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [
            factor * 10.0**power
            for power in range(first, last + 1)
            for factor in factors
            if low <= factor * 10.0**power <= high
        ]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def bins_of(sketch: Sketch, most: int) -> tuple[float, float, list[int]]:
    """Cut what a sketch counted into bins of equal width on a logarithmic axis.

    Args:
        sketch: what was counted, at least one value.
        most: how many bins there may be.

    Returns:
        Where the axis begins and ends, and the counts of the bins.
    """
    low = max(sketch.quantile(0.0), sketch.most / 1e6, 1e-6)
    high = max(sketch.most, low)
    if high < low * 1.5:  # All much the same: a bin or a few, in the middle of some room.
        low, high = low / 1.5, high * 1.5
    number = min(most, max(1, int(math.log(high / low) / math.log(_NARROWEST))))
    counts = [0] * number
    for value, count in sketch.values():
        place = math.log(max(value, low) / low) / math.log(high / low)
        counts[min(int(place * number), number - 1)] += count
    return low, high, counts
