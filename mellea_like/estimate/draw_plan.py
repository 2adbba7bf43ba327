"""What `plan` found: the draws that the next run needs, as data and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.pass_rates import FURTHEST
from mellea_like.report.markup import clip
from mellea_like.report.numbers import amount, count, money, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mellea_like.pass_rates import Coverage, CoverageCurve

__all__ = ["Bottleneck", "DrawPlan", "Repairs", "Split", "UnsolvedItem"]

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
        seconds: how long it takes, every draw as long as the measured ones on average.
    """

    loop_budget: int
    concurrency_budget: int
    draws: float
    requests: float
    tokens: float
    cost: float | None
    seconds: float


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
        expected: how many draws made anew would have passed in their place: each of an item of
            which as many draws have failed as the chain had failures before the repair.
        low: the lower end of what chance makes of ``expected``, 95 times in a hundred.
        high: the upper end. If ``passed`` is between them, no difference is shown.
    """

    judged: int
    passed: int
    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class UnsolvedItem:
    """An item of which nothing passed.

    Args:
        id: its position in the run, from 0.
        label: what it is about, shortened.
        draws: how many draws of it failed. The more, the likelier it never passes.
    """

    id: int
    label: str
    draws: int


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """How many draws it takes, and what they cost. ``print`` shows it as a table.

    Args:
        target: the share of items of which something should pass.
        items: how many different items had a draw that was judged.
        passed: how many of them passed, be it by a repair.
        draws: how many draws the figures rest on.
        left_out: iterations that are no such draws: repairs, errors, what was cancelled.
        curve: the coverage by number of draws.
        needed: the smallest number of draws with which the coverage reaches the target; None if
            four times the measured draws are too few, or may be.
        needed_surely: the same for the lower end of the coverage's 95 % interval.
        splits: ways to make so many draws, from one after another to all at once; empty where
            ``needed`` is None.
        suggestion: the one of them with the least product of requests and seconds: a per cent more
            of the one for a per cent less of the other.
        bottleneck: the requirement that failed most often; None where none did.
        unsolved: items of which nothing passed, those with the most draws first.
        complete: whether all that the draws cost is known; if not, tokens and cost are at least
            those of the splits.
        currency: of ``cost``.
        repairs: what repairs did, which are no such draws; None where none was judged, and where
            the first draws can't tell what draws made anew would have done: items need two or more
            of them, none of which was cancelled.
        others: judged draws of other models or stages than the first, as of an escalation or a
            fallback, which are left out, too.
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
    passed_by_others: int = 0
    selects: bool = False

    @property
    def coverage(self) -> tuple[Coverage, ...]:
        """The coverage with 1, 2, 4, ... draws, and with ``needed`` and the measured ones.

        It goes to twice what was measured, or is needed.
        """
        furthest = 2 * max(self.curve.reach, self.needed or 0)
        draws = {2**power for power in range(furthest.bit_length())}
        draws |= {self.curve.reach, self.needed or 1}
        return tuple(map(self.curve.at, sorted(draws)))

    def to_dict(self) -> dict[str, Any]:
        """Write the plan as plain data.

        Returns:
            What `json.dumps` takes: the fields, with ``coverage``, ``measured`` (the most draws of
            an item) and ``hopeless_at_most`` in place of ``curve``.
        """
        return {
            "target": self.target,
            "items": self.items,
            "passed": self.passed,
            "draws": self.draws,
            "left_out": self.left_out,
            "needed": self.needed,
            "needed_surely": self.needed_surely,
            "measured": self.curve.reach,
            "hopeless_at_most": self.curve.hopeless,
            "coverage": [point._asdict() for point in self.coverage],
            "splits": [asdict(split) for split in self.splits],
            "suggestion": None if self.suggestion is None else asdict(self.suggestion),
            "bottleneck": None if self.bottleneck is None else asdict(self.bottleneck),
            "unsolved": [asdict(item) for item in self.unsolved],
            "complete": self.complete,
            "currency": self.currency,
            "repairs": None if self.repairs is None else asdict(self.repairs),
            "others": self.others,
            "passed_by_others": self.passed_by_others,
            "selects": self.selects,
        }

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._coverage(), *self._costs(), *self._troubles()])

    def _head(self) -> Iterator[str]:
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
            low, high = (f"{100 * n / mended.judged:.0f}" for n in (mended.low, mended.high))
            shown = (
                "" if not mended.low <= mended.passed <= mended.high else " No difference shown."
            )
            share = percent(mended.passed, mended.judged)
            yield (
                f"{plural(mended.judged, 'repair')} left out: {share} passed, of draws made anew"
                f" it would have been {low} to {high} %.{shown} All below is for draws made anew."
            )
        if cut := self.curve.cut:
            yield (
                f"{plural(cut, 'draw')} raced and were cancelled: each may have passed or failed,"
                " so the intervals are wide. A run with --lanes 1 tells more."
            )
        yield f"Never pass: {percent(self.curve.hopeless, 1)} of items at most."
        yield from self._answer()

    def _answer(self) -> Iterator[str]:
        wanted, measured = percent(self.target, 1), plural(self.curve.reach, "draw")
        if self.needed is not None:
            at = self.curve.at(self.needed)
            surely = self.needed_surely
            safe = "no number is" if surely is None else f"{count(surely)} to be"
            yield (
                f"For {wanted} it takes {plural(self.needed, 'draw')} of each item"
                f" ({safe} on the safe side; {count(self.needed)} reach"
                f" {_between(at.low, at.high)})."
            )
            if at.extrapolated:
                yield f"That is extrapolated: no item had more than {measured}."
            return
        most = self.curve.at(FURTHEST * self.curve.reach)
        if most.high < self.target:
            yield f"{wanted} can't be reached with up to {plural(most.draws, 'draw')} of each item."
        else:
            yield (
                f"How many draws {wanted} takes can't be known from this run: {count(most.draws)}"
                f" would reach {_between(most.low, most.high)}, and further than that nothing is"
                " forecast."
            )
        yield f"No item had more than {measured}: draw the unsolved ones {count(most.draws)} times."

    def _coverage(self) -> Iterator[str]:
        yield f"{'draws':>8}  {'coverage':>9}"
        for at in self.coverage:
            kind = "extrapolated" if at.extrapolated else "measured"
            yield f"{at.draws:>8}  {percent(at.share, 1):>9}  {kind}, {_between(at.low, at.high)}"

    def _costs(self) -> Iterator[str]:
        if not self.splits:
            return
        yield ""
        yield "Expected for each item, by loop_budget x concurrency_budget:"
        for split in self.splits:
            mark = "  <- suggested (least requests x seconds)" if split is self.suggestion else ""
            yield f"{_budgets(split):>12}  {self._takes(split)}{mark}"

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
            yield (f"Nothing passed of {plural(len(self.unsolved), 'item')}:")
            for item in self.unsolved[:_LISTED]:
                yield f"  #{item.id} {item.label}: {plural(item.draws, 'draw')}"
            more = len(self.unsolved) - _LISTED
            if more > 0:
                yield f"  ... and {count(more)} more"


def _budgets(split: Split) -> str:
    return f"{split.loop_budget} x {split.concurrency_budget}"


def _between(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f} %"
