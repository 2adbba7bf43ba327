"""Selections that count draws: the most frequent answer, or several answers instead of one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import exp, isinf, lgamma, log, pi
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.decision import Answer, Decision
from mellea_like.core.slice import Outcome, Slice
from mellea_like.selections.base import (
    Answers,
    BaseSelection,
    Key,
    Scorer,
    SelectionFacts,
    SelectionState,
    check_key,
    keying,
    label_of,
    scoring,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.validation import Candidate

__all__ = ["Collect", "Vote", "majority_confidence"]


@dataclass(frozen=True, slots=True)
class Vote(BaseSelection):
    """The most frequent answer wins (self-consistency); in a tie, the lowest rank decides.

    Each draw that passes has one vote, and answers are the same if they are equal (``==``). The
    call ends as soon as the remaining votes can't change the winner, or as soon as it is certain
    enough that the leading answer is more frequent than the next one.

    Args:
        key: a function of a `Candidate` that returns its answer. By default, the answer is the
            tools that the reply calls (see `tool_key`), or its parsed value, or its text without
            surrounding spaces. A draw whose key is None abstains. The winner is the first draw
            with the winning key.
        n: the most votes to count; None for as many as the call may make draws. A call that can't
            make that many draws counts those that it makes.
        confidence: how certain it must be that the leading answer is more frequent than the next
            one, from 0.5 to 1; see `majority_confidence`. For this, draws count in the order in
            which they started, up to the first one that hasn't ended. If all n draws start
            together, stopping early would save nothing, so the vote doesn't stop early. With
            ``confidence=None``, the vote ends only when the remaining votes can't change the
            winner.
        weight: a scorer whose score, finite and not negative, is the weight of a draw's vote. All n
            votes are then counted. ``"logprob"`` weighs a vote by the geometric mean of its tokens'
            probabilities, from 0 to 1 (Wang et al. 2022, arXiv 2203.11171, section 3.1); this needs
            ``options={"extra": {"logprobs": True}}``. By default, each vote has the weight 1.
        at_least: the share of all votes that the winner needs, above 0 and up to 1. If no answer
            has it, there is no winner, and the call isn't a success. By default, any share is
            enough.

    Raises:
        TypeError: ``key`` or ``weight`` is not callable, ``key`` is async, or a number is of the
            wrong type.
        ValueError: ``n`` is below 1, ``confidence`` is not between 0.5 and 1, or ``at_least`` is
            not over 0, or is over 1.
    """

    key: Key | None = None
    n: int | None = 16
    confidence: float | None = 0.95
    weight: Scorer | Literal["logprob"] | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        check_key(self.key, "Vote(key=...)")
        if self.weight not in (None, "logprob") and not callable(self.weight):
            must = "a function of a Candidate or 'logprob'"
            msg = f"Vote(weight=...) must be {must}, not {self.weight!r}"
            raise TypeError(msg)
        if self.n is not None:
            whole_number("Vote: n", self.n)
        if self.confidence is not None:
            real_number("Vote: confidence", self.confidence, least=0.5, under=1)
        if self.at_least is not None:
            real_number("Vote: at_least", self.at_least, over=0.0, most=1.0)

    @property
    def features(self) -> tuple[str, ...]:
        """``several`` and, if votes have weights, ``scored``; see `BaseSelection.features`."""
        return ("several",) if self.weight is None else ("several", "scored")

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]]:
        """The function that marks a candidate with its answer and the weight of its vote."""
        keyed = keying(self.key)
        if self.weight is None:
            return lambda candidate: (keyed(candidate), 1.0)
        if self.weight == "logprob":
            return lambda candidate: (keyed(candidate), _likelihood(candidate))
        weighed = scoring(self.weight)

        async def mark(candidate: Candidate) -> tuple[Any, float]:
            weight, _ = await weighed(candidate)
            if weight < 0 or isinf(weight):
                msg = f"the weight of a vote must be finite and not negative, not {weight:g}"
                raise ValueError(msg)
            return keyed(candidate), weight

        return mark

    def begin(self, facts: SelectionFacts) -> _VoteState:
        """Return the state for a new call."""
        return _VoteState(self, facts)


class _Tally:
    """Counts votes, and keeps track of the two leading answers. Answers are given as indices."""

    def __init__(self) -> None:
        self.votes: dict[int, float] = {}
        self.draws: dict[int, list[Slice]] = {}
        self.total = self.first = self.second = 0.0
        self.ahead: int | None = None

    def add(self, answer: int, weight: float, slice_: Slice) -> None:
        votes = self.votes[answer] = self.votes.get(answer, 0.0) + weight
        self.draws.setdefault(answer, []).append(slice_)
        self.total += weight
        if answer == self.ahead:
            self.first = votes
        elif votes > self.first:
            self.ahead, self.first, self.second = answer, votes, self.first
        elif votes > self.second:
            self.second = votes


class _Ballot(NamedTuple):
    """A draw that has ended; ``answer`` is None if the draw has no vote."""

    slice: Slice
    answer: int | None


class _VoteState(SelectionState):
    def __init__(self, config: Vote, facts: SelectionFacts) -> None:
        super().__init__("vote", facts, config.n, at_most=True)
        self.judge = getattr(config.weight, "scored_by", None)
        self._config = config
        self._answers = Answers()
        self._cast = 0
        self._counted = self._all = _Tally()
        # Wrong replies may be quicker than right ones, so the draws that have ended are not a
        # random sample. The draws in the order they started are one, however long each takes, if
        # we look at each only when all before it have ended. Then the decision to stop depends
        # only on the votes up to that point. So the confidence is computed over the draws in this
        # order, which is called the line.
        self._in_order = config.confidence is not None and config.weight is None
        self._line: OrderedDict[int, _Ballot | None] = OrderedDict()
        self._in_line = _Tally()
        self._confident = ""
        self._all_at_once: bool | None = None

    def start(self, iteration: int) -> None:
        if self._in_order:
            self._line[iteration] = None

    def hear(self, slice_: Slice, mark: Any) -> bool:
        if self._all_at_once is None:
            self._all_at_once = len(self._line) >= self.most
        answer = None
        passed = slice_.outcome is Outcome.PASSED
        if passed and mark[0] is None:
            self.abstentions += 1
        elif passed:
            key, weight = mark
            answer = self._answers.place(key)
            self._all.add(answer, weight, slice_)
            self._cast += 1
        if self._in_order:
            self._line[slice_.iteration] = _Ballot(slice_, answer)
            self._count_in_line()
        decided = super().hear(slice_, mark)
        if not passed:
            # There is one vote less to come, and others may have waited for this draw.
            self.reason = self.enough()
            decided = bool(self.reason)
        return decided

    def wanted(self) -> int:
        return max(0, self.most - self._cast)

    def enough(self) -> str:
        wanted, at_least = self.wanted(), self._config.at_least
        if not wanted:
            return f"{self._cast} votes"
        left = min(wanted, self.turns_left)
        if self._config.weight is not None or not left or not self._cast:
            return ""
        first, second, total = int(self._all.first), int(self._all.second), self._cast
        if at_least is not None and (first + left) / (total + left) < at_least:
            return f"{first} of {total} votes can't become {100 * at_least:g} % with {left} more"
        has_share = at_least is None or first / (total + left) >= at_least
        if first - second > left and has_share:
            return f"{first} to {second} votes can't be overtaken by {left}"
        if self._confident and not self._all_at_once:
            self._counted = self._in_line
            return self._confident
        # If all draws began together, stopping for confidence would save only the time of slow
        # draws. And if right replies are slow, it would stop with the wrong ones.
        return ""

    def _count_in_line(self) -> None:
        """Count votes in the order in which draws started, up to the first that hasn't ended."""
        confidence, at_least = self._config.confidence, self._config.at_least
        assert confidence is not None  # noqa: S101 (else nothing is in line)
        votes = self._in_line
        while self._line and not self._confident:
            iteration, ballot = next(iter(self._line.items()))
            if ballot is None:
                return
            del self._line[iteration]
            if ballot.answer is None:
                continue
            votes.add(ballot.answer, 1.0, ballot.slice)
            # A vote for another answer doesn't make the leading one more certain.
            if ballot.answer != votes.ahead:
                continue
            if at_least is not None and votes.first / votes.total < at_least:
                continue
            first, second = int(votes.first), int(votes.second)
            if majority_confidence(first, second) >= confidence:
                why = f"the majority, with {confidence:g} confidence"
                self._confident = f"{first} to {second} votes: {why}"

    def decide(self) -> Decision:
        counted, keys = self._counted, self._answers.keys
        draws = {a: sorted(its, key=lambda s: s.rank) for a, its in counted.draws.items()}
        order = sorted(draws, key=lambda a: (-counted.votes[a], draws[a][0].rank))
        answers = tuple(
            Answer(label_of(keys[a]), counted.votes[a], tuple(s.iteration for s in draws[a]))
            for a in order
        )
        share = counted.first / counted.total if counted.total else None
        at_least, short = self._config.at_least, ""
        if not answers:
            short = f"all {len(self.passed)} that passed abstained"
        elif at_least is not None and (share or 0.0) < at_least:
            short = f"the first answer has {100 * (share or 0.0):.3g} % of the votes"
            short += f", not {100 * at_least:g} %"
        return Decision(
            self.kind,
            () if short else (answers[0].iteration,),
            short or self.reason,
            complete=not short,
            answers=answers,
            share=share,
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
    """Return how certain it is that the leading answer is more frequent than the next one.

    It may be computed after each vote, and the vote stopped at any time. If one of the two answers
    is more frequent, the chance that the other one ever leads with a certainty of ``c`` or more is
    at most ``1 - c``. If both are equally frequent, this holds for each of them, so the chance that
    the certainty ever reaches ``c`` is at most ``2 * (1 - c)``. Answers are compared two at a time,
    as in Jain et al. 2022 (arXiv 2109.05047).

    Args:
        first: the votes of the leading answer.
        second: the votes of the next answer, from 0 to ``first``.

    Returns:
        The certainty, from 0 to 1. For example, 0.95 takes 6 votes to 0, 10 to 1 or 12 to 2.
    """
    # It is 1 - 1 / (2 M - 1), with n votes for both answers and
    # M = 2^n B(first + 1/2, second + 1/2) / pi. The proof: M is the likelihood ratio of the votes
    # against a fair coin, averaged over rates from 0 to 1 with the weights of Beta(1/2, 1/2)
    # (Krichevsky and Trofimov 1981). Half of the weight is on rates below 1/2. There, the ratio is
    # at most 1, because `first` is at least `second`. So if U is the average over the rates above
    # 1/2, M is at most (1 + U) / 2, and U is at least 2 M - 1. As votes come in, U is a
    # supermartingale that starts at 1. So the chance that it ever exceeds 1 / (1 - c) is at most
    # 1 - c (Ville's inequality).
    n = first + second
    log_m = n * log(2) + lgamma(first + 0.5) + lgamma(second + 0.5) - lgamma(n + 1) - log(pi)
    inverse = exp(-log_m)
    return 1 - inverse / (2 - inverse) if inverse < 1 else 0.0


@dataclass(frozen=True, slots=True)
class Collect(BaseSelection):
    """The first k draws that pass win. ``result.values`` has their values, in that order.

    The call is a success once it has all k. With fewer, ``result.candidates`` has the draws that
    passed. A call that can't make k draws raises `ValueError` before its first draw.

    Args:
        k: the number of draws to collect.
        distinct: a function of a `Candidate` that returns a key. Among draws with equal keys
            (``==``), only the first one counts. With None, equal ones count too.
        ahead: how many draws may be under way for each one that is still needed. More than 1 is
            quicker if draws fail, but costs more, because the surplus is cancelled at the end.

    Raises:
        TypeError: ``distinct`` is not callable, or is async; or a number isn't an int.
        ValueError: ``k`` or ``ahead`` is below 1.
    """

    k: int
    distinct: Key | None = None
    ahead: int = 1

    def __post_init__(self) -> None:
        whole_number("Collect: k", self.k)
        check_key(self.distinct, "Collect(distinct=...)")
        whole_number("Collect: ahead", self.ahead)

    @property
    def features(self) -> tuple[str, ...]:
        """``several`` and ``collect``; see `BaseSelection.features`."""
        return ("several", "collect")

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]] | None:
        """The function that marks a candidate with its key; None if equal replies count, too."""
        return None if self.distinct is None else keying(self.distinct)

    def begin(self, facts: SelectionFacts) -> _CollectState:
        """Return the state for a new call."""
        return _CollectState(self, facts)


class _CollectState(SelectionState):
    def __init__(self, config: Collect, facts: SelectionFacts) -> None:
        super().__init__("collect", facts, config.k)
        self._config = config
        self._kept: list[Slice] = []
        self._answers = Answers()

    def wanted(self) -> int:
        return (self._config.k - len(self._kept)) * self._config.ahead

    def enough(self) -> str:
        kept = len(self._kept)
        if self._config.distinct is None or self._answers.place(self.marks[-1]) == kept:
            self._kept.append(self.passed[-1])
        return "" if self.wanted() else f"{len(self._kept)} passed"

    def decide(self) -> Decision:
        winners, k = tuple(slice_.iteration for slice_ in self._kept), self._config.k
        what = "passed" if self._config.distinct is None else "different ones passed"
        return Decision(
            self.kind,
            winners[:k],
            self.reason or f"{len(winners)} of {k} {what}",
            complete=len(winners) >= k,
            abstentions=self.abstentions,
        )
