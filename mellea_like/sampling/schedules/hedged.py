"""A second chance for what takes too long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.sampling.schedules.base import SLACK, BaseSchedule, Go
from mellea_like.sampling.schedules.latency import LatencyQuantiles

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts, Progress, SchedulePlan

__all__ = ["Hedged"]


@dataclass(frozen=True, slots=True)
class Hedged(BaseSchedule):
    """Starts another iteration beside one that takes unusually long.

    An iteration that is older than most get (than the ``quantile`` of the durations known so far,
    per model) no longer counts towards ``concurrency_budget``, so another takes its place. It goes
    on all the same. Never more than ``concurrency_budget + extra`` are in flight. The turns are
    pooled: while a chain lags, fresh chains take its turns. (Hedged requests: Dean and Barroso,
    "The Tail at Scale", CACM 56(2), 2013.)

    Until enough durations are known (see `LatencyQuantiles`), nothing is hedged.

    Args:
        quantile: the share of iterations that do not take unusually long, between 0 and 1.
        extra: how many iterations beyond ``concurrency_budget`` may be in flight, at least 1.
        latency: the durations known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    quantile: float = 0.8
    # Read-only, as the property is that it replaces.
    extra: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)

    def __post_init__(self) -> None:
        real_number("Hedged: quantile", self.quantile, over=0, under=1)
        whole_number("Hedged: extra", self.extra)
        if not isinstance(self.latency, LatencyQuantiles):
            msg = f"Hedged: latency is a LatencyQuantiles, not {self.latency!r}"
            raise TypeError(msg)

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        return _Plan(self, facts.concurrency_budget, facts.model)


class _Plan:
    """Keeps as many iterations in flight as may be, not counting those that take too long."""

    __slots__ = ("_model", "_schedule", "_width")

    def __init__(self, schedule: Hedged, width: int, model: str | None) -> None:
        self._schedule = schedule
        self._width = width
        self._model = model

    def decide(self, progress: Progress) -> Go:
        """Fill up to the width, less the chains that permanent errors have ended."""
        width = max(0, self._width - progress.broken)
        running = progress.running
        usual = self._schedule.latency.quantile(self._schedule.quantile, self._model)
        if usual is None:
            return Go(max(0, width - len(running)))
        old = progress.now + SLACK - usual
        counting = [began for began in running if began > old]
        most = width + self._schedule.extra if width else 0
        more = max(0, min(width - len(counting), most - len(running)))
        if len(running) + more >= most:
            return Go(more)
        return Go(more, min((*counting, progress.now) if more else counting) + usual)

    def observe(self, slice_: Slice) -> None:
        """Learn how long an iteration took."""
        self._schedule.latency.learn(slice_, self._model)
