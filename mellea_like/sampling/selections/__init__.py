"""Selections: when there are enough draws, and which of them wins."""

from mellea_like.sampling.selections.base import BaseSelection, SelectionFacts, SelectionState
from mellea_like.sampling.selections.best_of import BestOf, expected_improvement
from mellea_like.sampling.selections.collect import Collect
from mellea_like.sampling.selections.consensus import Consensus, word_overlap
from mellea_like.sampling.selections.marks import Key, Scorer
from mellea_like.sampling.selections.tournament import Tournament
from mellea_like.sampling.selections.vote import Vote, majority_confidence

__all__ = [
    "BaseSelection",
    "BestOf",
    "Collect",
    "Consensus",
    "Key",
    "Scorer",
    "SelectionFacts",
    "SelectionState",
    "Tournament",
    "Vote",
    "expected_improvement",
    "majority_confidence",
    "word_overlap",
]
