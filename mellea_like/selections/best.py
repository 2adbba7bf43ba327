"""The best of several draws: by score, or by similarity to the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations
from threading import Event
from typing import TYPE_CHECKING, Any

from mellea_like.core.argument_checks import check_type, is_async, real_number, whole_number
from mellea_like.core.decision import Decision
from mellea_like.core.tools import canonical
from mellea_like.runtime.threads import run_in_thread
from mellea_like.selections.base import (
    BaseSelection,
    Scorer,
    SelectionFacts,
    SelectionState,
    read_score,
    scoring,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from mellea_like.core.validation import Candidate
    from mellea_like.selections.comparisons import Comparisons

__all__ = ["BestOf", "Consensus", "word_overlap"]

QUICK = 2000
"""The most work to do on the event loop; this much takes about a millisecond.

Work is the number of texts times their total length, with 5 characters added to each text.
"""


@dataclass(frozen=True, slots=True)
class BestOf(BaseSelection):
    """The passing draw with the highest score wins; among equal scores, the lowest rank.

    Args:
        score: a plain or async function of a `Candidate` that returns a float or ``(float,
            reason)``, such as `judge_score(...)`. If it raises, the draw counts as errored.
        n: how many draws must pass; None for as many as the call may start. A call that can't make
            that many draws raises `ValueError` before the first one.
        threshold: a score that is good enough. The first draw that reaches it ends the call.
        inline: whether a plain ``score`` is so quick that it may run on the event loop. If not, it
            runs in a worker thread.

    Raises:
        TypeError: ``score`` is not callable, it is async although ``inline`` is set, or a number is
            of the wrong type.
        ValueError: ``n`` is below 1, or ``threshold`` is not finite.
    """

    score: Scorer
    n: int | None = None
    threshold: float | None = None
    inline: bool = False

    def __post_init__(self) -> None:
        check_type("BestOf: score", self.score, Callable, "a function of a Candidate")
        if self.inline and is_async(self.score):
            msg = f"BestOf(inline=True) needs a synchronous score function, not {self.score!r}"
            raise TypeError(msg)
        if self.threshold is not None:
            real_number("BestOf: threshold", self.threshold)
        if self.n is not None:
            whole_number("BestOf: n", self.n)

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]]:
        """The function that marks a candidate with its score and the reason for it."""
        return scoring(self.score, inline=self.inline)

    def begin(self, facts: SelectionFacts) -> _BestOfState:
        """Return the state for a new call."""
        return _BestOfState(self, facts)


class _BestOfState(SelectionState):
    def __init__(self, config: BestOf, facts: SelectionFacts) -> None:
        super().__init__("best-of", facts, config.n)
        self.judge = getattr(config.score, "scored_by", None)
        self._config = config

    def enough(self) -> str:
        config, newest = self._config, self.marks[-1][0]
        if config.threshold is not None and newest >= config.threshold:
            return f"a score of {newest:g} reaches {config.threshold:g}"
        return super().enough()

    def decide(self) -> Decision:
        best = min(range(len(self.passed)), key=lambda i: (-self.marks[i][0], self.by_rank(i)))
        iterations = [slice_.iteration for slice_ in self.passed]
        return Decision(
            self.kind,
            (iterations[best],),
            self.reason,
            scores={it: score for it, (score, _) in zip(iterations, self.marks, strict=True)},
            notes={it: why for it, (_, why) in zip(iterations, self.marks, strict=True) if why},
            abstentions=self.abstentions,
        )


def word_overlap(one: Candidate, other: Candidate) -> float:
    """Return the similarity of two replies by the words of their texts and of their tool calls.

    This is `difflib.SequenceMatcher.ratio` over words (Ratcliff and Obershelp 1988): 2 M / T,
    where T is the number of words in both replies and M the number of words in matching blocks.

    Args:
        one: a candidate.
        other: another candidate.

    Returns:
        The similarity, from 0.0 for no common word to 1.0 for the same words in the same order.
    """
    return SequenceMatcher(None, _words(one), _words(other), autojunk=False).ratio()


def _words(candidate: Candidate) -> list[str]:
    calls = "".join(f" {canonical(call)}" for call in candidate.tool_calls)
    return (candidate.text + calls).split()


@dataclass(frozen=True, slots=True)
class Consensus(BaseSelection):
    """The candidate that is most similar to all others wins (minimum Bayes risk decoding, MBRD).

    This is for free text, in which hardly any two draws are equal, so that a vote has no majority.
    When n draws have passed, each pair is compared once in a worker thread, in n (n - 1) / 2 calls
    of ``similarity``. A cancellation stops the comparisons, but the call's timeout does not. A few
    short texts are compared on the event loop.

    Args:
        similarity: a synchronous, symmetric function of two `Candidate` objects that returns a
            float, which is higher for more similar ones.
        n: how many draws must pass; None for as many as the call may start. A call with fewer
            attempts compares all that pass.

    Raises:
        TypeError: ``similarity`` is not callable, or is async; or ``n`` isn't an int or None.
        ValueError: ``n`` is below 1.
    """

    similarity: Callable[[Candidate, Candidate], float] = word_overlap
    n: int | None = 8

    def __post_init__(self) -> None:
        if not callable(self.similarity) or is_async(self.similarity):
            what = "Consensus(similarity) must be a synchronous function of two Candidates"
            msg = f"{what}, not {self.similarity!r}"
            raise TypeError(msg)
        if self.n is not None:
            whole_number("Consensus: n", self.n)

    @property
    def mark(self) -> Callable[[Candidate], Any]:
        """A function that returns the candidate itself, because candidates are compared whole."""
        return lambda candidate: candidate

    def begin(self, facts: SelectionFacts) -> _ConsensusState:
        """Return the state for a new call."""
        return _ConsensusState(self, facts)


class _ConsensusState(SelectionState):
    def __init__(self, config: Consensus, facts: SelectionFacts) -> None:
        super().__init__("consensus", facts, config.n, at_most=True)
        self._similarity = config.similarity
        self._scores: list[float] = []

    @property
    def quick(self) -> bool:
        lengths = [len(candidate.text) + 5 for candidate in self.marks]
        return self._similarity is word_overlap and len(lengths) * sum(lengths) <= QUICK

    async def settle(self, comparisons: Comparisons) -> None:
        del comparisons  # They are a judge's.
        left = Event()
        if self.quick:
            self._compare(left)
            return
        try:
            await run_in_thread(self._compare, left, name="the comparisons of a consensus")
        finally:
            left.set()

    def _compare(self, left: Event) -> None:
        """Compare all pairs; stop once ``left`` is set, because the call no longer waits."""
        n = len(self.passed)
        sums = [0.0] * n
        for i, j in combinations(range(n), 2):
            if left.is_set():
                return
            alike, _ = read_score(self._similarity(self.marks[i], self.marks[j]))
            sums[i] += alike
            sums[j] += alike
        self._scores = [each / max(1, n - 1) for each in sums]

    def decide(self) -> Decision:
        scores = self._scores or [0.0] * len(self.passed)
        best = min(range(len(scores)), key=lambda i: (-scores[i], self.by_rank(i)))
        return Decision(
            self.kind,
            (self.passed[best].iteration,),
            self.reason,
            scores={s.iteration: scores[i] for i, s in enumerate(self.passed)},
            abstentions=self.abstentions,
        )
