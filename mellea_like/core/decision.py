"""What a selection decided, and on what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
        reason: why no further draw was needed; empty where the turns, the time or a budget ended
            it.
        complete: whether there are as many winners as were asked for.
        scores: the score of each passing iteration, where there are scores.
        notes: why a score is what it is, where the scorer said so, by iteration.
        votes: the weight of each key that got a vote, most first.
        share: the winner's share of all votes, from 0 to 1; None without votes.
        abstentions: draws that were judged and did not pass, or errored: they have no say.
        comparisons: what a judge compared.
        usage: what the comparisons cost; no slice has it.
    """

    kind: str
    winners: tuple[int, ...]
    reason: str = ""
    complete: bool = True
    scores: Mapping[int, float] = field(default_factory=dict[int, float])
    notes: Mapping[int, str] = field(default_factory=dict[int, str])
    votes: Mapping[str, float] = field(default_factory=dict[str, float])
    share: float | None = None
    abstentions: int = 0
    comparisons: tuple[Comparison, ...] = ()
    usage: Usage = Usage()

    def to_dict(self) -> dict[str, Any]:
        """Write it as plain data; what is empty is left out.

        Returns:
            What `json.dumps` takes.
        """
        plain: dict[str, Any] = {
            "kind": self.kind,
            "winners": list(self.winners),
            "reason": self.reason,
            "complete": self.complete,
            "abstentions": self.abstentions,
        }
        if self.scores:
            plain["scores"] = [[iteration, score] for iteration, score in self.scores.items()]
        if self.notes:
            plain["notes"] = [[iteration, note] for iteration, note in self.notes.items()]
        if self.votes:
            plain["votes"] = [[key, weight] for key, weight in self.votes.items()]
            plain["share"] = self.share
        if self.comparisons:
            plain["comparisons"] = [[c.first, c.second, c.points] for c in self.comparisons]
        return plain
