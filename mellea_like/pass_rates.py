"""Pass rates, coverage, and the effect of more draws: statistics over plain numbers.

An item is a prompt with its requirements. Its record is a pair ``(draws, passes)``. A call that
stops at its first pass has the pair (draws until then, 1). Then the ratio passes / draws is biased
upwards, because a pass at the first draw looks like a rate of 1. So the coverage is estimated from
likelihoods instead. A likelihood is the same whether the draws ended at a fixed number or at the
first pass (Berger and Wolpert, The Likelihood Principle, 1988).

If draws raced and some were cancelled, the record is ``(draws, passes, cut)``, and ``cut`` is the
number of cancelled draws. The draws that ended first are not a random sample, but all draws that
*started* are, because nothing was known about them at that time. So a cancelled draw counts as a
failure for the lower end of an interval of the coverage, and as a pass for the upper end. These
ends are valid however long passes and failures take, but only up to the measured number of draws.
More draws can't be forecast if passes cancelled other draws: such items may be as easy, or as
hard, as those that never passed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from operator import mul
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "Coverage",
    "CoverageCurve",
    "coverage_curve",
    "pass_at_k",
    "pass_at_k_interval",
    "pass_hat_k",
    "pass_rate_interval",
]


def pass_at_k(draws: int, passes: int, k: int) -> float:
    """Estimate how likely it is that at least one of k draws passes.

    This is the unbiased estimate 1 - C(n - c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374),
    for a number of draws n that was fixed in advance.

    Args:
        draws: the number of draws, n.
        passes: the number of passes among them, c.
        k: the number of draws to estimate for, at most n.

    Returns:
        The probability, from 0 to 1.

    Raises:
        ValueError: ``passes`` isn't from 0 to ``draws``, or ``k`` isn't from 1 to ``draws``.
    """
    _check(draws, passes, k)
    return 1 - math.comb(draws - passes, k) / math.comb(draws, k)


def pass_hat_k(draws: int, passes: int, k: int) -> float:
    """Estimate how likely it is that all of k draws pass.

    This is the estimate C(c, k) / C(n, k), which arXiv 2406.12045 calls pass^k.

    Args:
        draws: the number of draws, n.
        passes: the number of passes among them, c.
        k: the number of draws to estimate for, at most n.

    Returns:
        The probability, from 0 to 1.

    Raises:
        ValueError: ``passes`` isn't from 0 to ``draws``, or ``k`` isn't from 1 to ``draws``.
    """
    _check(draws, passes, k)
    return math.comb(passes, k) / math.comb(draws, k)


def pass_rate_interval(draws: int, passes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's confidence interval (1927) for the pass rate of one item.

    The confidence is approximate: it is right on average over all rates. For rates near 0 or 1, the
    interval may contain the rate less often (with 10 draws and 95 %, in 84 % of cases for a rate of
    0.017 or 0.983).

    Args:
        draws: the number of draws, fixed in advance, and independent of each other.
        passes: the number of passes among them.
        confidence: the probability that the interval contains the rate, between 0 and 1.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: there is no draw, ``passes`` isn't from 0 to ``draws``, or ``confidence`` is
            out of range.
    """
    if draws == 0:
        msg = "there is no draw, so nothing is known about the pass rate"
        raise ValueError(msg)
    _check(draws, passes, 1)
    if not 0 < confidence < 1:
        msg = f"confidence must be between 0 and 1, not {confidence!r}"
        raise ValueError(msg)
    rate, z = passes / draws, NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (rate + z * z / (2 * draws)) / (1 + z * z / draws)
    half = (
        z / (1 + z * z / draws) * math.sqrt(rate * (1 - rate) / draws + z * z / (4 * draws * draws))
    )
    # Rounding must not exclude the rate itself from the interval.
    return max(0.0, min(middle - half, rate)), min(1.0, max(middle + half, rate))


def pass_at_k_interval(
    draws: int, passes: int, k: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Return an interval for the chance that at least one of k draws of one item passes.

    Each end is 1 - (1 - p)^k, where p is the same end of the `pass_rate_interval`. If the estimate
    of `pass_at_k` is outside this interval, the interval is extended to the estimate.

    Args:
        draws: the number of draws, fixed in advance.
        passes: the number of passes among them.
        k: the number of draws to estimate for, at least 1. It may be more than ``draws``.
        confidence: the probability that the interval contains the chance, between 0 and 1.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: there is no draw, ``passes`` isn't from 0 to ``draws``, ``k`` is below 1, or
            ``confidence`` is out of range.
    """
    if k < 1:
        msg = f"k must be at least 1, not {k}"
        raise ValueError(msg)
    low, high = (1 - (1 - p) ** k for p in pass_rate_interval(draws, passes, confidence))
    if k > draws:
        return low, high
    estimate = pass_at_k(draws, passes, k)
    return min(low, estimate), max(high, estimate)


def _check(draws: int, passes: int, k: int) -> None:
    if not 0 <= passes <= draws:
        msg = f"{passes} of {draws} draws can't have passed"
        raise ValueError(msg)
    if not 1 <= k <= draws:
        msg = f"k must be between 1 and the number of draws ({draws}), not {k}"
        raise ValueError(msg)


# --- coverage by number of draws ------------------------------------------------------------------

FURTHEST = 4
"""Forecasts extend to this multiple of the measured draws (tried in `benchmarks/forecasts.py`)."""

RATES = tuple(math.sin(math.pi * n / 200) ** 2 for n in range(101))
"""A grid of possible pass rates, denser near 0 and 1, where counts distinguish them better.

The smallest above 0 is 1 in 4,050.
"""

NEAR = NormalDist().inv_cdf(0.975) ** 2 / 2
"""How far the log likelihood at the ends of a 95 % interval is below its maximum (Wilks 1938)."""

_Weights: TypeAlias = "dict[int, float]"
"""Maps the index of a rate in `RATES` to the share of items that have this rate.

The share of a rate that is left out is 0.
"""


class Coverage(NamedTuple):
    """The share of items that pass; an item passes if at least one of its draws does.

    Attributes:
        draws: the number of draws of each item.
        share: the estimated share of the items that pass, from 0 to 1. If any draw was cancelled,
            it is the middle of the interval. If none was, it is the most likely share, as long as
            ``draws`` is at most the largest number of draws that an item had. For more draws, it is
            the middle of the interval, but at least the most likely share at that largest number.
        low: the lower end of the share's 95 % interval.
        high: the upper end of the interval.
        extrapolated: whether all items had fewer draws.
    """

    draws: int
    share: float
    low: float
    high: float
    extrapolated: bool


@dataclass(frozen=True)
class CoverageCurve:
    """Estimates the coverage for any number of draws, from the draws of many items.

    Nothing is assumed about how pass rates are distributed over items. An interval contains the
    results of all distributions that fit the draws nearly as well as the best one, with a log
    likelihood that is at most 1.92 lower. So an interval is wide if the draws say little, as with
    one draw of each item. The 95 % are approximate: with 20 items, an interval may contain the
    truth in only 87 % of runs. Pass rates above 0 but below 1/4050 are not represented, so for
    items with thousands of draws of which hardly any pass, the coverage is overestimated.

    If draws of an item were cancelled and another one passed, nothing is known about more draws
    than were measured, except that the coverage doesn't fall.

    Args:
        shown: the number of items for each triple of draws, passes and cancelled draws.
        reach: the largest number of draws that an item has, including cancelled ones.
    """

    shown: Mapping[tuple[int, int, int], int]
    reach: int
    _ends: dict[tuple[int, bool], float] = field(
        default_factory=dict[tuple[int, bool], float], compare=False, repr=False
    )

    @property
    def cut(self) -> int:
        """The number of draws that were cancelled."""
        return sum(cut * items for (_, _, cut), items in self.shown.items())

    @cached_property
    def raced(self) -> bool:
        """Whether any item had both a pass and cancelled draws."""
        return any(passes and cut for _, passes, cut in self.shown)

    @property
    def furthest(self) -> int:
        """The largest number of draws to forecast for.

        It is four times the measured number, or the measured number itself if draws ``raced``.
        """
        return self.reach if self.raced else FURTHEST * self.reach

    def at(self, draws: int) -> Coverage:
        """Estimate the coverage and its 95 % interval.

        Args:
            draws: the number of draws of each item, at least 1.

        Returns:
            The coverage of all items of this kind, not only of those that were seen.
        """
        low, high = self._end(draws, upper=False), self._end(draws, upper=True)
        middle = (low + high) / 2
        if not self.cut:
            known = self._low.mean(_coverage(min(draws, self.reach)))
            middle = known if draws <= self.reach else max(middle, known)
        return Coverage(draws, min(max(middle, low), high), low, high, draws > self.reach)

    @cached_property
    def hopeless(self) -> float:
        """The upper end of the 95 % interval of the share of items that can never pass.

        The lower end is 0, because no number of draws distinguishes "never" from "hardly ever".
        """
        if self.raced:
            return 1 - self._end(self.reach, upper=False)
        return self._low.highest([float(rate == 0) for rate in RATES])

    def needed(self, target: float, *, surely: bool = False) -> int | None:
        """Find the smallest number of draws with which the coverage reaches a target.

        Args:
            target: the share of items, between 0 and 1.
            surely: whether the lower end of the 95 % interval must reach the target; otherwise the
                estimated share must.

        Returns:
            The number of draws; None if ``furthest`` draws are too few, because forecasts don't
            extend further.
        """

        def reached(draws: int) -> bool:
            if surely:
                return self._end(draws, upper=False) >= target
            return self.at(draws).share >= target

        found = bisect_left(range(1, self.furthest + 1), True, key=reached)
        return found + 1 if found < self.furthest else None

    def next_passes(self, failures: int) -> float:
        """Return the chance that an item's next draw passes after ``failures`` failed draws."""
        mixture = self._low
        missed = 1 - mixture.mean(_coverage(failures))
        return 1 - (1 - mixture.mean(_coverage(failures + 1))) / missed if missed > 0 else 1.0

    @cached_property
    def _low(self) -> _Mixture:
        """The pass rates if all cancelled draws had failed."""
        return self._mixture(0)

    @cached_property
    def _high(self) -> _Mixture:
        """The pass rates if all cancelled draws had passed."""
        return self._mixture(1) if self.cut else self._low

    def _mixture(self, of_cut: int) -> _Mixture:
        counts: Counter[tuple[int, int]] = Counter()
        for (draws, passes, cut), items in self.shown.items():
            counts[draws + cut, passes + cut * of_cut] += items
        return _Mixture(counts)

    def _end(self, draws: int, *, upper: bool) -> float:
        if self.raced and draws > self.reach:
            return 1.0 if upper else self._end(self.reach, upper=False)
        if (draws, upper) not in self._ends:
            of_rate = _coverage(draws)
            end = (
                self._high.highest(of_rate)
                if upper
                else 1 - self._low.highest([1 - share for share in of_rate])
            )
            if draws > 1:
                # Coverage never falls with more draws, although the search may find a worse
                # optimum. So an end is at least that of the next smaller power of two.
                end = max(end, self._end(2 ** ((draws - 1).bit_length() - 1), upper=upper))
            self._ends[draws, upper] = min(max(end, 0.0), 1.0)  # The weights' sum is rounded.
        return self._ends[draws, upper]


def coverage_curve(seen: Iterable[tuple[int, int] | tuple[int, int, int]]) -> CoverageCurve:
    """Estimate, from the draws of many items, how coverage grows with the number of draws.

    Args:
        seen: for each item, the number of draws that were judged, the number that passed and, if
            draws raced, the number that were cancelled. If an item occurs several times, add up
            its numbers first. Items without any draw are left out.

    Returns:
        The curve.

    Raises:
        ValueError: no draw was judged, or passes exceed draws.
    """
    triples = ((item[0], item[1], item[2] if len(item) > 2 else 0) for item in seen)  # noqa: PLR2004 (a pair or a triple)
    shown = Counter((draws, passes, cut) for draws, passes, cut in triples if draws or cut)
    for draws, passes, _ in shown:
        if draws or passes:
            _check(draws, passes, 1)
    if not any(draws for draws, _, _ in shown):
        msg = "there is nothing to fit: no item has any draws"
        raise ValueError(msg)
    return CoverageCurve(shown, max(draws + cut for draws, _, cut in shown))


def _coverage(draws: int) -> list[float]:
    return [1 - (1 - rate) ** draws for rate in RATES]


class _Mixture:
    """The most likely distribution of pass rates over items: the share of each of the `RATES`.

    The distribution is the nonparametric maximum-likelihood estimate (Laird, JASA 73, 1978). It is
    found with Wang's method (JRSS B 69, 2007), which takes Newton steps among the rates in use and
    the rates at the gradient's peaks.
    """

    def __init__(self, counts: Mapping[tuple[int, int], int]) -> None:
        self._items = sum(counts.values())
        self._shares = [items / self._items for items in counts.values()]
        likelihoods = [_likelihoods(*shown) for shown in counts]
        self._columns = list(zip(*likelihoods, strict=True))
        flat = [0.0] * len(RATES)
        # Each item's best rate is among them: far from it, the likelihood of thousands of draws is
        # too small for a float.
        places = {*range(0, len(RATES), 5), *(each.index(1.0) for each in likelihoods)}
        start = dict.fromkeys(places, 1 / len(places))
        self.best, self._top = self._climb(start, flat, 1e-6 / self._items)

    def mean(self, of_rate: Sequence[float]) -> float:
        """Estimate the mean of a quantity over items; ``of_rate`` has its value at each rate."""
        return _mean(self.best, of_rate)

    def highest(self, of_rate: Sequence[float]) -> float:
        """Return the highest mean of ``of_rate`` among distributions with a nearly best fit."""
        weights = fitting = self.best
        lack = NEAR / self._items
        low, high, pull = 0.0, math.inf, 2 * lack
        most = self.mean(of_rate)
        for _ in range(24):
            tilt = [pull * value for value in of_rate]
            weights, height = self._climb(weights, tilt, 0.02 * lack)
            value = _mean(weights, of_rate)
            near = self._top - height <= 1.05 * lack
            # The best distribution may jump past all those that fit, as the pull grows.
            fitting = weights if near else self._toward(weights, fitting, lack)
            most = max(most, _mean(fitting, of_rate))
            if abs(self._top - height - lack) < 0.05 * lack or (
                near and max(of_rate) - value < 1e-6  # noqa: PLR2004 (there is no more)
            ):
                break
            if near:
                low = pull
            else:
                high = pull
            pull = (
                math.sqrt(low * high) if low and high < math.inf else pull * (4 if near else 0.25)
            )
        return min(most, max(of_rate))

    def _toward(self, weights: _Weights, fitting: _Weights, lack: float) -> _Weights:
        """Mix ``fitting`` with as much of ``weights`` as possible while the mixture still fits.

        A distribution fits if its mean log likelihood is at most ``lack`` below the best one's.
        """
        flat, low, high = [0.0] * len(RATES), 0.0, 1.0
        for _ in range(12):  # The log likelihood is concave, so it falls only once on the way.
            share = (low + high) / 2
            height, _fitted = self._value(_mixed(fitting, weights, share), flat)
            low, high = (share, high) if self._top - height <= lack else (low, share)
        return _mixed(fitting, weights, low)

    def _climb(
        self, weights: _Weights, tilt: Sequence[float], lack: float
    ) -> tuple[_Weights, float]:
        """Maximize mean log likelihood plus mean ``tilt``; return weights and log likelihood."""
        value, fitted = self._value(weights, tilt)
        for _ in range(60):
            ratios = list(map(float.__truediv__, self._shares, fitted))
            slopes = [
                sum(map(mul, ratios, c)) + t for c, t in zip(self._columns, tilt, strict=True)
            ]
            mean = _mean(weights, slopes)
            if max(slopes) - mean < lack:  # No distribution is better by more.
                break
            # If many rates are equally good, as for a coverage of nearly 1, the first is enough.
            around = zip([-math.inf, *slopes], slopes, [*slopes[1:], -math.inf], strict=False)
            peaks = (
                place
                for place, (left, slope, right) in enumerate(around)
                if slope > mean and left < slope >= right
            )
            there = self._newton({**dict.fromkeys(peaks, 0.0), **weights}, slopes, fitted)
            step, before, mixed = 1.0, value, weights
            while step > 1e-6:  # noqa: PLR2004 (no further)
                mixed = _mixed(weights, there, step)
                mixed = {place: share for place, share in mixed.items() if share > 1e-13}  # noqa: PLR2004 (none)
                total = sum(mixed.values())
                mixed = {place: share / total for place, share in mixed.items()}
                value, fitted = self._value(mixed, tilt)
                if value > before:
                    break
                step /= 2
            else:
                value, fitted = self._value(weights, tilt)
                break
            weights = mixed
        return weights, value - _mean(weights, tilt)

    def _value(self, weights: _Weights, tilt: Sequence[float]) -> tuple[float, list[float]]:
        fitted = [0.0] * len(self._shares)
        for place, weight in weights.items():
            fitted = [
                sum_ + weight * x for sum_, x in zip(fitted, self._columns[place], strict=True)
            ]
        if min(fitted) <= 0:
            return -math.inf, fitted
        likely = sum(map(mul, self._shares, map(math.log, fitted)))
        return likely + _mean(weights, tilt), fitted

    def _newton(
        self, start: _Weights, slopes: Sequence[float], fitted: Sequence[float]
    ) -> _Weights:
        """Maximize the quadratic approximation of the objective over non-negative weights."""
        scaled = {
            place: [x / fit for x, fit in zip(self._columns[place], fitted, strict=True)]
            for place in start
        }
        bend: dict[tuple[int, int], float] = {}
        for a, column in scaled.items():
            weighed = list(map(mul, self._shares, column))
            bend.update({(a, b): sum(map(mul, weighed, scaled[b])) for b in start})
        ridge = 1e-9 * max(bend[place, place] for place in start)
        here = dict(start)
        while True:
            moved = {place: here.get(place, 0.0) - weight for place, weight in start.items()}
            rows = [
                [
                    *(bend[a, b] + ridge * (a == b) for b in here),
                    1.0,
                    slopes[a] - sum(bend[a, b] * by for b, by in moved.items()),
                ]
                for a in here
            ]
            rows.append([*[1.0] * len(here), 0.0, 0.0])  # The weights still add up to one.
            change = dict(zip(here, _solved(rows), strict=False))
            step, first = 1.0, None
            for place, by in change.items():
                if by < 0 and here[place] + step * by <= 0:
                    step, first = here[place] / -by, place
            here = {place: here[place] + step * by for place, by in change.items()}
            if first is None:
                return here
            del here[first]


def _mean(weights: _Weights, of_rate: Sequence[float]) -> float:
    return sum(of_rate[place] * weight for place, weight in weights.items())


def _mixed(start: _Weights, end: _Weights, step: float) -> _Weights:
    return {
        place: (1 - step) * start.get(place, 0.0) + step * end.get(place, 0.0)
        for place in {*end, *start}
    }


def _likelihoods(draws: int, passes: int) -> list[float]:
    """Return, for each rate, the likelihood of an item's draws, relative to the best rate's."""
    logs = [-math.inf if passes else 0.0]
    logs += [passes * math.log(p) + (draws - passes) * math.log1p(-p) for p in RATES[1:-1]]
    logs.append(-math.inf if passes < draws else 0.0)
    top = max(logs)
    return [math.exp(log - top) for log in logs]


def _solved(rows: list[list[float]]) -> list[float]:
    """Solve linear equations by Gaussian elimination; each row ends with its right side."""
    size = len(rows)
    for n in range(size):
        pivot = max(range(n, size), key=lambda row: abs(rows[row][n]))
        rows[n], rows[pivot] = rows[pivot], rows[n]
        for row in range(n + 1, size):
            if factor := rows[row][n] / rows[n][n]:
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[n], strict=True)]
    found = [0.0] * size
    for n in reversed(range(size)):
        rest = sum(map(mul, rows[n][n + 1 : size], found[n + 1 :]))
        found[n] = (rows[n][size] - rest) / rows[n][n]
    return found
