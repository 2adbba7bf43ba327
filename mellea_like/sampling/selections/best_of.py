"""The best of several by a score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.core.decision import Decision
from mellea_like.sampling.selections.base import BaseSelection, SelectionFacts, SelectionState
from mellea_like.sampling.selections.marks import Scorer, scoring

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.validation import Candidate

__all__ = ["BestOf", "expected_improvement"]

FEWEST = 4
"""Scores without which their spread is not known."""


@dataclass(frozen=True, slots=True)
class BestOf(BaseSelection):
    """The highest score among those that pass; of equal ones the lowest rank.

    Args:
        score: takes a `Candidate` and returns a float, or ``(float, reason)``; sync or async, or
            a scorer such as `judge_score(...)`. What it raises makes the slice an errored one.
        n: how many are to pass; None for as many as there are turns.
        threshold: a score that is good enough: the first to reach it ends the call.
        stop: ``"expected-improvement"`` ends the call when a further draw no longer pays: when
            the score it is expected to add to the best is less than ``cost``.
        cost: what a draw costs, in units of the score; for ``stop``.

    Raises:
        TypeError: ``score`` is not callable.
        ValueError: ``n`` is below 1, ``stop`` is unknown, or one of ``stop`` and ``cost`` is there
            without the other.
    """

    score: Scorer
    n: int | None = None
    threshold: float | None = None
    stop: Literal["expected-improvement"] | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.score):
            msg = f"BestOf(score) takes a function of a Candidate, not {self.score!r}"
            raise TypeError(msg)
        check_n(self.n, "BestOf")
        if self.stop not in (None, "expected-improvement"):
            msg = f"BestOf(stop=...) is 'expected-improvement' or None, not {self.stop!r}"
            raise ValueError(msg)
        if (self.stop is None) is not (self.cost is None):
            msg = (
                "BestOf(stop='expected-improvement') needs cost=..., what a draw costs in units of"
                " the score; and cost is for nothing else"
            )
            raise ValueError(msg)
        if self.cost is not None and not 0 < self.cost < math.inf:
            msg = f"BestOf(cost=...) is a positive number, not {self.cost!r}"
            raise ValueError(msg)

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]]:
        """The score, with its reason."""
        return scoring(self.score)

    def begin(self, facts: SelectionFacts) -> _State:
        """Begin a call."""
        return _State(self, facts)


class _State(SelectionState):
    def __init__(self, config: BestOf, facts: SelectionFacts) -> None:
        super().__init__("best-of", facts, config.n)
        self._config = config

    def enough(self) -> str:
        config = self._config
        scores = [score for score, _ in self.marks]
        if config.threshold is not None and scores[-1] >= config.threshold:
            return f"a score of {scores[-1]:g} reaches {config.threshold:g}"
        if config.cost is not None and len(scores) >= FEWEST:
            gain = expected_improvement(scores)
            if gain < config.cost:
                return f"a further draw would add {gain:.3g}, and costs {config.cost:g}"
        return super().enough()

    def decide(self) -> Decision | None:
        if not self.passed:
            return None
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


def expected_improvement(scores: Sequence[float]) -> float:
    """Return by how much one further draw is expected to raise the best score.

    Pandora's rule (Weitzman 1979; for draws of a model arXiv 2510.01394) draws on while
    E[(v - best)+] exceeds the cost. The distribution of v is not known, so v is taken as normal
    with the mean of the scores so far and the deviation of Student's t of as many degrees of
    freedom as they leave: few scores make the tail wider, and the rule more patient.

    Args:
        scores: those so far, at least 4.

    Returns:
        The expected improvement, in units of the score.
    """
    n, best = len(scores), max(scores)
    degrees = n - 1
    spread = stdev(scores) * math.sqrt((1 + 1 / n) * degrees / (degrees - 2))
    if spread == 0:
        return 0.0
    z = (best - fmean(scores)) / spread
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return spread * (density - z * math.erfc(z / math.sqrt(2)) / 2)


def check_n(n: object, what: str) -> None:
    """Make sure that a number of draws can be."""
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        msg = f"{what}(n=...) is an int of at least 1, not {n!r}"
        raise ValueError(msg)
