"""`plan`: estimate from a run how many draws the next run needs."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections import ChainMap, Counter
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.argument_checks import real_number
from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price, checked_prices, currency_of
from mellea_like.core.result import SamplingResult
from mellea_like.estimate.draw_plan import Bottleneck, DrawPlan, Repairs, Split, UnsolvedItem
from mellea_like.pass_rates import coverage_curve
from mellea_like.report.markup import clip
from mellea_like.report.model_shares import Money, Prices, money_of, prices_of
from mellea_like.report.views import TraceView

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from mellea_like.batch.journal.journal import Journal
    from mellea_like.pass_rates import CoverageCurve
    from mellea_like.report.views import SliceView

__all__ = ["plan"]

NO_ANSWER = "a complete answer in its format"
"""The name given to the implicit requirement that a reply is complete and can be parsed."""

_LABEL = 100


def plan(
    run: str
    | os.PathLike[str]
    | Journal
    | Iterable[str | os.PathLike[str] | Journal]
    | Iterable[SamplingResult[Any]],
    target: float = 0.95,
    *,
    prices: Mapping[str, Price] | None = None,
) -> DrawPlan:
    """Estimate from a run how many draws per item the next run needs, and their cost.

    The estimate assumes that

    - the items are a sample of the items to come. Equal items count as one item with all their
      draws, as in an evaluation that lists each example eight times;
    - draws of an item are independent, and each item has its own pass rate. So a draw counts only
      if it was judged, and if its prompt and model are those of the first draw in its lane. With
      ``RejectionSamplingStrategy``, these are all judged draws; with strategies that repair, the
      first draw of each lane; with `Escalate`, the draws of the first stage. A draw that started
      after a repair, or a draw of a later stage, had been judged doesn't count;
    - a draw that ran into a time limit would do so again, so it counts as failed. Any other error
      doesn't depend on whether the draw would have passed, so other errors are left out;
    - an item is done when one draw passes, as with the selection ``"first"``.

    Nothing is assumed about the distribution of pass rates, or about how long passes and failures
    take. A cancelled draw might have passed or failed, and the interval allows for both
    (`CoverageCurve`). So draws that raced each other give less information than draws made one
    after another.

    Unfinished items of a journal count with their draws so far. A journal has only draws that have
    ended. So while a run is running, or after its process was killed, draws that were under way are
    missing, and the draws that ended are the quick ones. An unfinished item without any record of a
    draw counts as if it had one cancelled draw, but for other items nobody knows. `DrawPlan` then
    counts the items as ``under_way``. If a run that was stopped is resumed, draws that were under
    way are made again. The first ones are left out, which matters if there were many of them among
    few items.

    The times and requests of the splits assume that all lanes run in step. Every draw takes the
    mean time of the measured draws, including waits for rate limits and retries; a cancelled draw
    counts as longer than it ran. Every draw has the mean requests and tokens of the draws that were
    judged. If draws were cancelled, these are the quick ones, so the numbers are shown as lower
    bounds. The server must be able to take ``concurrency_budget`` times as
    many requests without getting slower.

    The function blocks until it has read the whole journal. In async code, run it in a thread
    (`anyio.to_thread.run_sync`).

    Args:
        run: a journal or its path; a directory of journals; several of these, which are read as
            one run with its items numbered consecutively; or results of calls. Journals may be in
            use.
        target: the share of items that should pass, between 0 and 1.
        prices: the price of each model by its name; the default is the journal's prices.

    Returns:
        The plan.

    Raises:
        TypeError: the run or the target is of the wrong type.
        ValueError: the target is out of range, or no draw was judged.
        JournalError: a file isn't a journal, is of another format version, or is damaged.
    """
    real_number("plan: target", target)
    if not 0 < target < 1:
        msg = f"plan: target must be between 0 and 1, not {target!r}"
        raise ValueError(msg)
    table = checked_prices(prices)
    found = _Findings(None if table is None else Prices(table))
    found.read(run)
    if not found.items:
        msg = "there is nothing to plan from: no draw was judged"
        raise ValueError(msg)
    curve = coverage_curve(found.shown.elements())
    needed = curve.needed(target)
    splits = () if needed is None else tuple(found.splits(curve, needed))
    return DrawPlan(
        target=target,
        items=found.items,
        passed=found.items - len(found.unsolved),
        draws=found.draws,
        left_out=found.left_out,
        curve=curve,
        needed=needed,
        needed_surely=curve.needed(target, surely=True),
        splits=splits,
        suggestion=min(splits, key=lambda s: (s.requests * s.seconds, s.requests), default=None),
        bottleneck=found.bottleneck(),
        unsolved=tuple(sorted(found.unsolved, key=lambda item: (-item.draws, item.id))),
        complete=found.money.complete and not found.usage.unknown and not curve.cut,
        currency=currency_of(None if found.prices is None else found.prices.of),
        repairs=found.repairs_beside(curve),
        others=found.others,
        passed_by_others=found.by_others,
        selects=found.selects,
        under_way=found.under_way,
    )


@dataclass(slots=True)
class _Item:
    """Sums over the draws of equal items."""

    id: int
    label: str
    draws: int = 0
    passes: int = 0
    cut: int = 0
    firsts: int = 0
    solved: bool = False
    by_others: bool = False
    """Whether the item passed, but only by a draw of another model or stage."""


@dataclass(slots=True)
class _Findings:
    """Sums over a run's items. ``kinds`` has the sums of each group of equal items."""

    prices: Prices | None
    kinds: dict[Hashable, _Item] = field(default_factory=dict["Hashable", _Item])
    shown: Counter[tuple[int, int, int]] = field(default_factory=Counter[tuple[int, int, int]])
    items: int = 0
    draws: int = 0
    firsts: int = 0
    most_firsts: int = 0
    by_others: int = 0
    unsolved: list[UnsolvedItem] = field(default_factory=list[UnsolvedItem])
    durations: array[float] = field(default_factory=lambda: array("d"))
    cancelled: array[float] = field(default_factory=lambda: array("d"))
    usage: Usage = Usage()
    money: Money = field(default_factory=Money)
    left_out: int = 0
    others: int = 0
    under_way: int = 0
    selects: bool = False
    judged: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    alone: Counter[str] = field(default_factory=Counter[str])
    repairs: Counter[tuple[int, bool]] = field(default_factory=Counter[tuple[int, bool]])
    """The number of repairs, by the number of failures before them and whether they passed."""

    def read(self, run: object) -> None:
        journals: list[object] = []
        if isinstance(run, str | os.PathLike) or hasattr(run, "path"):
            journals.append(run)  # pyright: ignore[reportUnknownArgumentType]
        else:
            results: Iterable[Any] = cast("Any", run)
            for position, one in enumerate(results):
                if isinstance(one, SamplingResult):
                    trace = TraceView(one.to_dict())
                    self._add(self._item(trace.kind, position), "", trace)
                elif isinstance(one, str) or hasattr(one, "path") or hasattr(one, "__fspath__"):
                    journals.append(one)
                else:
                    msg = f"plan: run must be a journal or results, not {type(one).__name__}"
                    raise TypeError(msg)
        if journals:
            self._read_journals(journals)
        for item in self.kinds.values():
            self._settle(item)
        self.kinds.clear()

    def _read_journals(self, journals: Iterable[object]) -> None:
        from mellea_like.batch.journal.reader import (  # noqa: PLC0415 (results need none)
            journal_paths,
            repeated,
        )
        from mellea_like.batch.journal.together import JournalsTogether  # noqa: PLC0415

        paths = journal_paths(*journals)
        together = JournalsTogether(paths)
        runs = dict(zip(paths, together.runs, strict=True))
        if self.prices is None and (given := [run.prices for run in together.runs if run.prices]):
            self.prices = prices_of(ChainMap(*given))
        comes_again = repeated(paths)
        for position, (path, item) in enumerate(together.items()):
            number, label = item.id, item.label
            if len(paths) > 1:
                number, label = position, f"{path.name} #{number}: {label}"
            trace = item.so_far(runs[path])
            self.under_way += not item.finished and runs[path].ended is None
            again = comes_again(item.digest)
            kind = self._item(item.digest, number) if again else _Item(number, "")
            if trace is not None:
                self._add(kind, label, trace)
            else:
                kind.label = kind.label or clip(" ".join(label.split()), _LABEL)
                draws, _, cut = item.shown(None, runs[path])
                kind.draws, kind.cut = kind.draws + draws, kind.cut + cut
            if not again:
                self._settle(kind)

    def _item(self, kind: Hashable, position: int) -> _Item:
        """Return the sums of a group of equal items; a new group gets ``position`` as its id."""
        return self.kinds.setdefault(kind, _Item(position, ""))

    def _settle(self, item: _Item) -> None:
        """Count an item once all its draws are known."""
        if not (item.draws or item.cut):
            return
        self.shown[item.draws, item.passes, item.cut] += 1
        self.items += 1
        self.draws += item.draws
        self.firsts += item.firsts
        self.most_firsts = max(self.most_firsts, item.firsts)
        self.by_others += item.by_others
        if not item.solved:
            self.unsolved.append(UnsolvedItem(item.id, item.label, item.draws))

    def _add(self, item: _Item, label: str, trace: TraceView) -> None:
        self.selects |= trace.decides
        draws = trace.independent_draws
        self.left_out += len(trace.slices) - len(draws)
        for s in trace.slices:
            if s.outcome == "cancelled":
                self.cancelled.append(s.seconds)
        for s in draws:
            self.usage += s.usage
            self.durations.append(s.seconds)
            if self.prices is not None:
                self.money = self.money.plus(money_of(s, s.model, self.prices))
        if trace.slices and not item.label:
            about = label or trace.slices[0].action
            item.label = clip(" ".join(about.split()), _LABEL)
        shown = trace.shown
        item.draws, item.passes = item.draws + shown[0], item.passes + shown[1]
        item.cut += shown[2]
        item.firsts += sum(s.depth == 0 for s in draws)
        solved = self._count_judged(trace, draws)
        passed = any(s.passed for s in trace.slices)
        item.by_others = (item.by_others or (passed and not item.solved)) and not solved
        item.solved |= passed

    def _count_judged(self, trace: TraceView, draws: Sequence[SliceView]) -> bool:
        """Count verdicts, repairs, other models' draws; return whether the first model passed."""
        firsts = [s for s in trace.slices if s.depth == 0]
        models = {s.model for s in draws if s.judged}
        asked = trace.questions
        prompts, stages = {asked[s.iteration] for s in firsts}, {s.stage for s in firsts}
        failures: Counter[int] = Counter()
        # A call that stops at its first pass makes a repair only if all draws before it, of any
        # lane, have failed. Otherwise, lanes continue whatever happens in the others.
        racing = not trace.decides and len({s.chain for s in trace.slices}) > 1
        ends = [s.ended_at for s in trace.slices if s.judged]
        solved = False
        for s in trace.slices:
            if s.judged:
                passed = s.passed
                first = s.model in models and s.stage in stages
                self.others += not first
                solved |= first and passed
                if first:
                    self._judge(s)
                if asked[s.iteration] not in prompts and first:
                    failed = bisect_right(ends, s.started_at) if racing else failures[s.chain]
                    self.repairs[failed, passed] += 1
                # After a pass, a new chain begins.
                failures[s.chain] = 0 if passed else failures[s.chain] + 1
        return solved

    def repairs_beside(self, curve: CoverageCurve) -> Repairs | None:
        """Compare repairs with fresh draws; return None if fresh draws can't be predicted."""
        most = self.most_firsts
        if most < 2 or curve.cut:  # noqa: PLR2004 (one draw can't tell a hard item from bad luck)
            return None
        known = {at: n for at, n in self.repairs.items() if at[0] < most}
        judged = sum(known.values())
        if not judged:
            return None
        passed = sum(n for (_, passed), n in known.items() if passed)
        expected = sum(n * curve.next_passes(failed) for (failed, _), n in known.items())
        # Both the number of passes and the expected rate vary by chance.
        share = expected / judged
        half = 1.96 * sqrt(judged * share * (1 - share) * (1 + judged / self.firsts))
        return Repairs(
            judged, passed, expected, max(0.0, expected - half), min(judged, expected + half)
        )

    def _judge(self, s: SliceView) -> None:
        verdicts = {v.description: v.status for v in s.verdicts}
        verdicts[NO_ANSWER] = "failed" if s.reason else "passed"
        for what, status in verdicts.items():
            self.judged[what] += status in {"passed", "failed"}
            self.failed[what] += status == "failed"
        lacks = [what for what, status in verdicts.items() if status != "passed"]
        if len(lacks) == 1:
            self.alone[lacks[0]] += 1

    def bottleneck(self) -> Bottleneck | None:
        """Return the requirement that failed most often or, of several, most often alone."""
        worst = max(self.failed, key=lambda what: (self.failed[what], self.alone[what]), default="")
        if not self.failed[worst]:
            return None
        return Bottleneck(worst, self.judged[worst], self.failed[worst], self.alone[worst])

    def splits(self, curve: CoverageCurve, needed: int) -> Iterator[Split]:
        """Yield ways to divide ``needed`` draws among lanes: from a single lane to one per draw."""
        widths = {min(2**power, needed) for power in range(needed.bit_length() + 1)}
        steps = [0, 1]
        while steps[-1] < needed:
            steps.append(min(needed, max(steps[-1] + 1, steps[-1] * 5 // 4)))
        shares = [0.0, *(curve.at(draws).share for draws in steps[1:])]

        def share(draws: int) -> float:
            """Return the coverage with ``draws`` draws, interpolated between computed values."""
            after = bisect_left(steps, draws)
            if steps[after] == draws:
                return shares[after]
            part = (draws - steps[after - 1]) / (steps[after] - steps[after - 1])
            return shares[after - 1] + part * (shares[after] - shares[after - 1])

        mean = _mean_length(self.durations, self.cancelled)
        # Use the fewest lanes that make this many draws in that many attempts.
        for turns in sorted({-(-needed // width) for width in widths}, reverse=True):
            chains = -(-needed // turns)
            # A round starts only if all draws before it have failed.
            rounds = sum(1 - share(min(needed, turn * chains)) for turn in range(turns))
            per_draw = rounds * chains / len(self.durations)
            cost = None if self.prices is None else self.money.known * per_draw
            requests, tokens = self.usage.requests * per_draw, self.usage.total_tokens * per_draw
            yield Split(turns, chains, rounds * chains, requests, tokens, cost, rounds * mean)


def _mean_length(ended: Sequence[float], cancelled: Sequence[float]) -> float:
    """Return the mean time of a draw (Kaplan and Meier); cancelled draws count as censored."""
    if not cancelled:
        return sum(ended) / len(ended)
    lengths, cut = sorted(ended), sorted(cancelled)
    shorter, weighed, mean = 0, 0.0, 0.0
    for place, length in enumerate(lengths):
        while shorter < len(cut) and cut[shorter] < length:
            shorter += 1
        weight = (1 - weighed) / (len(lengths) - place + len(cut) - shorter)
        weighed, mean = weighed + weight, mean + weight * length
    return mean / weighed
