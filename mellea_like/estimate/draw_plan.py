"""The result of `plan`: the number of draws that the next run needs, as data and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.report.markup import clip
from mellea_like.report.numbers import (
    amount,
    bounds,
    count,
    money,
    percent,
    seconds,
    three_digits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mellea_like.pass_rates import Coverage, CoverageCurve

__all__ = ["Bottleneck", "DrawPlan", "Repairs", "Split", "UnsolvedItem"]

_LABEL = 100
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Split:
    """One way to set a strategy's budgets for the needed draws, with its expected cost per item.

    Args:
        loop_budget: the number of draws in each lane, which run one after another.
        concurrency_budget: the number of lanes.
        draws: the expected number of draws that start before one has passed or all have failed.
            Here and below, draws that are cancelled when another draw passes count in full.
        requests: the expected requests for these draws, including judges and retries.
        tokens: the expected tokens of prompts and replies.
        cost: the expected cost in the plan's currency; None without prices.
        seconds: the expected time, if every draw takes the average time of the measured draws.
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
        requirement: the requirement's description.
        judged: the number of replies that passed or failed it.
        failed: the number of replies that failed it.
        alone: the number of replies that failed it and met all others. If checks stop at the first
            failure, skipped requirements don't count as met.
    """

    requirement: str
    judged: int
    failed: int
    alone: int


@dataclass(frozen=True, slots=True)
class Repairs:
    """The success of repairs compared with fresh draws.

    A plan assumes that all draws are fresh. If ``passed`` is more than ``expected``, repairs are
    more likely to pass than fresh draws, so the plan asks for more draws than needed. If ``passed``
    is less than ``expected``, the plan asks for too few.

    Args:
        judged: the number of repairs that were judged.
        passed: the number of repairs that passed.
        expected: the number of passes to expect if each repair were replaced by a fresh draw, given
            the number of failed draws before the repair: in its lane if a selection waits for
            several passes, and otherwise in the whole call.
        low: the lower end of the 95 % interval of ``expected``. It is approximate: in simulations
            in which all items were equally hard, it held in 90 to 93 % of the runs.
        high: the upper end of that interval. If ``passed`` is between ``low`` and ``high``, there
            is no evidence of a difference.
    """

    judged: int
    passed: int
    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class UnsolvedItem:
    """An item none of whose draws passed.

    Args:
        id: the item's position in the run, from 0.
        label: the item's text, shortened.
        draws: the number of its draws, which all failed. The more draws, the less likely it is
            that the item can pass at all.
    """

    id: int
    label: str
    draws: int


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The number of draws needed for a target, and their cost. ``print`` shows the plan as text.

    Args:
        target: the share of items that should pass.
        items: the number of different items with a draw that was judged, ran into a time limit, was
            cancelled, or had not ended.
        passed: the number of these items that passed, whether with a fresh draw or a repair.
        draws: the number of draws that the figures are based on.
        left_out: the number of all other draws: repairs, errors, cancelled draws, and ``others``.
        curve: the coverage (the share of items with a draw that passes) by number of draws.
        needed: the smallest number of draws per item with which the coverage reaches the target. It
            is None if four times the measured draws are too few: forecasts extend no further. If
            draws raced (`CoverageCurve.raced`), nothing beyond the measured draws is forecast.
        needed_surely: the same number, but for the lower end of the coverage's 95 % interval.
        splits: ways to make ``needed`` draws, from one after another to all in parallel. Empty if
            ``needed`` is None.
        suggestion: the split with the smallest product of requests and seconds, so that one per
            cent fewer requests is worth as much as one per cent less time.
        bottleneck: the requirement that failed most often; None if no requirement failed.
        unsolved: the items that never passed, those with the most draws first.
        complete: whether the whole cost of the draws is known; if not, tokens and cost are lower
            bounds. It is False if any draws were cancelled.
        currency: the currency of ``cost``.
        repairs: a comparison of repairs with fresh draws. It is None if no repair was judged, if no
            item has two or more first draws, or if first draws were cancelled.
        others: the number of judged draws by models or stages other than the first, as in an
            escalation or a fallback. ``left_out`` includes them.
        passed_by_others: the number of items in ``passed`` that passed only by draws in ``others``.
        selects: whether the run had a selection that continues after a first pass, such as a vote.
            Even then, the plan is for a single draw that passes.
        under_way: the number of unfinished items of runs that are still running or were killed.
            Draws that were under way are not in the journal, so the draws of these items are mostly
            quick ones. If there are many such items, the intervals are too narrow.
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
    under_way: int = 0

    @property
    def coverage(self) -> tuple[Coverage, ...]:
        """The coverage with 1, 2, 4, ... draws, ``needed`` draws, and the most draws of an item.

        The numbers of draws extend up to twice the measured or the needed number, whichever is
        greater, but no further than forecasts do.
        """
        furthest = min(2 * max(self.curve.reach, self.needed or 0), self.curve.furthest)
        draws = {2**power for power in range(furthest.bit_length())}
        draws |= {self.curve.reach, self.needed or 1}
        return tuple(map(self.curve.at, sorted(draws)))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data.

        Returns:
            A dict of the plan's fields, for `json.dumps`. In place of ``curve``, it has
            ``coverage``, ``measured`` (the most draws of an item) and ``hopeless_at_most`` (the
            greatest plausible share of items that never pass).
        """
        plain = asdict(self)
        del plain["curve"]
        return plain | {
            "splits": list(plain["splits"]),
            "unsolved": list(plain["unsolved"]),
            "measured": self.curve.reach,
            "hopeless_at_most": self.curve.hopeless,
            "coverage": [point._asdict() for point in self.coverage],
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
                f"{plural(self.others, 'draw')} of other models or stages left out: everything"
                " below is for the first one alone."
            )
        if self.selects:
            yield (
                "The run's selection continues after the first pass: everything below is for one"
                " passing reply."
            )
        if n := self.under_way:
            yield (
                f"{plural(n, 'item')} {'is' if n == 1 else 'are'} not finished, in a run that is"
                " still running or was killed: draws under way are not in the journal. If there are"
                " many, the figures are mostly of quick draws."
            )
        if (repairs := self.repairs) is not None:
            low, high = (f"{100 * n / repairs.judged:.0f}" for n in (repairs.low, repairs.high))
            shown = (
                ""
                if not repairs.low <= repairs.passed <= repairs.high
                else " This shows no difference."
            )
            share = percent(repairs.passed, repairs.judged)
            yield (
                f"{plural(repairs.judged, 'repair')} left out: {share} passed; of fresh draws,"
                f" {low} to {high} % would have.{shown} Everything below is for fresh draws."
            )
        if cut := self.curve.cut:
            more = " A run with one lane tells more." if self.curve.raced else ""
            yield (
                f"{plural(cut, 'draw')} {'was' if cut == 1 else 'were'} cancelled or had not ended"
                " (a race, a time limit or an interruption): each may have passed or failed, so the"
                f" intervals are wide.{more}"
            )
        yield f"Never pass: at most {percent(self.curve.hopeless, 1)} of the items."
        yield from self._answer()

    def _answer(self) -> Iterator[str]:
        wanted, measured = percent(self.target, 1), plural(self.curve.reach, "draw")
        if self.needed is not None:
            at = self.curve.at(self.needed)
            surely = self.needed_surely
            none = f"no number up to {count(self.curve.furthest)} is surely enough"
            safe = none if surely is None else f"{count(surely)} to be safe"
            yield (
                f"For {wanted} it takes {plural(self.needed, 'draw')} of each item"
                f" ({safe}; {count(self.needed)} {'reaches' if self.needed == 1 else 'reach'}"
                f" {_between(at.low, at.high)})."
            )
            if at.extrapolated:
                yield f"That is extrapolated: no item had more than {measured}."
            return
        most = self.curve.at(self.curve.furthest)
        if most.high < self.target:
            yield f"{wanted} can't be reached with up to {plural(most.draws, 'draw')} of each item."
        else:
            yield (
                f"This run can't tell how many draws {wanted} takes: {count(most.draws)} would"
                f" reach {_between(most.low, most.high)}, and more draws can't be forecast."
            )
        if not self.unsolved:
            yield "All items passed: a run of more items tells more."
            return
        times = "more often, in one lane" if self.curve.raced else f"{count(most.draws)} times"
        yield f"No item had more than {measured}: draw the unsolved ones {times}."

    def _coverage(self) -> Iterator[str]:
        yield f"{'draws':>8}  {'coverage':>9}"
        for at in self.coverage:
            kind = "extrapolated" if at.extrapolated else "measured"
            yield f"{at.draws:>8}  {percent(at.share, 1):>9}  {kind}, {_between(at.low, at.high)}"

    def _costs(self) -> Iterator[str]:
        if not self.splits:
            return
        yield ""
        yield "Expected for each item, by attempts x lanes:"
        for split in self.splits:
            mark = "  <- suggested (least requests x seconds)" if split is self.suggestion else ""
            budgets = f"{split.loop_budget} x {split.concurrency_budget}"
            requests = three_digits(split.requests)
            parts = [
                f"{requests} request" if requests == "1" else f"{requests} requests",
                f"{'' if self.complete else '≥ '}{amount(split.tokens)} tokens",
                seconds(split.seconds),
            ]
            if split.cost is not None:
                parts.append(money(split.cost, self.currency, at_least=not self.complete))
            yield f"{budgets:>12}  {', '.join(parts)}{mark}"

    def _troubles(self) -> Iterator[str]:
        worst = self.bottleneck
        if worst is not None:
            yield ""
            yield (
                f"Fails most often: {clip(' '.join(worst.requirement.split()), _LABEL)}"
                f" ({count(worst.failed)} of {count(worst.judged)},"
                f" {count(worst.alone)} failed only this)"
            )
        if self.unsolved:
            yield ""
            yield (f"No draw passed for {plural(len(self.unsolved), 'item')}:")
            for item in self.unsolved[:_LISTED]:
                yield f"  #{item.id} {item.label}: {plural(item.draws, 'draw')}"
            more = len(self.unsolved) - _LISTED
            if more > 0:
                yield f"  ... and {count(more)} more"


def _between(low: float, high: float) -> str:
    return f"{bounds(low, high)} %"
