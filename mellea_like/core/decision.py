"""What a selection decided, and on what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.generation import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Comparison", "Decision"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a judge said of two candidates, asked in both orders.

    Args:
        first: the iteration of one.
        second: the iteration of the other.
        points: what the first one won: 1.0, 0.5 (a tie, or the orders disagreed) or 0.0.
    """

    first: int
    second: int
    points: float


@dataclass(frozen=True, slots=True)
class Decision:
    """How a selection chose among the slices that passed.

    Args:
        kind: the selection: ``"best-of"``, ``"vote"``, ``"collect"``, ``"consensus"``,
            ``"tournament"``, or the name of your own.
        winners: the iterations chosen, the best first; one, but for ``"collect"``.
        reason: why there were no further draws, and what was short where it is not complete.
        complete: whether there are as many winners as were asked for.
        scores: the score of each passing iteration, where there are scores.
        notes: why a score is what it is, where the scorer said so, by iteration.
        votes: the weight of each key that got a vote, most first.
        ballots: which key each passing iteration voted for, where there are votes.
        share: the winner's share of all votes, from 0 to 1; None without votes.
        abstentions: draws that were judged and did not pass, or errored: they have no say.
        comparisons: what a judge compared.
        usage: what the comparisons cost; no slice has it.
        errors: what went wrong in comparisons; such a pair is even.
        model: the model that compared, where its backend says so.
    """

    kind: str
    winners: tuple[int, ...]
    reason: str = ""
    complete: bool = True
    scores: Mapping[int, float] = field(default_factory=dict[int, float])
    notes: Mapping[int, str] = field(default_factory=dict[int, str])
    votes: Mapping[str, float] = field(default_factory=dict[str, float])
    ballots: Mapping[int, str] = field(default_factory=dict[int, str])
    share: float | None = None
    abstentions: int = 0
    comparisons: tuple[Comparison, ...] = ()
    usage: Usage = Usage()
    errors: tuple[str, ...] = ()
    model: str | None = None

    @property
    def heard(self) -> frozenset[int]:
        """The iterations that had a say: those that won, had a score or a vote, or were compared.

        The others failed, were cancelled, came too late, or equalled one that `Collect` had.
        """
        compared = (i for pair in self.comparisons for i in (pair.first, pair.second))
        return frozenset((*self.winners, *self.scores, *self.ballots, *compared))
