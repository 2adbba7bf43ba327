"""The figures of a run, collected item by item, with only a few numbers per item in memory."""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Any

from mellea_like.core.generation import Usage
from mellea_like.pass_rates import coverage_curve, pass_rate_interval
from mellea_like.report.model_shares import Money, Shares, add_shares, prices_of
from mellea_like.report.views import FATES, ItemView, RunView

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from mellea_like.pass_rates import CoverageCurve
    from mellea_like.report.views import Fault, TraceView

__all__ = ["Distribution", "FinalFailure", "RepairDepth", "RunFigures", "Tally", "figures_of"]

PAUSE = 10.0
"""A gap of at least this many seconds between two periods of work doesn't count as work."""

MOST_NAMES = 200
"""The most requirements to count by name, and the most kinds of errors; the rest are `OTHERS`."""

OTHERS = "(others)"

LISTED = 10
"""The most items in the list of the slowest items, and in the list of failed items."""

DEEPEST = 9
"""Repairs at this depth and all deeper ones are counted together."""

UNREADABLE = "(it was not a readable answer)"
"""Listed as a missed requirement if a failed item's best reply could not be read as an answer."""


class Distribution:
    """A collection of numbers with exact quantiles. A million numbers take 8 MB."""

    def __init__(self) -> None:
        self._values = array("d")
        self._sorted = True

    def add(self, value: float) -> None:
        """Add a value.

        Args:
            value: a number. If it isn't finite, it is ignored; if it is negative, it counts as 0.
        """
        if math.isfinite(value):
            self._values.append(max(value, 0.0))
            self._sorted = False

    @property
    def values(self) -> array[float]:
        """The values in ascending order."""
        if not self._sorted:
            self._values = array("d", sorted(self._values))
            self._sorted = True
        return self._values

    @property
    def most(self) -> float:
        """The greatest value; 0.0 if there are no values."""
        return self.quantile(1.0)

    def quantile(self, share: float) -> float:
        """Return the smallest value V such that at least the given share of all values is <= V.

        Args:
            share: the share, from 0.0 to 1.0; for example, 0.5 for the median.

        Returns:
            The value; 0.0 if there are no values.
        """
        values = self.values
        # In floating point, a product can be slightly above a whole number: don't round that up.
        rank = max(1, math.ceil(share * len(values) - 1e-9))
        return values[rank - 1] if values else 0.0


class Intervals:
    """A union of time intervals. Intervals less than `PAUSE` seconds apart are merged."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def add(self, start: float, end: float) -> None:
        """Add an interval."""
        first = bisect_right(self._ends, start - PAUSE)
        last = bisect_left(self._starts, end + PAUSE)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def total(self) -> float:
        """The total length of the merged intervals, in seconds."""
        return sum(self._ends) - sum(self._starts)


@dataclass(slots=True)
class Tally:
    """The verdicts on one requirement.

    Args:
        counts: the number of verdicts by status.
    """

    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def judged(self) -> int:
        """The number of replies that passed or failed the requirement."""
        return self.counts["passed"] + self.counts["failed"]


@dataclass(slots=True)
class FinalFailure:
    """Counts of failed items whose best reply did not meet one particular requirement.

    Args:
        items: the number of such items.
        alone: the number of such items whose best reply met all other requirements, as far as is
            known. If checks stop at the first failure, later requirements are unknown.
    """

    items: int = 0
    alone: int = 0


@dataclass(slots=True)
class RepairDepth:
    """The replies at one depth: 0 for first draws, n for n-th repairs.

    Args:
        judged: the number of replies that were judged.
        passed: the number of replies that passed.
        more: the number of repairs that met a greater share of the requirements, by weight, than
            the reply that they repaired.
        same: the number of repairs that met the same share.
        less: the number of repairs that met a smaller share.
    """

    judged: int = 0
    passed: int = 0
    more: int = 0
    same: int = 0
    less: int = 0


class RunFigures:
    """The figures of a run, collected item by item.

    Args:
        run: the run's record, as `read_run` returns it.
        seed: the seed for the random choice of failed items to list.
    """

    def __init__(self, run: Mapping[str, Any], *, seed: int = 0) -> None:
        self.facts = RunView(run)
        self.seed = seed
        self.prices = prices_of(self.facts.prices)
        self.statuses: Counter[str] = Counter()
        self.begun = 0
        """The number of items that are finished, or whose first draw has at least started."""
        self.repeated = 0
        """The number of items that were begun more than once."""
        self.usage = Usage()
        self.money = Money()
        self.fates: dict[str, Usage] = dict.fromkeys(FATES, Usage())
        self.requirements: dict[str, Tally] = {}
        self.final_failures: dict[str, FinalFailure] = {}
        """The requirements that the best replies to failed items did not meet."""
        self.depths: dict[int, RepairDepth] = {}
        """First draws and repairs by depth."""
        self.errors: Counter[str] = Counter()
        self.models: Shares = {}
        self.until_passed = Distribution()
        self.outcomes: Counter[str] = Counter()
        self.shown: dict[int, tuple[int, int, int]] = {}
        """The numbers of draws, passes and cancelled draws of each item, by the item's hash. Equal
        items share one entry, which has the sums.
        """
        # A million items have few different counts: equal tuples are one object, to save memory.
        self._same: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._kinds: Counter[int] = Counter()
        """The number of items of each kind, by hash, for kinds that occur more than once."""
        self._with_draws = self._alike = 0
        self.latency = Distribution()
        self.costs = Distribution()
        self._intervals = Intervals()
        sittings = self.facts.sittings
        for opened, closed in sittings:
            if closed is not None:
                start, end = map(datetime.fromisoformat, (opened, closed))
                self._intervals.add(start.timestamp(), max(start, end).timestamp())
        self.open_end = any(closed is None for _, closed in sittings)
        """Whether a closing time of the journal is missing: ``elapsed`` is then a lower bound."""
        self._slowest: list[tuple[float, int, ItemView]] = []
        self._failed: list[tuple[float, int, ItemView]] = []
        self.too_few = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Count an item.

        Args:
            record: the item's record, as `read_items` yields it.
        """
        self.count(ItemView(record))

    def count(self, item: ItemView) -> None:
        """Count an item that is given as a view."""
        status = item.status
        self.statuses[status] += 1
        self.repeated += item.attempts > 1
        usage = item.usage
        self.usage += usage
        trace = item.trace
        so_far = item.so_far(self.facts)
        recorded, money = self._trace(so_far)
        drawn = item.shown(so_far, self.facts)
        if so_far is not None or any(drawn):
            kind = hash(item.digest or (item.id if so_far is None else so_far.kind))
            had, before = self.shown.get(kind), 0
            if had is not None:
                before = self._kinds[kind] or 1
                self._kinds[kind] = before + 1
            self._with_draws += 1
            self._alike += 2 * before + 1  # The difference of the squares.
            had = had or (0, 0, 0)
            all_of_it = had[0] + drawn[0], had[1] + drawn[1], had[2] + drawn[2]
            self.shown[kind] = self._same.setdefault(all_of_it, all_of_it)
        self._item_error(item.error, trace)
        rest = usage - recorded
        self.fates["other"] += rest
        if self.prices is not None:
            money = money.plus(self.prices.cost(rest, None))
            self.money = self.money.plus(money)
            if status != "unfinished":
                self.costs.add(money.known)
        self.begun += item.begun
        if status == "unfinished":
            return
        self.latency.add(item.elapsed)
        if item.started is not None:
            started = datetime.fromisoformat(item.started).timestamp()
            self._intervals.add(started, started + item.elapsed)
        self.too_few += status == "failed" and trace is not None and trace.has_too_few
        if status != "passed":
            # Only the id and the seed decide, so a growing run keeps most of its sample.
            chance = random.Random(f"{self.seed} {item.id}").random()
            _keep(self._failed, (chance, self.items, item))
        if status == "failed" and trace is not None and not trace.has_too_few:
            self._final(trace)
        # Among items that took equally long, the earlier one is kept.
        _keep(self._slowest, (item.elapsed, -self.items, item))

    def _trace(self, trace: TraceView | None) -> tuple[Usage, Money]:
        recorded, money = Usage(), Money()
        if trace is None:
            return recorded, money
        self._repairs(trace)
        money = add_shares(trace, self.models, self.prices)
        for s in trace.slices:
            recorded += s.usage
            self.outcomes[s.outcome] += 1
            for v in s.verdicts:
                name = _counted(v.description, self.requirements)
                self.requirements.setdefault(name, Tally()).counts[v.status] += 1
            if s.outcome == "errored" and (error := s.error) is not None:
                self._error(error.type)
        for fate, usage in trace.fates:
            self.fates[fate] += usage
        if (decision := trace.decision) is not None:
            recorded += decision.usage
            if self.prices is not None:
                money = money.plus(self.prices.cost(decision.usage, decision.model))
        if trace.winner is not None:
            self.until_passed.add(trace.until_passed())
        return recorded, money

    def _final(self, trace: TraceView) -> None:
        """Count the requirements that the best reply to a failed item did not meet."""
        best = trace.best
        if best is None:
            return
        lacked = set(best.unmet)
        if best.reason:
            lacked.add(UNREADABLE)
        for what in lacked:
            name = _counted(what, self.final_failures)
            cause = self.final_failures.setdefault(name, FinalFailure())
            cause.items += 1
            cause.alone += len(lacked) == 1

    def _repairs(self, trace: TraceView) -> None:
        """Count first draws and repairs. A later draw with a first draw's prompt isn't a repair."""
        slices, asked = trace.slices, trace.questions
        first = {asked[s.iteration] for s in slices if s.depth == 0}
        at = {(s.subsample, s.depth): s for s in slices if s.judged}
        for s in slices:
            depth = s.depth
            if not s.judged or (depth and asked[s.iteration] in first):
                continue
            here = self.depths.setdefault(min(depth, DEEPEST), RepairDepth())
            here.judged += 1
            here.passed += s.passed
            repaired = at.get((s.subsample, depth - 1))
            if depth and repaired is not None:
                gain = s.share_met - repaired.share_met
                here.more += gain > 0
                here.same += gain == 0
                here.less += gain < 0

    def _error(self, kind: str) -> None:
        self.errors[_counted(kind, self.errors)] += 1

    def _item_error(self, error: Fault | None, trace: TraceView | None) -> None:
        """Count the error that ended an item, unless one of its draws has an error of that type."""
        if error is None:
            return
        errors = [] if trace is None else [s.error for s in trace.slices]
        if not any(other is not None and other.type == error.type for other in errors):
            self._error(error.type)

    @property
    def items(self) -> int:
        """The number of items."""
        return self.statuses.total()

    @property
    def done(self) -> int:
        """The number of items that are finished."""
        return self.items - self.statuses["unfinished"]

    @property
    def passed(self) -> int:
        """The number of items that passed."""
        return self.statuses["passed"]

    @property
    def repeats(self) -> float:
        """How many times an item occurs in the run, on average over all items, at least 1.

        Dividing the number of items by it gives the effective number of different items (Kish,
        Survey Sampling, 1965). It is also 1 if all items are equal, because then the pass rate is
        that of a single item.
        """
        return self._alike / self._with_draws if len(self.shown) > 1 else 1.0

    @property
    def rate_interval(self) -> tuple[float, float]:
        """The ends of Wilson's 95 % interval of the pass rate, from 0 to 1.

        Equal items count as one, because they pass equally often. Items that were begun but aren't
        finished might all fail, for the lower end, or all pass, for the upper end.
        """
        if not self.begun:
            return 0.0, 1.0
        # With repeated items, these are fractions: each end is rounded outwards.
        different = max(1, math.floor(self.begun / self.repeats + 1e-9))
        share, most = different / self.begun, self.passed + self.begun - self.done
        low, _ = pass_rate_interval(different, math.floor(self.passed * share + 1e-9))
        _, high = pass_rate_interval(different, math.ceil(most * share - 1e-9))
        return low, high

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """Up to ten items that failed or errored, chosen at random, in the order of the input."""
        return [item.plain for _, _, item in sorted(self._failed, key=lambda e: e[2].id)]

    @property
    def slowest(self) -> list[Mapping[str, Any]]:
        """The ten items that took longest, in descending order."""
        slowest = sorted(self._slowest, key=lambda e: e[:2], reverse=True)
        return [item.plain for _, _, item in slowest]

    @property
    def elapsed(self) -> float | None:
        """The seconds that the run was working; None if unknown.

        A run is working while its journal is open, and while an item that later finishes is being
        sampled. The time between an interruption and the next start counts only if it is under ten
        seconds.
        """
        if self.facts.started is None or not self._intervals:
            return None
        return self._intervals.total

    @property
    def unpriced(self) -> list[str]:
        """The models whose tokens the cost leaves out, because the run's prices lack them.

        It is empty if the run has no prices at all.
        """
        prices = self.prices
        if prices is None:
            return []
        spent = {model for (_, model), share in self.models.items() if share.usage.total_tokens}
        return sorted(model for model in spent if model and prices.price(model) is None)

    @property
    def coverage(self) -> CoverageCurve | None:
        """The share of items that pass, by number of draws; None if no draw was judged."""
        if not any(draws for draws, _, _ in self.shown.values()):
            return None
        return coverage_curve(self.shown.values())

    @property
    def by_final_failure(self) -> list[tuple[str, FinalFailure]]:
        """The requirements that failed items did not meet, most frequent first."""
        return sorted(self.final_failures.items(), key=lambda pair: (-pair[1].items, pair[0]))

    @property
    def by_depth(self) -> list[tuple[int, RepairDepth]]:
        """First draws and repairs by depth; empty if nothing was repaired."""
        return sorted(self.depths.items()) if any(self.depths) else []

    @property
    def by_requirement(self) -> list[tuple[str, Tally]]:
        """The requirements that were judged, those with the lowest pass rate first."""
        judged = [(name, tally) for name, tally in self.requirements.items() if tally.judged]
        return sorted(judged, key=lambda pair: pair[1].counts["passed"] / pair[1].judged)


def _counted(name: str, names: Collection[str]) -> str:
    """Return the name itself, or `OTHERS` if it is new and there are too many names."""
    return name if name in names or len(names) < MOST_NAMES else OTHERS


def _keep(found: list[tuple[float, int, ItemView]], entry: tuple[float, int, ItemView]) -> None:
    """Add an entry, and keep only the `LISTED` greatest entries."""
    if len(found) < LISTED:
        heappush(found, entry)
    else:
        heappushpop(found, entry)


def figures_of(
    run: Mapping[str, Any], items: Iterable[Mapping[str, Any]], *, seed: int = 0
) -> RunFigures:
    """Read all items of a run.

    Args:
        run: the run's record, as `read_run` returns it.
        items: the records of its items, as `read_items` yields them.
        seed: the seed for the random choice of failed items to list.

    Returns:
        The figures.
    """
    figures = RunFigures(run, seed=seed)
    for item in items:
        figures.add(item)
    return figures


def why(item: ItemView) -> str:
    """Return the reason why an item failed, on one line."""
    error, trace = item.error, item.trace
    if error is not None:
        return str(error)
    if trace is None:
        return "nothing passed"
    detail = trace.stop_detail
    if trace.has_too_few and trace.decision is not None:
        detail = trace.decision.reason or "too few passed"
    if detail:
        return detail
    problems = [] if trace.best is None else trace.best.problems
    return "; ".join(problems) or f"stopped: {trace.stop_reason}"
