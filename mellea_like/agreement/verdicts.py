"""Measure a judge that gives verdicts: how often it agrees with people, and with itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from mellea_like.agreement.statistics import Decisions, Estimate, decisions_of, share
from mellea_like.checking import GivenReply, ReplyLike, record_of, strategy_for_checks
from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import is_backend
from mellea_like.core.display import shown
from mellea_like.core.generation import Usage
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import AuthenticationFailed
from mellea_like.runtime.gather import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.conversation import Asked
    from mellea_like.core.slice import Slice
    from mellea_like.limits.budget import Budget

__all__ = ["AgreementReport", "JudgeReport", "Labelled", "agreement"]

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A reply that a person has labelled.

    Args:
        reply: the reply, as for `mellea_like.checking.check`.
        label: whether the reply meets the requirement, according to the person.
        task: the task that the reply answers, which the judge sees too; None if it is unknown.

    Raises:
        TypeError: the label is neither true nor false, such as the text "no".
    """

    reply: ReplyLike
    label: bool
    task: Asked | None = None

    def __post_init__(self) -> None:
        label: object = self.label
        if isinstance(label, str) or label not in (True, False):
            msg = f"a label must be True or False, not {label!r}"
            raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """How often a judge, or a panel of judges, agrees with people and with itself.

    Args:
        decisions: the judge's decisions compared with people's. Only first verdicts count.
        undecided: the number of rows whose first verdict was missing or unreadable. The shares
            leave them out.
        self_agreement: the probability that two verdicts on the same row agree; None if no row has
            two verdicts. Its interval, which is Wilson's for the number of rows, is somewhat too
            wide if there are more than two verdicts.
        wrong: the indices of the rows on which the judge disagrees with people.
        why_undecided: the reason why the first undecided row has no verdict. None if all rows are
            decided, and for a panel.
    """

    decisions: Decisions
    undecided: int
    self_agreement: Estimate | None
    wrong: tuple[int, ...]
    why_undecided: str | None = None

    @property
    def accuracy(self) -> Estimate | None:
        """The share of rows on which the judge decided as people did; None if there are no rows."""
        return self.decisions.accuracy

    @property
    def kappa(self) -> Estimate | None:
        """Cohen's kappa, the agreement with people beyond chance; see `Decisions.kappa`."""
        return self.decisions.kappa

    @property
    def wrong_passes(self) -> Estimate | None:
        """The judge's passes, as a share of rows that people failed; None if there are none."""
        return self.decisions.wrong_passes

    @property
    def wrong_failures(self) -> Estimate | None:
        """The judge's failures, as a share of rows that people passed; None if there are none."""
        return self.decisions.wrong_failures


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """The result of `agreement`.

    Args:
        judges: the report on each judge, by its name.
        panel: the report on the majority of the judges' votes; None if there is only one judge. A
            row without a majority, because of a tie or a missing vote, is undecided.
        usage: the cost of all verdicts.
    """

    judges: Mapping[str, JudgeReport]
    panel: JudgeReport | None
    usage: Usage


async def agreement(
    labelled: Sequence[Labelled],
    requirement: str,
    *,
    judges: Backend | Mapping[str, Backend],
    repeats: int = 1,
    confidence: float = 0.95,
    judge_options: Options | Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    concurrency: int = 16,
    on_row: Callable[[], None] | None = None,
) -> AgreementReport:
    """Measure how judges agree with people's labels.

    Each judge is asked about each reply ``repeats`` times, with the same question as in a draw. The
    first verdict is compared with the label. All verdicts together show how often the judge agrees
    with itself. A backend that caches replies always agrees with itself.

    The numbers hold only for replies like the labelled ones. So label replies like those that the
    judge will see, including enough that fail. The intervals assume that rows are independent, so
    don't label several drafts of one reply. People aren't always right either: two people rarely
    have a kappa of 1.

    Args:
        labelled: the replies with their labels.
        requirement: the requirement in words, as the judge sees it.
        judges: the judge, or several judges by name. Several are also measured as a panel.
        repeats: the number of times that each judge is asked about each reply, at least 1.
        confidence: the probability that an interval contains the true number, between 0 and 1.
        judge_options: options for the judges' requests, as for a strategy; the default is
            temperature 0.
        budget: the budget of all verdicts together.
        concurrency: the number of replies to judge at a time.
        on_row: called without arguments each time a reply was judged, for example to show progress.

    Returns:
        The report.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there are no rows or no judges, or an argument is out of range.
        LimitExceeded: the budget is spent.
        AuthenticationFailed: a judge's server refuses the key.
    """
    whole_number("repeats", repeats)
    rows = checked_rows("agreement", labelled, Labelled, confidence, concurrency)
    named = _named(judges)
    wanted = [Requirement(requirement, judge=judge, name=name) for name, judge in named.items()]
    strategy = strategy_for_checks(validate_all=True, judge_options=judge_options)

    async def judge_once(row: Labelled) -> Slice:
        given: GivenReply[Any] = GivenReply(row.reply, row.task)
        record = await record_of(strategy.begin(given, wanted, budget=budget))
        raise_refusal(record.error)
        if on_row is not None:
            on_row()
        return record

    records = await gather(rows * repeats, concurrency, judge_once)
    usage = sum((record.usage for record in records), Usage())
    draws = [records[i :: len(rows)] for i in range(len(rows))]
    labels = [row.label for row in rows]
    votes = [[[_vote(d, i) for d in of_row] for of_row in draws] for i in range(len(wanted))]
    reported = partial(_report, labels=labels, confidence=confidence)
    panel = None
    if len(wanted) > 1:
        panel = reported(
            [
                [_majority([of_judge[row][draw] for of_judge in votes]) for draw in range(repeats)]
                for row in range(len(rows))
            ]
        )
    by_name = {
        name: reported(votes[i], why_undecided=_why(records[: len(rows)], i))
        for i, name in enumerate(named)
    }
    return AgreementReport(by_name, panel, usage)


def checked_rows(
    who: str, given: Iterable[Row], kind: type[Row], confidence: float, concurrency: int
) -> list[Row]:
    """Check the arguments that all measurements share, and return the rows."""
    whole_number("concurrency", concurrency)
    real_number("confidence", confidence, over=0, under=1)
    rows = list(given)
    if not rows:
        msg = f"{who} needs rows: at least one {kind.__name__}(...)"
        raise ValueError(msg)
    for row in rows:
        if not isinstance(row, kind):
            msg = f"each row must be a {kind.__name__}(...), not {shown(row)}"
            raise TypeError(msg)
    return rows


def raise_refusal(error: BaseException | None) -> None:
    """Raise the refusal of a judge's key, because every other row would be refused too."""
    refusal = None if error is None else error.__cause__
    if isinstance(refusal, AuthenticationFailed):
        raise refusal


def _named(judges: Backend | Mapping[str, Backend]) -> Mapping[str, Backend]:
    if is_backend(judges):
        return {"judge": judges}
    if not isinstance(judges, Mapping):
        msg = f"judges must be a backend, or several backends by name, not {judges!r}"
        raise TypeError(msg)
    if not judges:
        msg = "agreement needs at least one judge"
        raise ValueError(msg)
    for judge in judges.values():
        if not is_backend(judge):
            msg = f"judges must be backends, not {judge!r}"
            raise TypeError(msg)
    return judges


def _vote(record: Slice, judge: int) -> bool | None:
    """Return a judge's verdict in one check; None if the judge gave none.

    A reply that fails before any judge is asked, such as an empty one, counts as False.
    """
    if not record.verdicts:  # No judge was asked: the reply is empty, or something went wrong.
        return False if record.error is None else None
    verdict = record.verdicts[judge]
    decided = verdict.status in (ValidationStatus.PASSED, ValidationStatus.FAILED)
    return bool(verdict) if decided else None


def _why(records: Sequence[Slice], judge: int) -> str | None:
    """Return the reason for a judge's first missing verdict; None if none is missing."""
    for record in records:
        if _vote(record, judge) is None:
            return record.verdicts[judge].reason if record.verdicts else str(record.error)
    return None


def _majority(votes: Sequence[bool | None]) -> bool | None:
    needed = len(votes) // 2 + 1
    return next((vote for vote in (True, False) if votes.count(vote) >= needed), None)


def _report(
    votes: Sequence[Sequence[bool | None]],
    labels: Sequence[bool],
    confidence: float,
    why_undecided: str | None = None,
) -> JudgeReport:
    first = [of_row[0] for of_row in votes]
    decided = [(v, label) for v, label in zip(first, labels, strict=True) if v is not None]
    wrong = (i for i, (v, label) in enumerate(zip(first, labels, strict=True)) if v is (not label))
    alike: list[float] = []
    for of_row in votes:
        pairs = list(combinations([vote for vote in of_row if vote is not None], 2))
        if pairs:
            alike.append(sum(one == other for one, other in pairs) / len(pairs))
    itself = share(sum(alike), len(alike), confidence)
    decisions = decisions_of(decided, confidence)
    return JudgeReport(decisions, first.count(None), itself, tuple(wrong), why_undecided)
