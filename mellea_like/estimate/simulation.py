"""What items take by schedule: draws of simulated items that are as long as measured ones."""

from __future__ import annotations

import random
from bisect import bisect_left
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from mellea_like.core.conversation import Instruction
from mellea_like.sampling.schedules import CallFacts, CallProgress, Hedged, LatencyQuantiles
from mellea_like.sampling.schedules.expressions import parse_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mellea_like.pass_rates import PassRateFit
    from mellea_like.sampling.schedules import BaseSchedule

__all__ = ["Simulation"]

_SIMULATED = 2000
"""The most items."""

_Lengths: TypeAlias = "tuple[list[float], list[float]]"
"""What draws took, and the sums of their weights up to each."""


class Simulation:
    """Items by a fit, whose draws are as long as measured ones."""

    def __init__(
        self, fit: PassRateFit, ended: Sequence[float], cancelled: Sequence[float]
    ) -> None:
        self._fit = fit
        self._lengths, self._sums = _lengths(ended, cancelled)
        self._known = LatencyQuantiles(window=max(1000, len(ended) + len(cancelled)))
        for lengths, censored in ((ended, False), (cancelled, True)):
            for length in lengths:
                self._known.observe(length, censored=censored)

    @property
    def median(self) -> float:
        """How long half of the draws take at most."""
        return self._lengths[bisect_left(self._sums, self._sums[-1] / 2)]

    def expected(self, name: str, chains: int, turns: int) -> tuple[float, float]:
        """Give the mean number of draws that are begun of an item, and the mean time."""
        schedule = Hedged(latency=self._known) if name == "hedged" else parse_schedule(name)
        facts = CallFacts(Instruction("any"), (), chains, turns, None)
        number = max(200, min(_SIMULATED, 100_000 // (chains * turns)))
        begun, time = 0, 0.0
        for item in range(number):
            chance = random.Random(item)  # The same draws by each schedule, and each time.
            hopeless = chance.random() < self._fit.hopeless
            rate = 0.0 if hopeless else chance.betavariate(self._fit.alpha, self._fit.beta)
            draws, took = self._item(schedule, facts, rate, chance)
            begun += draws
            time += took
        return begun / number, time / number

    def _item(
        self, schedule: BaseSchedule, facts: CallFacts, rate: float, chance: random.Random
    ) -> tuple[int, float]:
        """Draw until one passes or all have failed; give how many are begun, and the time."""
        plan = schedule.begin(facts)
        chains, turns = facts.concurrency_budget, facts.loop_budget
        most, left = chains + schedule.extra, chains * turns
        if schedule.pooled:  # Drawn anew, each turn may be a chain of its own.
            chains, turns = left, 1
        running: list[tuple[float, float, int, bool]] = []  # Ends, began, turns left, passes.
        waiting: list[int] = []  # How many turns those chains have left.
        now, opened, started, failed = 0.0, 0, 0, 0
        while True:
            more, again = most, None
            if plan is not None:
                begun = [began for _, began, _, _ in running]
                more, again = plan.decide(
                    CallProgress(now, begun, opened, started, failed, 0, left, len(waiting))
                )
            for _ in range(min(more, most - len(running), len(waiting) + chains - opened)):
                opened += not waiting
                own = waiting.pop() if waiting else turns
                passes = chance.random() < rate
                (length,) = chance.choices(self._lengths, cum_weights=self._sums)
                heappush(running, (now + length, now, own - 1, passes))
                started += 1
                left -= 1
            if not running:
                return started, now
            if left and again is not None and now < again < running[0][0]:
                now = again
                continue
            now, _, own, passes = heappop(running)
            if passes:
                return started, now
            failed += 1
            if own:
                waiting.append(own)


def _lengths(ended: Iterable[float], cancelled: Iterable[float]) -> _Lengths:
    """Weigh what draws took (Kaplan and Meier); a cancelled one would have taken longer."""
    lengths, cut = sorted(ended), sorted(cancelled)
    sums: list[float] = []
    shorter, weighed = 0, 0.0
    for place, length in enumerate(lengths):
        while shorter < len(cut) and cut[shorter] < length:
            shorter += 1
        weighed += (1 - weighed) / (len(lengths) - place + len(cut) - shorter)
        sums.append(weighed)
    return lengths, sums
