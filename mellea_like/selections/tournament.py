"""A selection that has a judge compare draws two at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mellea_like.core.argument_checks import check_one_of, whole_number
from mellea_like.core.backend import can_judge, is_backend
from mellea_like.core.decision import Comparison, Decision
from mellea_like.selections.base import BaseSelection, SelectionFacts, SelectionState

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.selections.comparisons import Comparisons

__all__ = ["Tournament"]


@dataclass(frozen=True, slots=True)
class Tournament(BaseSelection):
    """A judge model compares candidates two at a time, and the one that it prefers wins.

    When n draws have passed, the judge compares pairs. It sees each pair in both orders, because
    judges tend to prefer the reply that they read first, or last. If its two verdicts disagree,
    each reply gets half a win, and in a knockout, the one of lower rank (attempt, then lane) stays.

    Args:
        judge: the backend that compares; None for the strategy's judge.
        n: how many draws must pass; None for as many as the call may start. A call with fewer
            attempts compares all that pass.
        criterion: what makes a reply better, in words.
        rounds: ``"knockout"`` compares n - 1 pairs, and the loser of a pair is out. ``"pivots"``
            compares each candidate with the ``pivots`` candidates of the lowest rank, and the
            greatest share of wins decides. It costs more, and is more reliable.
        pivots: with ``rounds="pivots"``, the number of candidates that every other candidate is
            compared with.

    Raises:
        TypeError: ``judge`` isn't a backend, or ``n`` or ``pivots`` isn't an int (or None for
            ``n``).
        ValueError: ``n`` or ``pivots`` is below 1, or ``rounds`` is unknown.
    """

    judge: Backend | None = None
    n: int | None = 8
    criterion: str = "answers the request better"
    rounds: Literal["knockout", "pivots"] = "knockout"
    pivots: int = 2

    def __post_init__(self) -> None:
        if self.judge is not None and not is_backend(self.judge):
            msg = f"Tournament(judge) must be a backend, which compares replies, not {self.judge!r}"
            raise TypeError(msg)
        if self.n is not None:
            whole_number("Tournament: n", self.n)
        check_one_of("Tournament: rounds", self.rounds, ("knockout", "pivots"))
        whole_number("Tournament: pivots", self.pivots)

    def begin(self, facts: SelectionFacts) -> _TournamentState:
        """Return the state for a new call.

        Raises:
            ValueError: no judge was given, and the call's judge can't judge.
        """
        judge = facts.judge if self.judge is None else self.judge
        if self.judge is None and judge is not None and not can_judge(judge):
            msg = (
                f"Tournament needs a judge to compare draws, but {type(judge).__name__} can't"
                " judge: pass a backend that can as judge=..."
            )
            raise ValueError(msg)
        return _TournamentState(self, facts, judge)


class _TournamentState(SelectionState):
    def __init__(self, config: Tournament, facts: SelectionFacts, judge: Backend | None) -> None:
        super().__init__("tournament", facts, config.n, at_most=True)
        self.judge = judge
        self._config = config
        self._in: list[int] = []
        """The indices of the draws that are still in a knockout, in order of rank."""
        self._points: dict[tuple[int, int], float] = {}
        """Maps the pairs that were compared to the points of the first draw."""

    async def settle(self, comparisons: Comparisons) -> None:
        self._in = sorted(range(len(self.passed)), key=self.by_rank)
        pairs = self._knockout if self._config.rounds == "knockout" else self._with_pivots
        while not comparisons.halted and (unknown := [p for p in pairs() if p not in self._points]):
            self._points |= await comparisons.compare(unknown, self._config.criterion, self.judge)

    def _knockout(self) -> list[tuple[int, int]]:
        """Return the pairs of the current round. When all are decided, begin the next round."""
        standing = self._in
        while len(standing) > 1:
            pairs = list(zip(standing[::2], standing[1::2], strict=False))
            if any(pair not in self._points for pair in pairs):
                return pairs
            # If the number is odd, the last one moves on without a comparison.
            left_over = standing[len(standing) - len(standing) % 2 :]
            won = [a if self._points[a, b] >= 0.5 else b for a, b in pairs]  # noqa: PLR2004
            self._in = standing = won + left_over
        return []

    def _with_pivots(self) -> list[tuple[int, int]]:
        pivots = self._in[: self._config.pivots]
        return [(pivot, other) for at, pivot in enumerate(pivots) for other in self._in[at + 1 :]]

    def decide(self) -> Decision:
        everyone = range(len(self.passed))
        wins, met = [0.0] * len(everyone), [0] * len(everyone)
        for (a, b), points in self._points.items():
            wins[a] += points
            wins[b] += 1 - points
            met[a] += 1
            met[b] += 1
        share = [wins[i] / met[i] if met[i] else 0.5 for i in everyone]
        if self._config.rounds == "knockout":
            best = min(self._in or everyone, key=lambda i: (-wins[i], self.by_rank(i)))
        else:
            best = min(everyone, key=lambda i: (-share[i], self.by_rank(i)))
        at = [slice_.iteration for slice_ in self.passed]
        return Decision(
            self.kind,
            (at[best],),
            self.reason,
            scores={at[i]: share[i] for i in everyone if met[i]},
            abstentions=self.abstentions,
            comparisons=tuple(Comparison(at[a], at[b], p) for (a, b), p in self._points.items()),
        )
