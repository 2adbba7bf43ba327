"""The candidate that is most like all the others."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from mellea_like.core.decision import Decision
from mellea_like.sampling.selections.base import BaseSelection, SelectionFacts, SelectionState
from mellea_like.sampling.selections.best_of import check_n
from mellea_like.sampling.selections.marks import read_score

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.validation import Candidate

__all__ = ["Consensus", "word_overlap"]


def word_overlap(one: Candidate, other: Candidate) -> float:
    """Return how alike two texts are: 2 M / T, of T words of both M in matching blocks.

    That is `difflib.SequenceMatcher.ratio` over words (Ratcliff and Obershelp 1988).

    Args:
        one: a candidate.
        other: another.

    Returns:
        From 0.0, no word in common, to 1.0, the same words in the same order.
    """
    return SequenceMatcher(None, one.text.split(), other.text.split(), autojunk=False).ratio()


@dataclass(frozen=True, slots=True)
class Consensus(BaseSelection):
    """The candidate most like all the others: minimum Bayes risk; peers call it MBRD.

    For free text, where hardly two draws are equal and a vote has no majority. It compares each two
    once, in the event loop: n (n - 1) / 2 calls of ``similarity``.

    Args:
        similarity: takes two `Candidate`s and returns a float, more for more alike; synchronous
            and symmetric. None for `word_overlap`.
        n: how many are to pass.

    Raises:
        TypeError: ``similarity`` is not callable.
        ValueError: ``n`` is below 1.
    """

    similarity: Callable[[Candidate, Candidate], float] = word_overlap
    n: int = 8

    def __post_init__(self) -> None:
        if not callable(self.similarity):
            msg = f"Consensus(similarity) is a function of two Candidates, not {self.similarity!r}"
            raise TypeError(msg)
        check_n(self.n, "Consensus")

    @property
    def mark(self) -> Callable[[Candidate], Any]:
        """The candidate itself."""
        return lambda candidate: candidate

    def begin(self, facts: SelectionFacts) -> _State:
        """Begin a call."""
        return _State(self, facts)


class _State(SelectionState):
    def __init__(self, config: Consensus, facts: SelectionFacts) -> None:
        super().__init__("consensus", facts, config.n)
        self._similarity = config.similarity

    def decide(self) -> Decision | None:
        if not self.passed:
            return None
        n = len(self.passed)
        sums = [0.0] * n
        for i in range(n):
            for j in range(i + 1, n):
                alike, _ = read_score(self._similarity(self.marks[i], self.marks[j]))
                sums[i] += alike
                sums[j] += alike
        best = min(range(n), key=lambda i: (-sums[i], self.by_rank(i)))
        others = max(1, n - 1)
        return Decision(
            self.kind,
            (self.passed[best].iteration,),
            self.reason,
            scores={s.iteration: sums[i] / others for i, s in enumerate(self.passed)},
            abstentions=self.abstentions,
        )
