"""The figures of a run, gathered from its items one by one in bounded memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Any

from mellea_like.core.generation import Usage
from mellea_like.report.attempts import (
    FATES,
    Money,
    fate_of,
    prices_of,
    problems_of,
    usage_of,
    winner_of,
)
from mellea_like.report.intervals import Spans
from mellea_like.report.quantiles import Sketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


__all__ = ["LISTED", "RunFigures", "Tally", "figures_of", "iterations_until", "why", "wilson"]

MOST_NAMES = 200
"""Requirements and kinds of error that are counted by name; the rest goes together."""

OTHERS = "(others)"

LISTED = 10
"""Items in each list: the slowest, and those that failed."""


@dataclass(slots=True)
class Tally:
    """How often a requirement was met.

    Args:
        counts: verdicts by their status.
    """

    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def judged(self) -> int:
        """How many replies it was decided for."""
        return self.counts["passed"] + self.counts["failed"]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Say where a share may lie, with 95 % confidence.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22, 1927.

    Args:
        successes: how often it was so.
        trials: how often it could have been, at least 1.

    Returns:
        The least and the greatest share, from 0.0 to 1.0.
    """
    z = 1.959964
    share, part = successes / trials, z * z / trials
    middle = share + part / 2
    half = z * math.sqrt(share * (1 - share) / trials + part / (4 * trials))
    return max(0.0, (middle - half) / (1 + part)), min(1.0, (middle + half) / (1 + part))


class RunFigures:
    """The figures of a run.

    Args:
        run: the run's record.
    """

    def __init__(self, run: Mapping[str, Any]) -> None:
        self.run = run
        self.prices = prices_of(run)
        self.statuses: Counter[str] = Counter()
        self.repeated = 0
        """Items that were begun more than once."""
        self.usage = Usage()
        self.money = Money()
        self.fates: dict[str, Usage] = dict.fromkeys(FATES, Usage())
        self.requirements: dict[str, Tally] = {}
        self.errors: Counter[str] = Counter()
        self.until_passed: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.latency = Sketch()
        self.costs = Sketch()
        self._spans = Spans()
        self._slowest: list[tuple[float, int, Mapping[str, Any]]] = []
        self.failed: list[Mapping[str, Any]] = []

    def add(self, item: Mapping[str, Any]) -> None:
        """Count an item.

        Args:
            item: its record.
        """
        status: str = item["status"]
        self.statuses[status] += 1
        self.repeated += item["attempts"] > 1
        usage = usage_of(item["usage"])
        self.usage += usage
        trace = item["trace"]
        recorded, money = self._trace(trace)
        self._item_error(item["error"], trace)
        rest = _less(usage, recorded)
        self.fates["other"] += rest
        if self.prices is not None:
            money = money.plus(self.prices.cost(rest, None))
            self.money = self.money.plus(money)
            if status != "unfinished":
                self.costs.add(money.known)
        if status == "unfinished":
            return
        self.latency.add(item["elapsed"])
        self._ended(item)
        if status != "passed" and len(self.failed) < LISTED:
            self.failed.append(item)
        # Of two that took equally long, the earlier one stays: the least entry goes.
        entry = (item["elapsed"], -self.items, item)
        if len(self._slowest) < LISTED:
            heappush(self._slowest, entry)
        else:
            heappushpop(self._slowest, entry)

    def _trace(self, trace: Mapping[str, Any] | None) -> tuple[Usage, Money]:
        recorded, money = Usage(), Money()
        if trace is None:
            return recorded, money
        slices: list[Mapping[str, Any]] = trace["slices"]
        winner = winner_of(trace)
        models = {s["model"] for s in slices if s["model"] is not None}
        common = models.pop() if len(models) == 1 else None
        for s in slices:
            usage = usage_of(s["usage"])
            recorded += usage
            self.fates[fate_of(s, winner)] += usage
            self.outcomes[s["outcome"]] += 1
            if self.prices is not None:
                money = money.plus(self.prices.cost(usage, s["model"] or common))
            for v in s["validations"]:
                self._verdict(v)
            if s["error"] is not None and s["outcome"] == "errored":
                self._error(s["error"]["type"])
        if winner is not None:
            self.until_passed[iterations_until(winner, slices)] += 1
        return recorded, money

    def _verdict(self, v: Mapping[str, Any]) -> None:
        what: str = v["description"]
        if what not in self.requirements and len(self.requirements) >= MOST_NAMES:
            what = OTHERS
        self.requirements.setdefault(what, Tally()).counts[v["status"]] += 1

    def _error(self, kind: str) -> None:
        known = kind in self.errors or len(self.errors) < MOST_NAMES
        self.errors[kind if known else OTHERS] += 1

    def _item_error(self, error: Mapping[str, str] | None, trace: Mapping[str, Any] | None) -> None:
        """Count what ended an item, unless that is the error of one of its iterations."""
        if error is None:
            return
        slices: list[Mapping[str, Any]] = [] if trace is None else trace["slices"]
        if not any(s["error"] is not None and s["error"]["type"] == error["type"] for s in slices):
            self._error(error["type"])

    def _ended(self, item: Mapping[str, Any]) -> None:
        if item["started"] is None:
            return
        started = datetime.fromisoformat(item["started"]).timestamp()
        self._spans.add(started, started + item["elapsed"])

    @property
    def items(self) -> int:
        """How many items there are."""
        return self.statuses.total()

    @property
    def done(self) -> int:
        """How many items are finished."""
        return self.items - self.statuses["unfinished"]

    @property
    def passed(self) -> int:
        """How many items passed."""
        return self.statuses["passed"]

    @property
    def slowest(self) -> list[Mapping[str, Any]]:
        """The slowest items, the slowest of all first."""
        return [item for _, _, item in sorted(self._slowest, key=lambda e: e[:2], reverse=True)]

    @property
    def elapsed(self) -> float | None:
        """How long items were sampled, in seconds; None where nobody knows.

        The time between a run that was interrupted and the one that went on with it is no part of
        it; gaps of less than ten seconds are.
        """
        if self.run["started"] is None or not self._spans:
            return None
        return self._spans.total

    @property
    def by_requirement(self) -> list[tuple[str, Tally]]:
        """The requirements that were decided, the one that failed most often first."""
        judged = [(name, tally) for name, tally in self.requirements.items() if tally.judged]
        return sorted(judged, key=lambda pair: pair[1].counts["passed"] / pair[1].judged)

    def until_passed_at(self, share: float) -> int:
        """Say within how many iterations a share of the items that passed had passed.

        Args:
            share: from 0.0 to 1.0.

        Returns:
            How many; 0 where none passed.
        """
        seen, total = 0, self.until_passed.total()
        for number in sorted(self.until_passed):
            seen += self.until_passed[number]
            if seen >= share * total:
                return number
        return 0


def iterations_until(winner: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> int:
    """Count the iterations that had ended by themselves when one passed, that one included.

    Args:
        winner: the one that passed.
        slices: all of the call.

    Returns:
        How many.
    """
    ended: float = winner["ended_at"]
    before = [s for s in slices if s["outcome"] != "cancelled" and s["ended_at"] <= ended]
    return sum(s is not winner for s in before) + 1


def figures_of(run: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> RunFigures:
    """Read all items of a run.

    Args:
        run: the run's record.
        items: the records of its items.

    Returns:
        The figures.
    """
    figures = RunFigures(run)
    for item in items:
        figures.add(item)
    return figures


def why(item: Mapping[str, Any]) -> str:
    """Say in a line why an item failed.

    Args:
        item: its record.

    Returns:
        Its error, else what its best failure lacked, else how its call ended.
    """
    error, trace = item["error"], item["trace"]
    if error is not None:
        return f"{error['type']}: {error['message']}"
    if trace is None:
        return "nothing passed"
    detail: str = trace["stop_detail"]
    if detail:
        return detail
    best = trace["best_index"]
    problems = [] if best is None else problems_of(trace["slices"][best])
    return "; ".join(problems) or f"stopped: {trace['stop_reason']}"


def _less(all_of: Usage, part: Usage) -> Usage:
    return Usage(
        max(0, all_of.requests - part.requests),
        max(0, all_of.input_tokens - part.input_tokens),
        max(0, all_of.output_tokens - part.output_tokens),
        max(0, all_of.unknown - part.unknown),
    )
