"""`plan`: what a run says about the draws that the next one needs."""

from __future__ import annotations

import os
from array import array
from collections import ChainMap, Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.argument_checks import real_number
from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price, checked_prices, currency_of
from mellea_like.core.result import SamplingResult
from mellea_like.estimate.simulation import Simulation
from mellea_like.pass_rates import MOST_DRAWS, coverage_curve
from mellea_like.report.iterations import (
    Money,
    Prices,
    damage,
    independent_draws,
    passes_of,
    prices_of,
    trace_so_far,
    usage_of,
)
from mellea_like.report.markup import clip
from mellea_like.report.numbers import amount, count, money, percent, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mellea_like.batch.journal.journal import Journal
    from mellea_like.pass_rates import Coverage, CoverageCurve, PassRateFit

__all__ = ["Bottleneck", "DrawPlan", "Repairs", "Split", "UnsolvedItem", "plan"]

NO_ANSWER = "a whole answer of its format"
"""Stands among the requirements for what makes a reply one that can be checked."""

_LABEL = 100
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Split:
    """A number of draws as budgets of a strategy, and what an item is expected to take with them.

    Args:
        loop_budget: draws of a chain, one after another.
        concurrency_budget: chains, all at once.
        draws: draws that are begun until one has passed or all have failed; those that are
            cancelled when another passes are counted whole, here and below.
        requests: requests for them, judges' and retries included.
        tokens: tokens of prompts and replies.
        cost: what they cost in the plan's currency; None without prices.
        seconds: how long it takes, as long as the measured draws took.
        schedule: when its chains start, as ``--schedule`` takes it.
    """

    loop_budget: int
    concurrency_budget: int
    draws: float
    requests: float
    tokens: float
    cost: float | None
    seconds: float
    schedule: str = "eager"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The requirement that failed most often.

    Args:
        requirement: its description.
        judged: how many replies it was decided for.
        failed: how many of them failed it.
        alone: how many of them met all others, and would have passed without it. Where checks stop
            at the first failure, those that were skipped aren't known to be met.
    """

    requirement: str
    judged: int
    failed: int
    alone: int


@dataclass(frozen=True, slots=True)
class Repairs:
    """What repairs did, beside what as many further draws would have done.

    The draws, and so the budgets, of a plan are those of a strategy that draws anew: for one that
    repairs, the turns of a chain after its first are likelier to pass where ``passed`` is more than
    ``expected``, and the plan asks for more than it takes; or the other way round.

    Args:
        judged: how many repairs were judged.
        passed: how many of them passed.
        expected: how many draws made anew would have passed in their place, by the fit: each of an
            item of which as many draws have failed as the chain had failures before the repair.
    """

    judged: int
    passed: int
    expected: float


@dataclass(frozen=True, slots=True)
class UnsolvedItem:
    """An item of which nothing passed.

    Args:
        id: its position in the run, from 0.
        label: what it is about, shortened.
        draws: how many draws of it failed.
        hopeful: how likely it can pass at all, from 0 to 1 (`PassRateFit.still_hopeful`).
    """

    id: int
    label: str
    draws: int
    hopeful: float


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """How many draws it takes, and what they cost. ``print`` shows it as a table.

    Args:
        target: the share of items of which something should pass.
        items: how many items had a draw that was judged.
        passed: how many of them passed, be it by a repair.
        draws: how many draws the figures rest on.
        left_out: iterations that are no such draws: repairs, errors, what was cancelled.
        curve: the coverage by number of draws, measured and predicted.
        needed: the smallest number of draws with which the predicted coverage reaches the target;
            None where the hopeless items are too many for it, or 1024 draws too few.
        needed_surely: the same for the lower end of the prediction's 95 % interval.
        splits: ways to make so many draws, from one after another to all at once, each with its
            chains all started at once; empty where ``needed`` is None.
        suggestion: the one of them with the least product of requests and seconds: a per cent more
            of the one for a per cent less of the other.
        bottleneck: the requirement that failed most often; None where none did.
        unsolved: items of which nothing passed, the least hopeful first.
        complete: whether all that the draws cost is known; if not, tokens and cost are at least
            those of the splits.
        currency: of ``cost``.
        repairs: what repairs did, which are no such draws; None where none was judged.
        others: judged draws of other models or stages than the first, as of an escalation or a
            fallback, which are left out, too.
        schedules: one of the splits by schedule: the suggested one, or, where that has one chain,
            the one with the fewest of several; empty where one draw is enough.
        passed_by_others: how many of ``passed`` did so only by the draws in ``others``.
        selects: whether the run had a selection that goes on after a first pass, such as a vote:
            the plan is for one draw that passes.
    """

    target: float
    items: int
    passed: int
    draws: int
    left_out: int
    curve: CoverageCurve
    needed: int | None
    needed_surely: int | None
    splits: tuple[Split, ...]
    suggestion: Split | None
    bottleneck: Bottleneck | None
    unsolved: tuple[UnsolvedItem, ...]
    complete: bool = True
    currency: str = "USD"
    repairs: Repairs | None = None
    others: int = 0
    schedules: tuple[Split, ...] = ()
    passed_by_others: int = 0
    selects: bool = False

    @property
    def fit(self) -> PassRateFit:
        """How pass rates are spread over items; ``fit.hopeless`` is the share of hopeless ones."""
        return self.curve.fit

    @property
    def measured(self) -> tuple[Coverage, ...]:
        """The coverage with 1, 2, ... draws, as far as it was measured."""
        return self.curve.measured

    @property
    def predicted(self) -> tuple[Coverage, ...]:
        """The coverage as the fit predicts it, further and further: 1, 2, 4, ... draws.

        It goes to twice what was measured and what is needed, with ``needed`` itself among them.
        """
        reach = 2 * max(len(self.measured), self.needed or 0)
        draws = {2**power for power in range(reach.bit_length() + 1) if 2**power <= reach}
        draws |= set() if self.needed is None else {self.needed}
        return tuple(map(self.curve.predicted, sorted(draws)))

    @property
    def hopeless(self) -> tuple[UnsolvedItem, ...]:
        """The unsolved items that are more likely hopeless than not."""
        return tuple(item for item in self.unsolved if item.hopeful < 0.5)  # noqa: PLR2004 (one half)

    def to_dict(self) -> dict[str, Any]:
        """Write the plan as plain data.

        Returns:
            What `json.dumps` takes: the fields, with ``fit``, ``hopeless_interval``, ``measured``,
            ``predicted`` and ``hopeless`` (ids) in place of ``curve``.
        """
        return {
            "target": self.target,
            "items": self.items,
            "passed": self.passed,
            "draws": self.draws,
            "left_out": self.left_out,
            "needed": self.needed,
            "needed_surely": self.needed_surely,
            "fit": asdict(self.fit),
            "hopeless_interval": list(self.curve.hopeless),
            "measured": [asdict(point) for point in self.measured],
            "predicted": [asdict(point) for point in self.predicted],
            "splits": [asdict(split) for split in self.splits],
            "suggestion": None if self.suggestion is None else asdict(self.suggestion),
            "bottleneck": None if self.bottleneck is None else asdict(self.bottleneck),
            "unsolved": [asdict(item) for item in self.unsolved],
            "hopeless": [item.id for item in self.hopeless],
            "complete": self.complete,
            "currency": self.currency,
            "repairs": None if self.repairs is None else asdict(self.repairs),
            "others": self.others,
            "passed_by_others": self.passed_by_others,
            "selects": self.selects,
            "schedules": [asdict(split) for split in self.schedules],
        }

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._coverage(), *self._costs(), *self._troubles()])

    def _head(self) -> Iterator[str]:
        low, high = self.curve.hopeless
        beyond = percent(self.fit.hopeless, 1)
        n = self.passed_by_others
        by_others = f", {count(n)} of them by another model or stage" if n else ""
        yield (
            f"{plural(self.items, 'item')}, {plural(self.draws, 'draw')}:"
            f" {count(self.passed)} passed ({percent(self.passed, self.items)})"
            f"{by_others}"
        )
        if self.others:
            yield (
                f"{plural(self.others, 'draw')} of other models or stages left out: all below is"
                " for the first one alone."
            )
        if self.selects:
            yield (
                "The run's selection goes on after a first pass: all below is for one reply that"
                " passes."
            )
        if (mended := self.repairs) is not None:
            share, anew = (percent(n, mended.judged) for n in (mended.passed, mended.expected))
            yield (
                f"{plural(mended.judged, 'repair')} left out: {share} passed, of draws made anew"
                f" it would have been {anew}. All below is for draws made anew."
            )
        yield f"Hopeless by the fit: {beyond} of items ({_between(low, high)})"
        wanted = percent(self.target, 1)
        if self.needed is not None:
            surely = self.needed_surely
            safe = "no number is" if surely is None else f"{count(surely)} to be"
            yield (
                f"For {wanted} it takes {plural(self.needed, 'draw')} of each item"
                f" ({safe} on the safe side)."
            )
        elif self.fit.hopeless > 1 - self.target:
            yield f"{wanted} can't be reached by drawing more: {beyond} of items never pass."
        else:
            lack = percent(1 - self.fit.coverage(MOST_DRAWS), 1)
            yield (
                f"{wanted} takes more than {count(MOST_DRAWS)} draws of each item:"
                f" {lack} of items pass very rarely or never."
            )

    def _coverage(self) -> Iterator[str]:
        yield f"{'draws':>8}  {'coverage':>9}"
        known = len(self.measured)
        for point in self.predicted:
            kind = "predicted" if point.draws > known else "measured"
            at = point if point.draws > known else self.measured[point.draws - 1]
            yield (f"{at.draws:>8}  {percent(at.share, 1):>9}  {kind}, {_between(at.low, at.high)}")

    def _costs(self) -> Iterator[str]:
        if not self.splits:
            return
        yield ""
        yield "Expected for each item, by loop_budget x concurrency_budget:"
        for split in self.splits:
            mark = "  <- suggested" if split is self.suggestion else ""
            yield f"{_budgets(split):>12}  {self._takes(split)}{mark}"
        if self.schedules:
            yield ""
            yield f"The same for {_budgets(self.schedules[0])}, by schedule:"
            for split in self.schedules:
                yield f"{split.schedule:>16}  {self._takes(split)}"

    def _takes(self, split: Split) -> str:
        least = "" if self.complete else "≥ "
        parts = [
            f"{split.requests:.3g} requests",
            f"{least}{amount(split.tokens)} tokens",
            seconds(split.seconds),
        ]
        if split.cost is not None:
            parts.append(money(split.cost, self.currency, at_least=not self.complete))
        return ", ".join(parts)

    def _troubles(self) -> Iterator[str]:
        worst = self.bottleneck
        if worst is not None:
            yield ""
            yield (
                f"Fails most often: {clip(' '.join(worst.requirement.split()), _LABEL)}"
                f" ({count(worst.failed)} of {count(worst.judged)},"
                f" {count(worst.alone)} by it alone)"
            )
        if self.unsolved:
            yield ""
            yield (
                f"Nothing passed of {plural(len(self.unsolved), 'item')},"
                f" {count(len(self.hopeless))} of them more likely hopeless than not:"
            )
            for item in self.unsolved[:_LISTED]:
                yield (
                    f"  #{item.id} {item.label}: {plural(item.draws, 'draw')}, can pass with a"
                    f" probability of {percent(item.hopeful, 1)}"
                )
            more = len(self.unsolved) - _LISTED
            if more > 0:
                yield f"  ... and {count(more)} more"


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
    """Say how many draws of each item reach a coverage, and what they cost, from what a run showed.

    It is assumed that

    - the items are a sample of those to come;
    - draws of an item are independent, with a pass rate of its own. So a repair is no draw: what
      counts is judged, and was sent the same as the first draw of its chain, to the same model.
      With ``RejectionSamplingStrategy`` that is every judged iteration, with the strategies that
      repair the first of each chain, with `Escalate` those of the first stage. ``repairs`` says
      whether repairs passed more often;
    - how long a draw takes says nothing about whether it passes: what was cancelled because
      another passed, or ended in an error, is left out;
    - why an item's draws ended, at a pass or at a budget, had nothing to do with draws to come;
    - an item is done when one draw passes, as with the selection ``"first"``.

    Of a journal, items that aren't finished count with the draws that they have had.

    Times and requests of the splits are those of items simulated by the fit (from a fixed seed),
    their draws as long as measured ones (what was cancelled would have taken longer, and counts as
    that); waiting for rate limits and retries is in these. They hold while the server takes
    ``concurrency_budget`` times as many requests without getting slower.

    The items of each schedule have the same draws, and the schedule itself says when they start.
    How long a draw takes has nothing to do with its item, so what a hedge is said to gain is too
    much where it is the prompt that takes long. Those that go by what they learn of a call's own
    draws, or draw anew within an iteration, aren't simulated.

    It reads the whole journal before it returns; in async code, run it in a thread
    (`anyio.to_thread.run_sync`).

    Args:
        run: a journal or its path, which may be in use; a directory of journals, or several of
            these, which are read as one run, its items counted through; or results of calls.
        target: the share of items of which something should pass, between 0 and 1.
        prices: the price of each model by its name; those of the journal by default.

    Returns:
        The plan.

    Raises:
        TypeError: the run or the target is of the wrong type.
        ValueError: the target is out of range, or no draw was judged.
        JournalError: it isn't a journal, is of another format version, or is damaged.
    """
    real_number("plan: target", target)
    if not 0 < target < 1:
        msg = f"plan: target lies between 0 and 1, not {target!r}"
        raise ValueError(msg)
    table = checked_prices(prices)
    found = _Findings(None if table is None else Prices(table))
    found.read(run)
    if not found.shown:
        msg = "there is nothing to plan from: no draw was judged"
        raise ValueError(msg)
    curve = coverage_curve(found.shown)
    needed = curve.needed(target)
    simulation = Simulation(curve.fit, found.durations, found.cancelled)
    splits = () if needed is None else tuple(found.splits(simulation, needed))
    suggestion = min(splits, key=lambda s: (s.requests * s.seconds, s.requests), default=None)
    unsolved = (
        UnsolvedItem(id, label, draws, curve.fit.still_hopeful(draws))
        for id, label, draws in found.unsolved  # noqa: A001 (what it is called)
    )
    return DrawPlan(
        target,
        len(found.shown),
        len(found.shown) - len(found.unsolved),
        sum(draws for draws, _, _ in found.shown),
        found.left_out,
        curve,
        needed,
        curve.needed(target, surely=True),
        splits,
        suggestion,
        found.bottleneck(),
        tuple(sorted(unsolved, key=lambda item: (item.hopeful, item.id))),
        found.money.complete and not found.usage.unknown,
        currency_of(None if found.prices is None else found.prices.of),
        found.repairs_beside(curve.fit),
        found.others,
        found.by_schedule(simulation, splits, suggestion),
        found.by_others,
        found.selects,
    )


@dataclass(slots=True)
class _Findings:
    """What the items of a run have shown."""

    prices: Prices | None
    shown: list[tuple[int, int, int | None]] = field(
        default_factory=list[tuple[int, int, "int | None"]]
    )
    unsolved: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    durations: array[float] = field(default_factory=lambda: array("d"))
    cancelled: array[float] = field(default_factory=lambda: array("d"))
    usage: Usage = Usage()
    money: Money = field(default_factory=Money)
    left_out: int = 0
    others: int = 0
    by_others: int = 0
    selects: bool = False
    judged: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    alone: Counter[str] = field(default_factory=Counter[str])
    repairs: Counter[tuple[int, bool]] = field(default_factory=Counter[tuple[int, bool]])
    """How many repairs came after so many failures of their chain, and passed or not."""

    def read(self, run: object) -> None:
        """Read all of a run."""
        journals: list[object] = []
        if isinstance(run, str | os.PathLike) or hasattr(run, "path"):
            journals.append(run)  # pyright: ignore[reportUnknownArgumentType]
        else:
            results: Iterable[Any] = cast("Any", run)
            for position, one in enumerate(results):
                if isinstance(one, SamplingResult):
                    self._add(position, "", one.to_dict())
                elif isinstance(one, str) or hasattr(one, "path") or hasattr(one, "__fspath__"):
                    journals.append(one)
                else:
                    msg = f"plan takes a journal or results, not {type(one).__name__}"
                    raise TypeError(msg)
        if journals:
            self._read_journals(journals)

    def _read_journals(self, journals: Iterable[object]) -> None:
        from mellea_like.batch.journal.reader import (  # noqa: PLC0415 (results need none)
            journal_paths,
            read_items,
            read_run,
        )

        paths = journal_paths(*journals)
        runs = [read_run(path, check=False) for path in paths]
        if self.prices is None and (given := [run["prices"] for run in runs if run["prices"]]):
            self.prices = prices_of({"prices": ChainMap(*given)})
        position = 0
        for path, facts in zip(paths, runs, strict=True):
            for item in read_items(path):
                number, label = item["id"], item["label"]
                if len(paths) > 1:
                    number, label = position, f"{path.name} #{number}: {label}"
                position += 1
                with damage("record of a run"):
                    if (trace := trace_so_far(item, facts)) is not None:
                        self._add(number, label, trace)

    def _add(self, position: int, label: str, trace: Mapping[str, Any]) -> None:
        """Count an item."""
        self.selects |= trace.get("decision") is not None
        draws = independent_draws(trace)
        self._count_judged(trace, draws)
        self.left_out += len(trace["slices"]) - len(draws)
        for s in trace["slices"]:
            if s["outcome"] == "cancelled":
                self.cancelled.append(s["ended_at"] - s["started_at"])
        for s in draws:
            usage = usage_of(s["usage"])
            self.usage += usage
            self.durations.append(s["ended_at"] - s["started_at"])
            if self.prices is not None:
                self.money = self.money.plus(self.prices.cost(usage, s["model"]))
        if not draws:
            return
        self.shown.append(passes_of(draws))
        if not any(s["outcome"] == "passed" for s in trace["slices"]):
            about = " ".join((label or trace["slices"][0]["action"]["text"]).split())
            self.unsolved.append((position, clip(about, _LABEL), len(draws)))

    def _count_judged(self, trace: Mapping[str, Any], draws: Sequence[Mapping[str, Any]]) -> None:
        """Count what was judged: verdicts of the draws' model, its repairs, and what others did."""
        asked = {s["iteration"] for s in draws}
        firsts = [s for s in trace["slices"] if s["depth"] == 0]
        models = {s["model"] for s in draws}
        stages = {s.get("stage") for s in firsts}
        failures: Counter[int] = Counter()
        solved = False
        for s in trace["slices"]:
            if s["outcome"] in {"passed", "failed"}:
                passed = s["outcome"] == "passed"
                first = s["model"] in models and s.get("stage") in stages
                self.others += not first
                solved |= first and passed
                if first:
                    self._judge(s)
                if s["iteration"] not in asked and first:
                    self.repairs[failures[s["chain"]], passed] += 1
                # After a pass, a chain draws anew.
                failures[s["chain"]] = 0 if passed else failures[s["chain"]] + 1
        by_others = any(s["outcome"] == "passed" for s in trace["slices"]) and not solved
        self.by_others += bool(draws) and by_others

    def repairs_beside(self, fit: PassRateFit) -> Repairs | None:
        """Set what repairs did beside what draws made anew would have done."""
        expected = sum(n * _next(fit, failed) for (failed, _), n in self.repairs.items())
        passed = sum(n for (_, passed), n in self.repairs.items() if passed)
        judged = self.repairs.total()
        return Repairs(judged, passed, expected) if judged else None

    def _judge(self, s: Mapping[str, Any]) -> None:
        verdicts = {v["description"]: v["status"] for v in s["validations"]}
        verdicts[NO_ANSWER] = "failed" if s["reason"] else "passed"
        for what, status in verdicts.items():
            self.judged[what] += status in {"passed", "failed"}
            self.failed[what] += status == "failed"
        lacks = [what for what, status in verdicts.items() if status != "passed"]
        if len(lacks) == 1:
            self.alone[lacks[0]] += 1

    def bottleneck(self) -> Bottleneck | None:
        """Choose the requirement that failed most often, and of equals most often alone."""
        worst = max(self.failed, key=lambda what: (self.failed[what], self.alone[what]), default="")
        if not self.failed[worst]:
            return None
        return Bottleneck(worst, self.judged[worst], self.failed[worst], self.alone[worst])

    def splits(self, simulation: Simulation, needed: int) -> Iterator[Split]:
        """Say what so many draws take, in a few ways from one after another to all at once."""
        widths = {min(2**power, needed) for power in range(needed.bit_length() + 1)}
        # As few chains as do with that many turns.
        for turns in sorted({-(-needed // width) for width in widths}, reverse=True):
            yield self._split(simulation, "eager", -(-needed // turns), turns)

    def by_schedule(
        self, simulation: Simulation, splits: Sequence[Split], suggestion: Split | None
    ) -> tuple[Split, ...]:
        """Say what one of the splits takes by schedule: the suggested one, if it has chains."""
        several = [split for split in splits if split.concurrency_budget > 1]
        if not several:
            return ()
        chosen = suggestion if suggestion in several else several[0]
        usual = f"{simulation.median:.2g}"
        schedules = ["pooled", *[f"staggered:{usual}"] * (float(usual) > 0), "hedged"]
        chains, turns = chosen.concurrency_budget, chosen.loop_budget
        others = (self._split(simulation, name, chains, turns) for name in schedules)
        return (chosen, *others)

    def _split(self, simulation: Simulation, schedule: str, chains: int, turns: int) -> Split:
        """Say what an item takes with these budgets."""
        draws, time = simulation.expected(schedule, chains, turns)
        per_draw = draws / len(self.durations)
        cost = None if self.prices is None else self.money.known * per_draw
        requests, tokens = self.usage.requests * per_draw, self.usage.total_tokens * per_draw
        return Split(turns, chains, draws, requests, tokens, cost, time, schedule)


def _next(fit: PassRateFit, failures: int) -> float:
    """Say how likely a further draw of an item passes of which so many have failed."""
    missed = 1 - fit.coverage(failures)
    return (fit.coverage(failures + 1) - fit.coverage(failures)) / missed if missed else 1.0


def _budgets(split: Split) -> str:
    return f"{split.loop_budget} x {split.concurrency_budget}"


def _between(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f} %"
