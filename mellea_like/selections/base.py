"""Selections: the draws that they hear of, and their answers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from mellea_like.core.argument_checks import is_async
from mellea_like.core.display import bounded, safe_repr, shown
from mellea_like.core.generation import Usage
from mellea_like.core.requirement import Requirement
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.tools import canonical, read_arguments
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from mellea_like.core.backend import Backend
    from mellea_like.core.decision import Decision
    from mellea_like.core.tools import ToolCall
    from mellea_like.core.validation import Candidate

__all__ = [
    "Answers",
    "BaseSelection",
    "First",
    "Key",
    "Ordered",
    "Scorer",
    "SelectionFacts",
    "SelectionState",
    "check_key",
    "check_n",
    "keying",
    "label_of",
    "read_score",
    "scoring",
    "tool_key",
    "unjudged",
]

Scorer: TypeAlias = (
    "Callable[[Candidate], float | tuple[float, str] | Awaitable[float | tuple[float, str]]]"
)
Key: TypeAlias = "Callable[[Candidate], Any]"


class First:
    """The first slice to pass: the default, as ``selection="first"``."""


class Ordered:
    """The slice of the lowest (depth, subsample), as ``selection="ordered"``."""


class SelectionFacts(NamedTuple):
    """The facts of a call that a selection knows when it begins.

    Attributes:
        turns: how many iterations the call may start at most.
    """

    turns: int


class SelectionState(ABC):
    """A selection at work in one call: pure and synchronous.

    It is told of each draw that starts, and hears each slice in the step that records it.
    ``passed`` and ``marks`` hold those that passed, in the order recorded, and what
    `BaseSelection.mark` made of each. If it wants
    comparisons, it names the ``judge`` (None for the call's) and the ``criterion``; a scorer that
    is a `judge_score` names its judge, too, so that budgets are checked beforehand. The engine adds
    to ``usage`` what they cost, to ``errors`` what went wrong, and notes the judge's ``model``.

    Args:
        kind: the selection's name, for the decision.
        facts: the known facts of the call.
        n: how many slices are to pass; None for as many as there are turns.
        at_most: whether fewer do, too. Otherwise a call with fewer turns than ``n`` is refused.
    """

    def __init__(
        self, kind: str, facts: SelectionFacts, n: int | None, *, at_most: bool = False
    ) -> None:
        self.kind = kind
        self.asked = n
        self.at_most = at_most
        self.most = facts.turns if n is None else min(n, facts.turns)
        self.turns_left = facts.turns
        self.passed: list[Slice] = []
        self.marks: list[Any] = []
        self.answers: dict[tuple[int, int], float] = {}
        self.abstentions: int = 0
        self.reason = ""
        self.judge: Backend | None = None
        self.criterion = ""
        self.usage = Usage()
        self.errors: list[Exception] = []
        self.model: str | None = None

    def start(self, iteration: int) -> None:  # noqa: B027 (most need not know)
        """Take note of a draw that starts. Draws that end first are no random sample of these.

        Args:
            iteration: its id, as in the slice that will be heard of it.
        """

    def hear(self, slice_: Slice, mark: Any) -> bool:
        """Take note of a slice, and say whether the call is decided.

        Args:
            slice_: the record of an iteration, whatever its outcome.
            mark: its mark, made by `BaseSelection.mark`; None unless it passed.

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
            Pairs of positions in ``passed``, asked for again until there are none: the engine asks
            the judge of each in both orders, and hands the answers to ``compared``.
        """
        return []

    def compared(self, pair: tuple[int, int], points: float) -> None:
        """Take note of a comparison.

        Args:
            pair: the positions of the two in ``passed``.
            points: what the first one won: 1.0, 0.5 (no preference) or 0.0.
        """
        self.answers[pair] = points

    def steps(self) -> Iterator[None]:
        """Do what takes long before `decide`, a piece for each step.

        The engine takes the steps once no draw is under way: in a worker thread, unless they are
        `quick`. It takes no further one if the call is cancelled, and isn't asked in a call that
        ends otherwise.

        Returns:
            The steps; none by default.
        """
        return iter(())

    @property
    def quick(self) -> bool:
        """Whether all steps together take under a millisecond: then they run on the event loop."""
        return False

    @abstractmethod
    def decide(self) -> Decision:
        """Decide among the slices that passed; it is asked only if one has.

        Returns:
            The decision. Without a winner, it is not complete.
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
        """The mark of each candidate that passes, asked for as validators are: a score, a key.

        None for nothing. An exception makes the slice an errored one.
        """
        return None

    @property
    def features(self) -> tuple[str, ...]:
        """Its features, for the table of options that exclude each other."""
        return ("several", "scored")

    @abstractmethod
    def begin(self, facts: SelectionFacts) -> SelectionState:
        """Begin a call.

        Args:
            facts: the known facts of it.

        Returns:
            The state of this call's selection.
        """


# Marks of candidates: scores and keys


@lru_cache
def unjudged(name: str) -> Requirement:
    """Return how a record names what a selection could not judge."""
    return Requirement(f"{name} can judge it", lambda _: True, name=name, inline=True)


def scoring(
    score: Scorer, *, inline: bool = False
) -> Callable[[Candidate], Any | Awaitable[tuple[float, str]]]:
    """Return what marks a candidate with its score and the reason for it."""
    if inline:
        return lambda candidate: read_score(score(candidate))
    threaded = not is_async(score)

    async def mark(candidate: Candidate) -> tuple[float, str]:
        answer: Any = await run_in_thread(score, candidate) if threaded else score(candidate)
        return read_score(await answer if isawaitable(answer) else answer)

    return mark


def read_score(answer: object) -> tuple[float, str]:
    """Read what a scorer returned; a `TypeError` or `ValueError` says what is wrong with it."""
    # What most return, and no NaN.
    if type(answer) is int or (type(answer) is float and answer == answer):  # noqa: PLR0124
        return float(answer), ""
    number: Any = answer
    reason = ""
    if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
        number, said = pair
        reason = said if isinstance(said, str) else bounded(repr(said))
    if isinstance(number, bool) or not hasattr(number, "__float__"):
        msg = f"a scorer returns a float, or (float, reason), not {answer!r}"
        raise TypeError(msg)
    score = float(number)
    if math.isnan(score):
        msg = "a scorer returned NaN, which is neither more nor less than another score"
        raise ValueError(msg)
    return score, reason


def check_key(key: Key | None, what: str) -> None:
    """Make sure that a function gives a key when it is called."""
    if key is not None and (not callable(key) or is_async(key)):
        msg = f"{what} is a synchronous function of a Candidate, not {key!r}"
        raise TypeError(msg)


def keying(key: Key | None) -> Callable[[Candidate], Any]:
    """Return what marks a candidate with the key that it votes for, or differs by."""
    if key is None:
        return lambda candidate: _comparable(key_of(candidate))
    return lambda candidate: _comparable(key(candidate))


def tool_key(candidate: Candidate) -> Any:
    """Return what a reply that calls tools votes for: their names and arguments.

    The arguments count as they were read, in any order, with those that the model left to their
    default; and so do several calls. ``Vote(key=tool_key)`` says what `Vote` does by itself.

    Args:
        candidate: the reply.

    Returns:
        The calls, which compare by ``==``; for a reply that calls none, its parsed value, else its
        text.
    """
    return key_of(candidate)


def key_of(candidate: Candidate) -> Any:
    """Return the key of a candidate: the tools it calls, else its parsed value, else its text."""
    if candidate.tool_calls:
        return _Calls(candidate.tool_calls)
    value = candidate.value
    return value.strip() if isinstance(value, str) else value


class _Calls:
    """The tools that a reply calls, in any order."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, calls: tuple[ToolCall, ...]) -> None:
        self._calls = calls
        self._read = [(call.name, read_arguments(call)) for call in calls]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Calls) or len(self._read) != len(other._read):
            return False
        left = list(other._read)
        for call in self._read:
            if call not in left:
                return False
            left.remove(call)
        return True

    def __repr__(self) -> str:
        return "\n".join(sorted(map(canonical, self._calls)))


def _comparable(key: Any) -> Any:
    """Make sure that a key equals itself, as a NaN does not, and an array does not say."""
    try:
        same = bool(key == key)  # noqa: PLR0124
    except Exception as exc:
        msg = f"answers are told apart by ==, and {shown(key)} can't be compared so: {exc}"
        raise TypeError(msg) from exc
    if not same:
        msg = (
            f"answers are told apart by ==, and {shown(key)} does not equal itself: return"
            " another key for it, or None for no answer"
        )
        raise ValueError(msg)
    return key


class Answers:
    """The different answers of a call. Equal ones (``==``) are one, whatever they look like."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self._places: dict[Any, int] = {}
        self._unhashable: list[int] = []

    def place(self, key: Any) -> int:
        """Return the place of an answer among ``keys``, which gets it if it is a new one."""
        keys = self.keys
        try:
            known = self._places.get(key)
            # A set has no hash, and equals a frozenset, which has one.
            others: Iterable[int] = () if known is not None else self._unhashable
            hashable = True
        except TypeError:
            known, others, hashable = None, range(len(keys)), False
        for place in others:
            if _equal(keys[place], key):
                return place
        if known is None:
            known = len(keys)
            keys.append(key)
            if hashable:
                self._places[key] = known
            else:
                self._unhashable.append(known)
        return known


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception as exc:
        what = f"{shown(one)} and {shown(other)} can't be compared so: {exc}"
        msg = f"answers are told apart by ==, and {what}"
        raise TypeError(msg) from exc


def label_of(key: object) -> str:
    """Return a key as the decision shows it."""
    return bounded(key if isinstance(key, str) else safe_repr(key))


def check_n(n: object, what: str) -> None:
    """Make sure that a number of draws can be."""
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        msg = f"{what}(n=...) is an int of at least 1, not {n!r}"
        raise ValueError(msg)
