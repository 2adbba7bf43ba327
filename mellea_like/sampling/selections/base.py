"""What a selection is told of a call's draws, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.decision import Decision
from mellea_like.core.slice import Outcome, Slice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.validation import Candidate

__all__ = ["BaseSelection", "SelectionFacts", "SelectionState"]


class SelectionFacts(NamedTuple):
    """What a selection knows of a call when it begins.

    Attributes:
        turns: how many iterations the call may start at most.
    """

    turns: int


class SelectionState(ABC):
    """A selection at work in one call: pure and synchronous.

    It hears each slice in the step that records it. `passed` and `marks` hold those that passed, in
    the order recorded, and what `BaseSelection.mark` made of each.

    Args:
        kind: the selection's name, for the decision.
        facts: what is known of the call.
        n: how many slices are to pass; None for as many as there are turns.
    """

    def __init__(self, kind: str, facts: SelectionFacts, n: int | None) -> None:
        self.kind = kind
        self.most = facts.turns if n is None else min(n, facts.turns)
        self.turns_left = facts.turns
        self.passed: list[Slice] = []
        self.marks: list[Any] = []
        self.abstentions = 0
        self.reason = ""

    def hear(self, slice_: Slice, mark: Any) -> bool:
        """Take note of a slice, and say whether the call is decided.

        Args:
            slice_: the record of an iteration, whatever its outcome.
            mark: what `BaseSelection.mark` made of it; None unless it passed.

        Returns:
            Whether no further draw is needed; `reason` says why.
        """
        self.turns_left -= 1
        if slice_.outcome is not Outcome.PASSED:
            self.abstentions += slice_.outcome is not Outcome.CANCELLED
            return False
        self.passed.append(slice_)
        self.marks.append(mark)
        self.reason = self.enough()
        return bool(self.reason)

    def wanted(self) -> int:
        """Return how many more passing slices could matter: no more draws than that are started."""
        return max(0, self.most - len(self.passed))

    def enough(self) -> str:
        """Say why no further draw is needed, once a slice has passed; empty while some are."""
        return "" if self.wanted() else f"{len(self.passed)} passed"

    def pairs(self) -> list[tuple[int, int]]:
        """Return which passed slices a judge must compare before the winner is known.

        Returns:
            Pairs of positions in `passed`, asked for again until there are none: the engine asks
            the judge of each in both orders, and hands the answers to `compared`.
        """
        return []

    def compared(self, pair: tuple[int, int], points: float) -> None:
        """Take note of a comparison.

        Args:
            pair: the positions of the two in `passed`.
            points: what the first one won: 1.0, 0.5 (no preference) or 0.0.
        """

    @abstractmethod
    def decide(self) -> Decision | None:
        """Decide among the slices that passed.

        Returns:
            The decision; None where none passed.
        """

    def by_rank(self, i: int) -> tuple[int, int]:
        """Return what breaks ties between passed slices: the lowest rank wins."""
        return self.passed[i].rank


class BaseSelection(ABC):
    """Says when there are enough draws, and which of them wins: for selections of your own.

    Configuration only: `begin` makes the state of one call.
    """

    __slots__ = ()

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]] | None:
        """What is asked of each candidate that passes, as validators are: a score, a key.

        None for nothing. An exception makes the slice an errored one.
        """
        return None

    @property
    def n(self) -> int | None:
        """How many draws are to pass at most, for the warning that there are too few turns."""
        return None

    @abstractmethod
    def begin(self, facts: SelectionFacts) -> SelectionState:
        """Begin a call.

        Args:
            facts: what is known of it.

        Returns:
            The state of this call's selection.
        """
