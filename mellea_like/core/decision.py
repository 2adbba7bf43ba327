"""The decision of a selection, and the reasons for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.generation import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Answer", "Comparison", "Decision"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that got votes. Draws with equal keys (see `Vote`) gave the same answer.

    Args:
        label: the answer in words, for people. Two long answers may have the same label.
        votes: the total weight of its votes.
        draws: the iterations of the draws that gave this answer, lowest rank first.
    """

    label: str
    votes: float
    draws: tuple[int, ...]

    @property
    def iteration(self) -> int:
        """The iteration of the answer's first draw, which identifies the answer; 0 if unknown."""
        return self.draws[0] if self.draws else 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A judge's verdict on two candidates, which were shown in both orders.

    Args:
        first: the iteration of the first candidate.
        second: the iteration of the second candidate.
        points: the points of the first candidate: 1.0, 0.0, or 0.5 if they tied or the verdicts in
            the two orders disagreed.
    """

    first: int
    second: int
    points: float


@dataclass(frozen=True, slots=True)
class Decision:
    """How a selection chose among the draws that passed.

    Args:
        kind: the selection: ``"best-of"``, ``"vote"``, ``"collect"``, ``"consensus"``,
            ``"tournament"``, or the name of your own.
        winners: the chosen iterations, best first. Only ``"collect"`` has more than one. Empty if
            nothing passed, or if, in a vote, no answer reached the required share.
        reason: why there were no further draws and, if the decision isn't complete, what was
            missing.
        complete: whether there are as many winners as were asked for.
        scores: the score of each passing iteration, if the selection has scores.
        notes: the scorer's explanations of scores, by iteration.
        answers: the answers that got votes, most votes first. Among answers with equal votes, the
            one whose first draw has the lowest rank comes first.
        share: the first answer's share of the votes that were counted, from 0 to 1; None without
            votes. It doesn't estimate how often the model gives this answer: it is too high if a
            vote ended early, above all if this answer is quicker than others.
        abstentions: the number of draws without a vote, because they failed, errored, or passed
            with the key None.
        comparisons: the comparisons of a judge.
        usage: the cost of the comparisons, which isn't part of any draw's usage.
        errors: the errors in comparisons. A pair with an error is a tie.
        model: the model that compared, if its backend names it.
    """

    kind: str
    winners: tuple[int, ...]
    reason: str = ""
    complete: bool = True
    scores: Mapping[int, float] = field(default_factory=dict[int, float])
    notes: Mapping[int, str] = field(default_factory=dict[int, str])
    answers: tuple[Answer, ...] = ()
    share: float | None = None
    abstentions: int = 0
    comparisons: tuple[Comparison, ...] = ()
    usage: Usage = Usage()
    errors: tuple[str, ...] = ()
    model: str | None = None

    @property
    def tied(self) -> tuple[Answer, ...]:
        """The answers that share the first place; empty if a single answer has it."""
        tied = tuple(a for a in self.answers if a.votes == self.answers[0].votes)
        return tied if len(tied) > 1 else ()

    @property
    def heard(self) -> frozenset[int]:
        """The iterations that won, had a score or a vote, or were compared.

        All other iterations failed, were cancelled, came too late, or gave a value that `Collect`
        already had.
        """
        compared = (i for pair in self.comparisons for i in (pair.first, pair.second))
        voted = (i for answer in self.answers for i in answer.draws)
        return frozenset((*self.winners, *self.scores, *voted, *compared))
