"""Measure whether a judge that compares two replies agrees with people, and is unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.agreement.statistics import Estimate, share
from mellea_like.agreement.verdicts import checked_rows
from mellea_like.core.backend import JUDGE_DEFAULTS, Options
from mellea_like.core.conversation import Context, as_action
from mellea_like.core.generation import Usage
from mellea_like.core.requirement import Requirement
from mellea_like.errors import AuthenticationFailed, LimitExceeded, MelleaError
from mellea_like.requirements.judge import comparison_messages, read_comparison
from mellea_like.runtime.gather import gather
from mellea_like.sampling.strategies import RejectionSamplingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Asked
    from mellea_like.core.validation import Candidate
    from mellea_like.limits.budget import Budget

EQUAL = 0.5
"""The result of a comparison without a winner."""

__all__ = ["ComparisonReport", "LabelledPair", "comparison_agreement"]


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two replies to one task, and a person's choice between them.

    Args:
        first: one reply.
        second: the other reply.
        better: the reply that a person found better: ``"first"``, ``"second"`` or ``"neither"``.
            None if nobody was asked.
        task: the task that the replies answer; None if that is unknown.

    Raises:
        ValueError: ``better`` is none of these values.
    """

    first: str
    second: str
    better: Literal["first", "second", "neither"] | None = None
    task: Asked | None = None

    def __post_init__(self) -> None:
        if self.better not in ("first", "second", "neither", None):
            msg = f"better must be 'first', 'second', 'neither' or None, not {self.better!r}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The result of `comparison_agreement`.

    Args:
        accuracy: the share of labelled pairs on which the judge agrees with the person. If the
            judge prefers different replies in the two orders, its answer counts as ``"neither"``.
            None if there are no labelled pairs with answers.
        consistent: the share of pairs on which the judge gave the same answer in both orders; None
            if there are no pairs with answers.
        prefers_first: among the pairs on which the judge prefers different replies in the two
            orders, the share on which it prefers the reply that it reads first. An unbiased judge
            has 0.5. None if there are no such pairs.
        undecided: the number of pairs without a readable answer. The shares leave them out.
        usage: the cost of all comparisons.
        why_undecided: the reason why the first undecided pair has no answer; None if all pairs are
            decided.
    """

    accuracy: Estimate | None
    consistent: Estimate | None
    prefers_first: Estimate | None
    undecided: int
    usage: Usage
    why_undecided: str | None = None


async def comparison_agreement(
    pairs: Sequence[LabelledPair],
    criterion: str = "answers the request better",
    *,
    judge: Backend,
    confidence: float = 0.95,
    judge_options: Options | Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    concurrency: int = 16,
    on_row: Callable[[], None] | None = None,
) -> ComparisonReport:
    """Measure how consistently a judge compares two replies, and how often it agrees with people.

    The judge gets the same question as in a `Tournament`, twice for each pair: once in each order
    of the replies.

    Args:
        pairs: the pairs of replies.
        criterion: a description of the better reply, as for a `Tournament`.
        judge: the backend that compares the replies.
        confidence: the probability that an interval contains the true number, between 0 and 1.
        judge_options: options for the judge's requests; the default is temperature 0.
        budget: the budget of all comparisons together.
        concurrency: the number of pairs to compare at a time.
        on_row: called without arguments after each pair, for example to show progress.

    Returns:
        The report.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there are no pairs, or an argument is out of range.
        LimitExceeded: the budget is spent.
        AuthenticationFailed: the judge's server refuses the key.
    """
    pairs = checked_rows("comparison_agreement", pairs, LabelledPair, confidence, concurrency)
    strategy = RejectionSamplingStrategy(
        judge,
        loop_budget=2,
        requirements=[Requirement("answers as it was asked to", _readable, inline=True)],
        options=Options.of(judge_options, JUDGE_DEFAULTS),
    )
    costs: list[Usage] = []
    failures: list[str] = []

    async def better(asked: Context, first: str, second: str) -> float | None:
        system, question = comparison_messages(criterion, asked.messages, first, second)
        context = Context([system])
        try:
            result = await strategy.sample(
                question,
                context=context,
                budget=budget,
                on_slice=lambda slice_: costs.append(slice_.usage),
            )
        except (AuthenticationFailed, LimitExceeded):
            raise
        except MelleaError as exc:
            failures.append(str(exc))
            return None
        if not result.success:
            failures.append("; ".join(result.best.problems))
            return None
        return read_comparison(result.best.text)

    async def both_orders(pair: LabelledPair) -> tuple[float | None, float | None]:
        none = Context()
        asked = none if pair.task is None else Context(as_action(pair.task).render(none))
        answers = (
            await better(asked, pair.first, pair.second),
            await better(asked, pair.second, pair.first),
        )
        if on_row is not None:
            on_row()
        return answers

    answers = await gather(pairs, concurrency, both_orders)
    why = failures[0] if failures else None
    return _report(pairs, answers, confidence, sum(costs, Usage()), why)


def _report(
    pairs: Sequence[LabelledPair],
    answers: Sequence[tuple[float | None, float | None]],
    confidence: float,
    usage: Usage,
    why_undecided: str | None,
) -> ComparisonReport:
    decided = [
        (one, other, pair.better)
        for pair, (one, other) in zip(pairs, answers, strict=True)
        if one is not None and other is not None
    ]
    labelled = [(one, other, better) for one, other, better in decided if better is not None]
    right = sum(_winner(one, other) == better for one, other, better in labelled)
    contradicting = [one for one, other, _ in decided if one == other != EQUAL]
    return ComparisonReport(
        share(right, len(labelled), confidence),
        share(sum(one == 1 - other for one, other, _ in decided), len(decided), confidence),
        share(contradicting.count(1.0), len(contradicting), confidence),
        len(pairs) - len(decided),
        usage,
        why_undecided,
    )


def _winner(one: float, other: float) -> str:
    """Return the winner, given the points that each reply got when it was shown first."""
    return "first" if one > other else "second" if one < other else "neither"


def _readable(candidate: Candidate) -> tuple[bool, str]:
    try:
        read_comparison(candidate.text)
    except ValueError as exc:
        return False, str(exc)
    return True, ""
