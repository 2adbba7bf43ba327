"""What `plan` found: the draws that the next run needs, as data and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.pass_rates import MOST_DRAWS
from mellea_like.report.markup import clip
from mellea_like.report.numbers import amount, count, money, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mellea_like.pass_rates import Coverage, CoverageCurve, PassRateFit

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
            mark = "  <- suggested (least requests x seconds)" if split is self.suggestion else ""
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


def _budgets(split: Split) -> str:
    return f"{split.loop_budget} x {split.concurrency_budget}"


def _between(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f} %"
