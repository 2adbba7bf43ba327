"""Draws that are counted: the answer that most give, and several instead of one."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, exp
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.core.decision import Decision
from mellea_like.sampling.selections.base import (
    BaseSelection,
    Key,
    Scorer,
    SelectionFacts,
    SelectionState,
    check_key,
    check_n,
    keying,
    scoring,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate

__all__ = ["Collect", "Vote", "majority_confidence"]


@dataclass(frozen=True, slots=True)
class Vote(BaseSelection):
    """The most frequent answer (self-consistency); of equally frequent ones the lowest rank.

    Each draw that passes has one vote. The call ends as soon as the answer in front can't be
    overtaken by the votes that are left, or is likely enough to stay in front.

    Args:
        key: takes a `Candidate` and returns what it votes for; None for the tools that it calls
            (see `tool_key`), else its parsed value, or its text without surrounding blanks. The
            winner is the first draw with that key.
        n: how many votes to count at most.
        confidence: how likely it must be that the first of the two leading answers is the more
            frequent one: P(Beta(a + 1, b + 1) > 1/2), a and b being their votes (adaptive
            consistency, arXiv 2305.11860); None for certainty.
        weight: a scorer, whose score (not negative) is the weight of a draw's vote; then all n
            votes are counted. ``"logprob"`` weighs each by the geometric mean of its tokens'
            probabilities, from 0 to 1 (Wang et al. 2022, arXiv 2203.11171, section 3.1), for which
            the draws have to be asked for: ``options={"extra": {"logprobs": True}}``. None for one
            each.

    Raises:
        TypeError: ``key`` or ``weight`` is not callable, or ``key`` is async.
        ValueError: ``n`` is below 1, or ``confidence`` not between 0.5 and 1.
    """

    key: Key | None = None
    n: int = 16
    confidence: float | None = 0.95
    weight: Scorer | Literal["logprob"] | None = None

    def __post_init__(self) -> None:
        check_key(self.key, "Vote(key=...)")
        if self.weight not in (None, "logprob") and not callable(self.weight):
            msg = (
                f"Vote(weight=...) is a function of a Candidate, or 'logprob', not {self.weight!r}"
            )
            raise TypeError(msg)
        check_n(self.n, "Vote")
        if self.confidence is not None and not 0.5 <= self.confidence < 1:  # noqa: PLR2004
            msg = (
                f"Vote(confidence=...) lies between 0.5 and 1, or is None for certainty, not"
                f" {self.confidence!r}"
            )
            raise ValueError(msg)

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]]:
        """The key, and the weight of the vote."""
        keyed = keying(self.key)
        if self.weight is None:
            return lambda candidate: (keyed(candidate), 1.0)
        if self.weight == "logprob":
            return lambda candidate: (keyed(candidate), _likelihood(candidate))
        weighed = scoring(self.weight)

        async def mark(candidate: Candidate) -> tuple[Hashable, float]:
            weight, _ = await weighed(candidate)
            if weight < 0:
                msg = f"the weight of a vote is not negative, and this one is {weight:g}"
                raise ValueError(msg)
            return keyed(candidate), weight

        return mark

    def begin(self, facts: SelectionFacts) -> _VoteState:
        """Begin a call."""
        return _VoteState(self, facts)


class _VoteState(SelectionState):
    def __init__(self, config: Vote, facts: SelectionFacts) -> None:
        super().__init__("vote", facts, config.n)
        self.judge = getattr(config.weight, "scored_by", None)
        self._config = config
        self._votes: dict[Any, float] = {}
        self._ahead: Any = None
        self._first = self._second = 0.0

    def enough(self) -> str:
        key, weight = self.marks[-1]
        votes = self._votes[key] = self._votes.get(key, 0.0) + weight
        wanted = self.most - len(self.passed)
        if wanted <= 0 or self._config.weight is not None:
            return super().enough()
        if votes > self._first:
            if key != self._ahead:
                self._ahead, self._second = key, self._first
            self._first = votes
        elif votes > self._second:
            self._second = votes
        first, second = int(self._first), int(self._second)
        left = min(wanted, self.turns_left)
        if first - second > left:
            return f"{first} to {second} votes can't be overtaken by {left}"
        confidence = self._config.confidence
        # A vote for another makes it no likelier.
        if confidence is None or key != self._ahead:
            return ""
        if majority_confidence(first, second) >= confidence:
            return f"{first} to {second} votes: the majority, with {confidence:g} confidence"
        return ""

    def decide(self) -> Decision | None:
        if not self.passed:
            return None
        ranks = [slice_.rank for slice_ in self.passed]
        first_of: dict[Any, int] = {}
        for i in sorted(range(len(ranks)), key=ranks.__getitem__):
            first_of.setdefault(self.marks[i][0], i)
        # They are in the order of their ranks, and equal ones stay so.
        order = sorted(first_of, key=self._votes.__getitem__, reverse=True)
        names = {key: shown(key) for key in order}
        total = sum(self._votes.values())
        votes: dict[str, float] = {}
        for key, name in names.items():
            votes[name] = votes.get(name, 0.0) + self._votes[key]
        return Decision(
            self.kind,
            (self.passed[first_of[order[0]]].iteration,),
            self.reason,
            votes=votes,
            ballots={
                s.iteration: names[key] for s, (key, _) in zip(self.passed, self.marks, strict=True)
            },
            share=self._votes[order[0]] / total if total else None,
            abstentions=self.abstentions,
        )


def _likelihood(candidate: Candidate) -> float:
    """Return the geometric mean of the probabilities of a draw's tokens."""
    mean = candidate.generation.mean_logprob
    if mean is None:
        msg = (
            "Vote(weight='logprob') needs the log-probabilities of a draw's tokens, and this reply"
            " has none: ask for them with options={'extra': {'logprobs': True}}, of a backend that"
            " gives them, such as OpenAIBackend"
        )
        raise ValueError(msg)
    return exp(mean)


def majority_confidence(first: int, second: int) -> float:
    """Return how likely the leading answer is the more frequent of the two leading ones.

    P(Beta(first + 1, second + 1) > 1/2), which is the chance that of first + second + 1 tosses of a
    coin at most ``first`` are heads (arXiv 2305.11860, section 3).

    Args:
        first: the votes of the leading answer.
        second: the votes of the next one.

    Returns:
        The probability, from 0 to 1.
    """
    tosses = first + second + 1
    below: int = sum(comb(tosses, heads) for heads in range(first + 1))
    return below / (1 << tosses)


@dataclass(frozen=True, slots=True)
class Collect(BaseSelection):
    """The first k draws that pass: ``result.values`` has them, in the order they came.

    The call is a success when there are k. With fewer, ``result.candidates`` has what there is.

    Args:
        k: how many.
        distinct: takes a `Candidate` and returns a key: of the draws with equal keys only the
            first counts. None where equal ones count, too.
        ahead: how many draws may be under way for each that is still wanted; more than 1 is
            quicker where draws fail, and costs more: those left at the end are cancelled.

    Raises:
        TypeError: ``distinct`` is not callable, or async.
        ValueError: ``k`` or ``ahead`` is below 1.
    """

    k: int
    distinct: Key | None = None
    ahead: int = 1

    def __post_init__(self) -> None:
        check_n(self.k, "Collect")
        check_key(self.distinct, "Collect(distinct=...)")
        if self.ahead < 1:
            msg = f"Collect(ahead=...) is an int of at least 1, not {self.ahead!r}"
            raise ValueError(msg)

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]] | None:
        """The key that draws differ by."""
        return None if self.distinct is None else keying(self.distinct)

    def begin(self, facts: SelectionFacts) -> _CollectState:
        """Begin a call."""
        return _CollectState(self, facts)


class _CollectState(SelectionState):
    def __init__(self, config: Collect, facts: SelectionFacts) -> None:
        super().__init__("collect", facts, config.k)
        self._config = config
        self._kept: list[Slice] = []
        self._seen: set[Any] = set()

    def wanted(self) -> int:
        return (self._config.k - len(self._kept)) * self._config.ahead

    def enough(self) -> str:
        if self._config.distinct is None or self.marks[-1] not in self._seen:
            self._seen.add(self.marks[-1])
            self._kept.append(self.passed[-1])
        return "" if self.wanted() else f"{len(self._kept)} passed"

    def decide(self) -> Decision | None:
        if not self._kept:
            return None
        winners, k = tuple(slice_.iteration for slice_ in self._kept), self._config.k
        what = "passed" if self._config.distinct is None else "different ones passed"
        return Decision(
            self.kind,
            winners[:k],
            self.reason or f"{len(winners)} of {k} {what}",
            complete=len(winners) >= k,
            abstentions=self.abstentions,
        )
