"""The least that any policy needs, and how sure a measured ratio is.

``L`` is how long a reply takes, ``p`` the chance that it passes, ``k`` how many may be under way at
a time, ``s`` the share of calls that succeed. Whatever decides when draws start, and which are left
before they end:

- Each request passes with the chance p. So a call starts s / p requests on average, or more (Wald's
  equation).
- A request that is left at the age tau has taken E[min(L, tau)] on average, and by then it was
  answered with the chance P(L <= tau). So a reply takes at least
  ``l* = min over tau of E[min(L, tau)] / P(L <= tau)`` of work, and a pass l* / p. With k at a time
  a call takes s l* / (k p) on average, or more.

For endless turns s is 1. With n turns it is at most 1 - (1 - p) ** n, and the bounds shrink with
it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Latency(NamedTuple):
    """How long replies take: lognormal, and some of them ``factor`` times as long.

    Attributes:
        median: the median without stragglers, in seconds.
        sigma: the standard deviation of the logarithm.
        stragglers: the share of stragglers.
        factor: how much longer they take.
    """

    median: float = 0.2
    sigma: float = 0.6
    stragglers: float = 0.05
    factor: float = 8.0

    def arrived(self, tau: float) -> float:
        """Return the share of replies that take at most ``tau`` seconds."""
        return self._over_both(tau, self._arrived)

    def work(self, tau: float) -> float:
        """Return the mean of min(L, tau), in seconds."""
        return self._over_both(tau, self._work)

    def mean(self) -> float:
        """Return the mean of L, in seconds."""
        return self.work(math.inf)

    def least_work(self) -> tuple[float, float]:
        """Return l*, and the age tau at which it is best to leave a reply, in seconds."""
        grid = [self.median * math.exp(self.sigma * step / 100) for step in range(-400, 1201)]
        tau = min(grid, key=lambda tau: self.work(tau) / self.arrived(tau))
        return self.work(tau) / self.arrived(tau), tau

    def _over_both(self, tau: float, of: Callable[[float, float], float]) -> float:
        rest = 1 - self.stragglers
        return rest * of(tau, self.median) + self.stragglers * of(tau, self.median * self.factor)

    def _arrived(self, tau: float, median: float) -> float:
        return 1.0 if tau == math.inf else _normal(math.log(tau / median) / self.sigma)

    def _work(self, tau: float, median: float) -> float:
        mean = median * math.exp(self.sigma**2 / 2)
        if tau == math.inf:
            return mean
        z = math.log(tau / median) / self.sigma
        return mean * _normal(z - self.sigma) + tau * (1 - _normal(z))


def least_requests(success: float, pass_rate: float) -> float:
    """Return how many requests a call starts on average, at the least.

    Args:
        success: the share of calls that succeed.
        pass_rate: the chance that a reply passes.

    Returns:
        The bound.
    """
    return success / pass_rate


def least_seconds(success: float, pass_rate: float, width: int, latency: Latency) -> float:
    """Return how long a call takes on average, at the least.

    Args:
        success: the share of calls that succeed.
        pass_rate: the chance that a reply passes.
        width: how many requests may be in flight.
        latency: how long replies take. Replies must be judged when they are whole, not before.

    Returns:
        The bound, in seconds.
    """
    return success * latency.least_work()[0] / (width * pass_rate)


def most_successes(turns: int, pass_rate: float) -> float:
    """Return the share of calls that succeed when all turns are used.

    Args:
        turns: how many requests a call may start.
        pass_rate: the chance that a reply passes.

    Returns:
        The share.
    """
    return 1 - (1 - pass_rate) ** turns


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def interval(
    ratio: Callable[[Sequence[int]], float], calls: int, rounds: int = 200
) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of a ratio of two rows.

    Both rows ran the same calls with the same chances, so calls are drawn again in pairs.

    Args:
        ratio: takes positions of calls; gives the ratio of these calls.
        calls: how many there are.
        rounds: how often calls are drawn again.

    Returns:
        Its ends.
    """
    chance = random.Random(0)
    everyone = range(calls)
    ratios = [ratio(chance.choices(everyone, k=calls)) for _ in range(rounds)]
    return quantile(ratios, 0.025), quantile(ratios, 0.975)


def _normal(z: float) -> float:
    """Return the standard normal distribution function."""
    return (1 + math.erf(z / math.sqrt(2))) / 2
