"""The candidate that wins comparisons by a judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.core.decision import Comparison, Decision
from mellea_like.sampling.selections.base import BaseSelection, SelectionFacts, SelectionState
from mellea_like.sampling.selections.best_of import check_n

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.backend import Backend
    from mellea_like.core.validation import Candidate

__all__ = ["Tournament"]


@dataclass(frozen=True, slots=True)
class Tournament(BaseSelection):
    """The candidate that wins when a judge model compares them two at a time.

    When n have passed, each pair is shown to the judge in both orders, for a judge prefers what it
    reads first, or last; where the orders disagree, each has half a win.

    Args:
        judge: the backend that compares; None for the strategy's judge.
        n: how many are to pass.
        criterion: what the better one is better in, in words.
        rounds: ``"knockout"`` compares n - 1 pairs: who loses is out. ``"pivots"`` compares each
            with ``pivots`` of them, the first to pass, and counts wins: dearer and steadier.
        pivots: how many to compare with; for ``"pivots"``.

    Raises:
        TypeError: ``judge`` is no backend.
        ValueError: ``n`` or ``pivots`` is below 1, or ``rounds`` is unknown.
    """

    judge: Backend | None = None
    n: int = 8
    criterion: str = "answers the request better"
    rounds: Literal["knockout", "pivots"] = "knockout"
    pivots: int = 2

    def __post_init__(self) -> None:
        if self.judge is not None and not hasattr(self.judge, "generate"):
            msg = f"Tournament(judge) is a backend that compares, not {self.judge!r}"
            raise TypeError(msg)
        check_n(self.n, "Tournament")
        if self.rounds not in ("knockout", "pivots"):
            msg = f"Tournament(rounds=...) is 'knockout' or 'pivots', not {self.rounds!r}"
            raise ValueError(msg)
        if self.pivots < 1:
            msg = f"Tournament(pivots=...) is an int of at least 1, not {self.pivots!r}"
            raise ValueError(msg)

    @property
    def mark(self) -> Callable[[Candidate], Any]:
        """The candidate itself."""
        return lambda candidate: candidate

    def begin(self, facts: SelectionFacts) -> _State:
        """Begin a call."""
        return _State(self, facts)


class _State(SelectionState):
    def __init__(self, config: Tournament, facts: SelectionFacts) -> None:
        super().__init__("tournament", facts, config.n)
        self._config = config
        self._in: list[int] | None = None
        self._answers: dict[tuple[int, int], float] = {}

    def pairs(self) -> list[tuple[int, int]]:
        if self._in is None:
            self._in = sorted(range(len(self.passed)), key=self.by_rank)
        wanted = self._knockout() if self._config.rounds == "knockout" else self._with_pivots()
        return [pair for pair in wanted if pair not in self._answers]

    def compared(self, pair: tuple[int, int], points: float) -> None:
        self._answers[pair] = points

    def _knockout(self) -> list[tuple[int, int]]:
        """Return the pairs of this round; those whose pair is decided go on to the next."""
        standing = self._in or []
        while len(standing) > 1:
            pairs = list(zip(standing[::2], standing[1::2], strict=False))
            if any(pair not in self._answers for pair in pairs):
                return pairs
            # Of an odd number, the last goes on without a comparison.
            left_over = standing[len(standing) - len(standing) % 2 :]
            won = [a if self._answers[a, b] >= 0.5 else b for a, b in pairs]  # noqa: PLR2004
            self._in = standing = won + left_over
        return []

    def _with_pivots(self) -> list[tuple[int, int]]:
        everyone = sorted(range(len(self.passed)), key=self.by_rank)
        pivots = everyone[: self._config.pivots]
        return [
            (pivot, other)
            for at, pivot in enumerate(pivots)
            for other in everyone[at + 1 :]
        ]

    def decide(self) -> Decision | None:
        if not self.passed:
            return None
        everyone = range(len(self.passed))
        wins, met = [0.0] * len(everyone), [0] * len(everyone)
        for (a, b), points in self._answers.items():
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
            comparisons=tuple(Comparison(at[a], at[b], p) for (a, b), p in self._answers.items()),
        )
