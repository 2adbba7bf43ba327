"""Measure a judge that gives scores: how well it ranks replies, and the best threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.agreement.statistics import Decisions, best_threshold, decisions_of, ranking
from mellea_like.agreement.verdicts import Labelled, checked_rows, raise_refusal
from mellea_like.checking import CheckResult, check
from mellea_like.core.argument_checks import real_number
from mellea_like.core.generation import Usage
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult
from mellea_like.runtime.gather import gather
from mellea_like.runtime.threads import run_in_thread
from mellea_like.selections.base import scoring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.validation import Candidate
    from mellea_like.limits.budget import Budget
    from mellea_like.selections.base import Scorer

__all__ = ["ScoreReport", "score_agreement"]

FOLDS = 10
"""The number of folds of the cross-validation.

Each fold tests a threshold that was found on the other folds.
"""


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """The result of `score_agreement`.

    Args:
        scores: the score of each row; None if the judge gave none.
        ranking: the probability that a row that people passed has a higher score than a row that
            they failed, with ties counting half (the area under the ROC curve). A judge that
            guesses has 0.5. None if all labels are the same.
        threshold: the best threshold: a reply with at least this score passes. It minimizes the sum
            of two shares: wrong passes and wrong failures (Youden 1950). Infinity if no threshold
            is better than passing nothing; None if all labels are the same.
        decisions: the decisions on the rows, each with a threshold that was found on other rows
            (stratified 10-fold cross-validation). So the decisions don't look better than they
            would be on new replies. Their intervals leave out that the threshold is also due to
            chance, and so are too narrow: in simulations with 50 and 200 rows, those of 95 %
            contained the accuracy of ``threshold`` on new replies in 76 to 93 % of the cases. A row
            has no decision if all rows of one label are in its fold.
        usage: the cost of the scores.
        why_undecided: the reason why the first row without a score has none; None if all rows have
            a score.
    """

    scores: tuple[float | None, ...]
    ranking: float | None
    threshold: float | None
    decisions: Decisions
    usage: Usage
    why_undecided: str | None = None

    @property
    def undecided(self) -> int:
        """The number of rows without a score; all other figures leave these rows out."""
        return self.scores.count(None)


async def score_agreement(
    labelled: Sequence[Labelled],
    score: Scorer,
    *,
    confidence: float = 0.95,
    budget: Budget | None = None,
    concurrency: int = 16,
    on_row: Callable[[], None] | None = None,
) -> ScoreReport:
    """Measure how a judge's scores agree with people's labels, and find the best threshold.

    Args:
        labelled: the replies with their labels.
        score: the scorer, as for `BestOf`: one that `judge_score` makes, a `RewardModel`, or a
            plain or async function of a `Candidate` that returns a finite float or ``(float,
            reason)``. Plain functions run in a worker thread.
        confidence: the probability that an interval contains the true number, between 0 and 1.
        budget: the budget of all scores together.
        concurrency: the number of replies to score at a time.
        on_row: called without arguments after each reply, for example to show progress.

    Returns:
        The report.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there are no rows, or an argument is out of range.
        LimitExceeded: the budget is spent.
        AuthenticationFailed: the judge's server refuses the key.
    """
    rows = checked_rows("score_agreement", labelled, Labelled, confidence, concurrency)
    if not callable(score):
        msg = f"score_agreement needs a function of a Candidate, not {score!r}"
        raise TypeError(msg)
    mark: Any = scoring(score)

    async def score_one(row: Labelled) -> tuple[float | None, CheckResult[Any]]:
        given: list[float] = []

        async def take(candidate: Candidate) -> ValidationResult:
            points, why = await mark(candidate)
            given.append(real_number("the score", points))
            return ValidationResult(True, why)

        scored = Requirement("has a score", take, name="has a score")
        result = await check(row.reply, scored, action=row.task, budget=budget)
        raise_refusal(result.error)
        if on_row is not None:
            on_row()
        return (given[0] if given else None), result

    found = await gather(rows, concurrency, score_one)
    # scikit-learn takes a second to import.
    return await run_in_thread(_report, found, [row.label for row in rows], confidence)


def _report(
    found: Sequence[tuple[float | None, CheckResult[Any]]],
    labelled: Sequence[bool],
    confidence: float,
) -> ScoreReport:
    scores = tuple(points for points, _ in found)
    known = [
        (points, label)
        for points, label in zip(scores, labelled, strict=True)
        if points is not None
    ]
    numbers, labels = [points for points, _ in known], [label for _, label in known]
    decided: list[tuple[bool, bool]] = []
    # Sorted, each fold gets its share of either label: without both, there is no threshold.
    dealt = sorted(known, key=lambda pair: pair[1])
    for fold in range(FOLDS):
        others = [pair for i, pair in enumerate(dealt) if i % FOLDS != fold]
        bar = best_threshold([p for p, _ in others], [label for _, label in others])
        if bar is not None:
            decided += [(points >= bar, label) for points, label in dealt[fold::FOLDS]]
    return ScoreReport(
        scores,
        ranking(numbers, labels),
        best_threshold(numbers, labels),
        decisions_of(decided, confidence),
        sum((result.usage for _, result in found), Usage()),
        next(("; ".join(result.problems) for points, result in found if points is None), None),
    )
