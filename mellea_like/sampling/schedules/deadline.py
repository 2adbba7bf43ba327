"""As many attempts as the time and the risk ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number
from mellea_like.sampling.schedules.base import SLACK, BaseSchedule, Go
from mellea_like.sampling.schedules.latency import LatencyQuantiles
from mellea_like.sampling.schedules.pass_rates import PassRates, RateKey, key_of

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts, Progress, SchedulePlan

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline(BaseSchedule):
    """Spreads as many attempts over the time left as a small risk of failure asks for.

    Needed is the smallest number of attempts of which all fail with a probability of at most
    ``risk``, as far as is known of the pass rate. They need not all run at once: where the time
    left is enough for r rounds one after the other, an r-th of them is started now, at least 1 and
    at most ``concurrency_budget``. A round takes as long as the median iteration; until that is
    known, there is one round. Each failure, and each iteration that takes longer than a round,
    makes the call wider. The turns are pooled.

    When the time is up, the call returns what there is, as for the strategy's ``timeout``.

    Args:
        seconds: how long the call may take, over 0.
        risk: how probable it may be that no attempt passes, between 0 and 1.
        rates: the pass rates known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.
        latency: the durations known so far, per model; likewise.
        key: what the pass rate is kept under: anything hashable, or a function that takes
            `CallFacts` and returns it. By default the names of the call's requirements.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    # Read-only, as the property is that it replaces, which field() keeps from being its default.
    seconds: float = field()  # pyright: ignore[reportIncompatibleMethodOverride]
    risk: float = 0.05
    rates: PassRates = field(default_factory=PassRates)
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)
    key: RateKey = None

    def __post_init__(self) -> None:
        real_number("Deadline: seconds", self.seconds, over=0)
        real_number("Deadline: risk", self.risk, over=0, under=1)
        if not isinstance(self.rates, PassRates):
            msg = f"Deadline: rates is a PassRates, not {self.rates!r}"
            raise TypeError(msg)
        if not isinstance(self.latency, LatencyQuantiles):
            msg = f"Deadline: latency is a LatencyQuantiles, not {self.latency!r}"
            raise TypeError(msg)

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        return _Plan(self, facts)


class _Plan:
    """Keeps in flight what must be, for enough attempts to end in time."""

    __slots__ = ("_belief", "_key", "_model", "_most", "_schedule")

    def __init__(self, schedule: Deadline, facts: CallFacts) -> None:
        self._schedule = schedule
        self._most = facts.concurrency_budget
        self._model = facts.model
        self._key = key_of(schedule.key, facts)
        self._belief = schedule.rates.parameters(self._key)

    def decide(self, progress: Progress) -> Go:
        """Start what those in flight, and those to follow them, can't do in time."""
        schedule, now, running = self._schedule, progress.now, progress.running
        left = schedule.seconds - now
        if left <= 0:
            return Go(0)
        belief = self._belief.after_failures(progress.failed)
        needed = belief.draws_for(schedule.risk, len(running) + progress.turns)
        round_ = schedule.latency.quantile(0.5, self._model)
        rounds = _rounds(left, round_, needed)
        # Each iteration in flight will be followed by others; an overdue one should end soon.
        coming = sum(
            max(1, min(_rounds(schedule.seconds - began, round_, needed), rounds + 1))
            for began in running
        )
        most = self._most - progress.broken
        more = min(math.ceil((needed - coming) / max(1, rounds)), most - len(running))
        if not round_ or rounds == 0 or len(running) + more >= most:
            return Go(max(0, more))
        return Go(max(0, more), schedule.seconds - rounds * round_ + 2 * SLACK)

    def observe(self, slice_: Slice) -> None:
        """Learn whether a draw passed, and how long it took."""
        self._schedule.rates.learn(self._key, slice_)
        self._schedule.latency.learn(slice_, self._model)


def _rounds(seconds: float, round_: float | None, most: int) -> int:
    """Return how many rounds fit into a time, one after the other."""
    if round_ is None:
        return 1
    return most if round_ == 0 else int(min(most, (seconds + SLACK) / round_))
