"""As wide as the pass rate asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number
from mellea_like.sampling.schedules.base import BaseSchedule, Go
from mellea_like.sampling.schedules.pass_rates import PassRates, RateKey, key_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts, Progress, SchedulePlan
    from mellea_like.sampling.schedules.pass_rates import Beta

__all__ = ["Adaptive", "width_for"]


@dataclass(frozen=True, slots=True)
class Adaptive(BaseSchedule):
    """Starts few iterations where most pass, and many where few do.

    With k iterations in flight, each of which passes with probability p, a call waits for about
    1 / (k p) iterations' time until one passes; and then about k requests are in flight that are
    paid for and not needed. At a ``price`` per request the two together cost 1 / (k p) + k price,
    which is least for k = sqrt(1 / (p price)). So many are started, at least 1 and at most
    ``concurrency_budget``.

    p is the posterior mean of the pass rate: what earlier calls taught, then, with each failure of
    this call, less. So a call that turns out to be hard gets wider. The turns are pooled.

    Args:
        price: what one more request costs, in units of an iteration's time, over 0. At 0.1 a
            request may be spent to save a tenth of an iteration's time. At the default, where calls
            differ in how hard they are, about as many requests are made as with `Eager` and half
            the ``concurrency_budget``.
        rates: the pass rates known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.
        key: what the pass rate is kept under: anything hashable, or a function that takes
            `CallFacts` and returns it. By default the names of the call's requirements.
        strength: as how many draws what earlier calls taught counts at most, over 0. Calls under
            the same key differ; the fewer, the sooner a call's own failures tell.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    price: float = 0.9
    rates: PassRates = field(default_factory=PassRates)
    key: RateKey = None
    strength: float = 2.5

    def __post_init__(self) -> None:
        real_number("Adaptive: price", self.price, over=0)
        real_number("Adaptive: strength", self.strength, over=0)
        if not isinstance(self.rates, PassRates):
            msg = f"Adaptive: rates is a PassRates, not {self.rates!r}"
            raise TypeError(msg)

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        key = key_of(self.key, facts)
        belief = self.rates.parameters(key).at_most(self.strength)
        return _Plan(self, facts.concurrency_budget, key, belief)


def width_for(pass_rate: float, price: float, most: int) -> int:
    """Return how many iterations to keep in flight, between 1 and the most there may be."""
    return max(1, round(min(most, math.sqrt(1 / pass_rate / price))))


class _Plan:
    """Keeps as many iterations in flight as the call's failures so far suggest."""

    __slots__ = ("_belief", "_key", "_most", "_schedule")

    def __init__(self, schedule: Adaptive, most: int, key: Hashable, belief: Beta) -> None:
        self._schedule = schedule
        self._most = most
        self._key = key
        self._belief = belief

    def decide(self, progress: Progress) -> Go:
        """Fill up to the width, less the chains that permanent errors have ended."""
        pass_rate = self._belief.after_failures(progress.failed).mean
        width = min(
            width_for(pass_rate, self._schedule.price, self._most), self._most - progress.broken
        )
        return Go(max(0, width - len(progress.running)))

    def observe(self, slice_: Slice) -> None:
        """Learn whether a draw passed."""
        self._schedule.rates.learn(self._key, slice_)
