"""Selections: when there are enough draws, and which of them wins."""

from typing import TYPE_CHECKING

from mellea_like.core.decision import Decision
from mellea_like.lazy import lazy_exports
from mellea_like.selections.base import (
    BaseSelection,
    First,
    Key,
    Ordered,
    Scorer,
    SelectionFacts,
    SelectionState,
    tool_key,
)
from mellea_like.selections.best import BestOf, Consensus, word_overlap
from mellea_like.selections.tournament import Tournament
from mellea_like.selections.votes import Collect, Vote, majority_confidence

if TYPE_CHECKING:
    from mellea_like.selections.comparisons import Comparisons

__all__ = [
    "BaseSelection",
    "BestOf",
    "Collect",
    "Comparisons",
    "Consensus",
    "Decision",
    "First",
    "Key",
    "Ordered",
    "Scorer",
    "SelectionFacts",
    "SelectionState",
    "Tournament",
    "Vote",
    "majority_confidence",
    "tool_key",
    "word_overlap",
]

__getattr__, __dir__ = lazy_exports(
    globals(), {"mellea_like.selections.comparisons": "Comparisons"}
)
