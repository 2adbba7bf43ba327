"""Pass rates, coverage, and what more draws would bring: statistics over plain numbers.

An item is what is drawn for: a prompt with its requirements. What an item has shown is a pair
``(draws, passes)``. A call that stops at its first pass is such a pair, too: (draws until then, 1).
Its ratio passes / draws is biased upwards (a pass at once counts as a rate of 1), so nothing here
uses it: a likelihood is the same whether the number of draws or the first pass ended the drawing
(Berger and Wolpert, The Likelihood Principle, 1988), and all that follows is made from it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "Coverage",
    "CoverageCurve",
    "PassRateFit",
    "beta_of_calls",
    "coverage_curve",
    "fit_pass_rates",
    "pass_at_k",
    "pass_hat_k",
    "pass_rate_interval",
]


def pass_at_k(draws: int, passes: int, k: int) -> float:
    """Estimate how likely at least one of k draws passes.

    The unbiased estimate 1 - C(n - c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374), for n
    draws whose number was fixed before.

    Args:
        draws: n, how many were made.
        passes: c, how many of them passed.
        k: how many to draw, at most n.

    Returns:
        The probability, from 0 to 1.

    Raises:
        ValueError: not 0 <= passes <= draws, or not 1 <= k <= draws.
    """
    _check(draws, passes, k)
    return 1 - math.comb(draws - passes, k) / math.comb(draws, k)


def pass_hat_k(draws: int, passes: int, k: int) -> float:
    """Estimate how likely all of k draws pass: pass^k, C(c, k) / C(n, k) (arXiv 2406.12045).

    Args:
        draws: n, how many were made.
        passes: c, how many of them passed.
        k: how many to draw, at most n.

    Returns:
        The probability, from 0 to 1.

    Raises:
        ValueError: not 0 <= passes <= draws, or not 1 <= k <= draws.
    """
    _check(draws, passes, k)
    return math.comb(passes, k) / math.comb(draws, k)


def pass_rate_interval(draws: int, passes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return where the pass rate of one item lies: Wilson's interval (1927).

    Args:
        draws: how many were made, their number fixed before.
        passes: how many of them passed.
        confidence: how often the interval is to hold the rate, between 0 and 1.

    Returns:
        Its lower and its upper end.

    Raises:
        ValueError: not 0 <= passes <= draws, no draw, or a confidence out of range.
    """
    _check(draws, passes, 1)
    if not 0 < confidence < 1:
        msg = f"confidence lies between 0 and 1, not {confidence!r}"
        raise ValueError(msg)
    return _wilson(passes / draws, draws, confidence)


def _wilson(rate: float, draws: float, confidence: float = 0.95) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (rate + z * z / (2 * draws)) / (1 + z * z / draws)
    half = (
        z / (1 + z * z / draws) * math.sqrt(rate * (1 - rate) / draws + z * z / (4 * draws * draws))
    )
    # Rounding apart, the interval holds the rate itself.
    return max(0.0, min(middle - half, rate)), min(1.0, max(middle + half, rate))


def _check(draws: int, passes: int, k: int) -> None:
    if not 0 <= passes <= draws:
        msg = f"of {draws} draws {passes} cannot have passed"
        raise ValueError(msg)
    if not 1 <= k <= draws:
        msg = f"k lies between 1 and the number of draws, {draws}, not {k}"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class PassRateFit:
    """How pass rates are spread over items: Beta(alpha, beta), but for a share that never pass.

    Args:
        alpha: the first parameter of the Beta distribution.
        beta: the second.
        hopeless: the share of items that no draw passes, from 0 to 1.
        items: how many items it was fitted to.
        log_likelihood: of the fit.
    """

    alpha: float
    beta: float
    hopeless: float
    items: int
    log_likelihood: float

    def coverage(self, k: int) -> float:
        """Predict the share of items of which at least one of k draws passes.

        Args:
            k: how many draws an item gets.

        Returns:
            From 0 to 1.
        """
        return (1 - self.hopeless) * (1 - math.exp(self._log_kernel(k, 0)))

    def still_hopeful(self, draws: int) -> float:
        """Say how likely an item can pass at all of which that many draws have failed.

        Args:
            draws: how many have failed.

        Returns:
            From 0 to 1.
        """
        alive = (1 - self.hopeless) * math.exp(self._log_kernel(draws, 0))
        return alive / (alive + self.hopeless) if alive else 0.0

    def _log_kernel(self, draws: int, passes: int) -> float:
        return _log_beta(self.alpha + passes, self.beta + draws - passes) - _log_beta(
            self.alpha, self.beta
        )


def fit_pass_rates(seen: Iterable[tuple[int, int]]) -> PassRateFit:
    """Fit the spread of pass rates to what items have shown.

    A beta-binomial distribution with a share of zeros: an item with c passes of n draws has the
    likelihood (1 - h) B(a + c, b + n - c) / B(a, b), and one without a pass h besides. The fit is
    the most likely one under weak priors, which matter where items have few draws each: log a and
    log b are normal with mean 0 and deviation 2, logit h with mean -3.5 and deviation 1 (a median
    of 3 hopeless items in a hundred; 0.4 to 18 in 95 % of cases). They were not fitted to the tasks
    of the benchmark: chosen anew on one half of these, priors predict the other half's coverage
    with 100 draws from 8 with a mean absolute error of 0.050, and these with 0.052.

    Args:
        seen: (draws, passes) of each item; items without draws are left out.

    Returns:
        The fit.

    Raises:
        ValueError: nothing was drawn, or passes exceed draws.
    """
    counts = Counter((draws, passes) for draws, passes in seen if draws)
    log_posterior = _log_posterior_of(counts)
    best = _most_likely(log_posterior)
    return PassRateFit(*_parameters(best), counts.total(), log_posterior(best))


def beta_of_calls(
    counts: Mapping[tuple[int, int], int], prior: tuple[float, float]
) -> tuple[float, float]:
    """Fit how the pass rates of calls are spread: the beta-binomial alone, none being hopeless.

    The most likely a and b (Griffiths, Biometrics 29, 1973), where log a and log b are normal
    around those of a prior, with deviation 1: as few calls say little.

    Args:
        counts: how many calls showed each (draws, passes); those without a draw say nothing.
        prior: a and b where there are no calls.

    Returns:
        a and b, to within 10 %.
    """
    around = [math.log(value) for value in prior]

    def log_posterior(point: Sequence[float]) -> float:
        a, b = map(math.exp, point)
        base, total = _log_beta(a, b), 0.0
        for (draws, passes), calls in counts.items():
            total += calls * (_log_beta(a + passes, b + draws - passes) - base)
        return total - sum((x - middle) ** 2 for x, middle in zip(point, around, strict=True)) / 2

    a, b = map(math.exp, _climb(log_posterior, around, finest=0.1))
    return a, b


def _log_posterior_of(
    counts: Mapping[tuple[int, int], int],
) -> Callable[[Sequence[float]], float]:
    for draws, passes in counts:
        _check(draws, passes, 1)
    if not counts:
        msg = "there is nothing to fit: no item has a draw"
        raise ValueError(msg)

    def log_posterior(point: Sequence[float]) -> float:
        alpha, beta, hopeless = _parameters(point)
        base, total = _log_beta(alpha, beta), 0.0
        for (draws, passes), items in counts.items():
            log = _log_beta(alpha + passes, beta + draws - passes) - base
            chance = (1 - hopeless) * math.exp(log) + (hopeless if not passes else 0)
            total += items * (math.log(chance) if chance > 0 else log)
        return total + _log_prior(point)

    return log_posterior


def _most_likely(log_posterior: Callable[[Sequence[float]], float]) -> Sequence[float]:
    starts = ((0.0, 0.0, -2.0), (-1.0, 1.0, -4.0))
    return max((_climb(log_posterior, start) for start in starts), key=log_posterior)


def _parameters(point: Sequence[float]) -> tuple[float, float, float]:
    return math.exp(point[0]), math.exp(point[1]), 1 / (1 + math.exp(-point[2]))


def _log_prior(point: Sequence[float]) -> float:
    return -(point[0] ** 2 + point[1] ** 2) / (2 * 2**2) - (point[2] + 3.5) ** 2 / 2


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _climb(
    value: Callable[[Sequence[float]], float], start: Sequence[float], finest: float = 1e-4
) -> Sequence[float]:
    """Find a maximum by steps along the axes that shrink (Hooke and Jeeves 1961)."""
    here, height, step = list(start), value(start), 1.0
    while step > finest:
        moved = False
        for axis in range(len(here)):
            for by in (step, -step):
                there = [*here]
                there[axis] += by
                if (other := value(there)) > height:
                    here, height, moved = there, other, True
                    break
        if not moved:
            step /= 2
    return here


# --- coverage by number of draws ------------------------------------------------------------------

MOST_DRAWS = 1024
"""How many draws of an item are looked at, at most."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of items of which at least one of so many draws passes.

    Args:
        draws: how many draws each item gets.
        share: of the items, from 0 to 1.
        low: the lower end of its 95 % interval.
        high: the upper end.
    """

    draws: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CoverageCurve:
    """Coverage by number of draws: as it was measured, and as the fit predicts it.

    Args:
        fit: the most likely spread of pass rates.
        plausible: spreads drawn from the posterior of the fit, for intervals.
        measured: the coverage with 1, 2, ... draws, as far as items had so many.
    """

    fit: PassRateFit
    plausible: tuple[PassRateFit, ...]
    measured: tuple[Coverage, ...]

    def predicted(self, draws: int) -> Coverage:
        """Predict the coverage, with the interval that holds it with a probability of 95 %.

        Args:
            draws: how many draws each item gets.

        Returns:
            The coverage. It is that of all items of this kind, not only of those that were seen.
        """
        share = self.fit.coverage(draws)
        low, high = _middle(fit.coverage(draws) for fit in self.plausible)
        return Coverage(draws, share, min(low, share), max(high, share))

    @property
    def hopeless(self) -> tuple[float, float]:
        """Where the share of hopeless items lies with a probability of 95 %."""
        low, high = _middle(fit.hopeless for fit in self.plausible)
        return min(low, self.fit.hopeless), max(high, self.fit.hopeless)

    def needed(self, target: float, *, surely: bool = False) -> int | None:
        """Find the smallest number of draws with which the predicted coverage reaches a target.

        Args:
            target: the share of items, between 0 and 1.
            surely: whether the lower end of the interval has to reach it.

        Returns:
            The number; None where 1024 draws are too few: the target is more than the share of
            items that are not hopeless, or the rest pass so rarely.
        """

        def reached(draws: int) -> bool:
            if surely:
                return self.predicted(draws).low >= target
            return self.fit.coverage(draws) >= target

        too_few, enough = 0, MOST_DRAWS
        if not reached(enough):
            return None
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if reached(middle) else (middle, enough)
        return enough


def coverage_curve(seen: Iterable[tuple[int, int, int | None]]) -> CoverageCurve:
    """Measure the coverage by number of draws, and fit what predicts it.

    The measured part is the product-limit estimate (Kaplan and Meier 1958) of the draws until the
    first pass: an item that never passed says nothing about draws that it didn't get. Its interval
    is Wilson's, for as many items as would give the estimate's variance (Greenwood 1926). Those of
    the predicted part come from the posterior of the fit, sampled by stretch moves (Goodman and
    Weare 2010) from a fixed seed.

    Args:
        seen: (draws, passes, the number of the first draw that passed or None) of each item;
            items without draws are left out.

    Returns:
        The curve.

    Raises:
        ValueError: nothing was drawn, or passes exceed draws.
    """
    shown = Counter(item for item in seen if item[0])
    counts: Counter[tuple[int, int]] = Counter()
    for (draws, passes, _), items in shown.items():
        counts[draws, passes] += items
    log_posterior = _log_posterior_of(counts)
    best = _most_likely(log_posterior)
    fits = tuple(
        PassRateFit(*_parameters(point), counts.total(), height)
        for point, height in [(best, log_posterior(best)), *_stretched(log_posterior, best)]
    )
    return CoverageCurve(fits[0], fits[1:], tuple(_measured(shown)))


def _measured(shown: Mapping[tuple[int, int, int | None], int]) -> Iterable[Coverage]:
    passed: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for (draws, _, first), items in shown.items():
        (ended if first is None else passed)[first or draws] += items
    at_risk = known = passed.total() + ended.total()
    left, variance = 1.0, 0.0  # The share not passed yet, and the relative variance of it.
    for draws in range(1, min(max((*passed, *ended)), MOST_DRAWS) + 1):
        now = passed[draws]
        left *= 1 - now / at_risk
        worth: float = known
        if left and now:
            variance += now / (at_risk * (at_risk - now))
        if left and variance:
            worth = (1 - left) / (left * variance)
        low, high = _wilson(1 - left, worth)
        yield Coverage(draws, 1 - left, low, high)
        at_risk -= now + ended[draws]
        known -= ended[draws]
        if not at_risk:
            return


def _middle(values: Iterable[float]) -> tuple[float, float]:
    """Return what 95 % of some values lie between."""
    ordered = sorted(values)
    outside = len(ordered) // 40
    return ordered[outside], ordered[-1 - outside]


WALKERS, ROUNDS = 16, 150


def _stretched(
    height_of: Callable[[Sequence[float]], float], start: Sequence[float]
) -> Iterable[tuple[Sequence[float], float]]:
    """Draw points from a log density."""
    chance = random.Random(0)  # The same figures each time.
    points: list[Sequence[float]] = [
        [value + chance.gauss(0, 0.1) for value in start] for _ in range(WALKERS)
    ]
    heights = [height_of(point) for point in points]
    for turn in range(ROUNDS):
        for walker, point in enumerate(points):
            other = points[(walker + chance.randrange(1, WALKERS)) % WALKERS]
            stretch = (1 + chance.random()) ** 2 / 2
            there = [b + stretch * (a - b) for a, b in zip(point, other, strict=True)]
            height = height_of(there)
            gain = (len(start) - 1) * math.log(stretch) + height - heights[walker]
            if math.log(1 - chance.random()) < gain:
                points[walker], heights[walker] = there, height
        if turn >= ROUNDS // 3:
            yield from zip(points, heights, strict=True)
