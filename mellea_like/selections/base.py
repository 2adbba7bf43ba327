"""The base classes of selections, and the marks (scores and keys) that they give candidates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from mellea_like.core.argument_checks import is_async
from mellea_like.core.display import bounded, safe_repr, shown
from mellea_like.core.requirement import Requirement
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.tools import canonical, read_arguments
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mellea_like.core.backend import Backend
    from mellea_like.core.decision import Decision
    from mellea_like.core.tools import ToolCall
    from mellea_like.core.validation import Candidate
    from mellea_like.selections.comparisons import Comparisons

__all__ = [
    "Answers",
    "BaseSelection",
    "First",
    "Key",
    "Ordered",
    "Scorer",
    "SelectionFacts",
    "SelectionState",
    "scoring",
    "tool_key",
]

Scorer: TypeAlias = (
    "Callable[[Candidate], float | tuple[float, str] | Awaitable[float | tuple[float, str]]]"
)
Key: TypeAlias = "Callable[[Candidate], Any]"


class First:
    """The first draw to pass wins. This is the default, also written ``selection="first"``."""


class Ordered:
    """The passing draw of the lowest rank wins, whatever the timing.

    Ranks order draws by attempt, then by lane. Also written ``selection="ordered"``.
    """


class SelectionFacts(NamedTuple):
    """The facts about a call that a selection gets when the call starts.

    Attributes:
        turns: the maximum number of draws that the call may start.
        judge: the call's judge, if known.
    """

    turns: int
    judge: Backend | None = None


class SelectionState(ABC):
    """The state of a selection during one call.

    `start` is called when a draw starts, and `hear` when it has ended. Once all draws have ended,
    `settle` and then `decide` are called if at least one draw has passed. Only `settle` may wait or
    do I/O.

    Args:
        kind: the selection's name, as the `Decision` will have it.
        facts: the known facts of the call.
        n: how many passing draws the selection needs; None for as many as the call may start.
        at_most: whether fewer passing draws are also enough. If not, a call that may start fewer
            than ``n`` draws raises ``ValueError``.

    Attributes:
        passed: the records of the draws that passed, in the order in which they ended.
        marks: the marks of these draws, as `BaseSelection.mark` gave them.
        judge: the judge that the selection asks, so that budgets can be checked in advance; None
            unless a subclass sets it.

    Raises:
        TypeError: a subclass overrides a method, other than `settle`, with an async one.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("start", "hear", "wanted", "enough", "decide"):
            if is_async(getattr(cls, name)):
                msg = f"{cls.__name__}.{name} can't be async: only settle may wait"
                raise TypeError(msg)

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
        self.abstentions: int = 0
        self.reason = ""
        self.judge: Backend | None = None

    def start(self, iteration: int) -> None:  # noqa: B027 (most need not know)
        """Note that a draw starts.

        Some selections need the order of starts: the draws that end first aren't a random sample.

        Args:
            iteration: the draw's id, as in its later record.
        """

    def hear(self, slice_: Slice, mark: Any) -> bool:
        """Take the record of a draw, and return whether the call is decided.

        Args:
            slice_: the record of a draw with any outcome.
            mark: the mark that `BaseSelection.mark` gave the draw; None unless it passed.

        Returns:
            Whether no further draw is needed. `reason` then has the reason.
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
        """Return how many more passing draws could matter. This limits the draws in flight."""
        return max(0, self.most - len(self.passed))

    def enough(self) -> str:
        """Return why no more draws are needed, or "". `hear` calls this when a draw has passed."""
        return "" if self.wanted() else f"{len(self.passed)} passed"

    async def settle(self, comparisons: Comparisons) -> None:  # noqa: B027 (most need not)
        """Do what `decide` needs and what takes time, once no draw is under way.

        This is called only if at least one draw has passed. If the call is cancelled, so is this
        method, and the call ends without a decision. The call's timeout ends ``comparisons``, but
        nothing else that is awaited here, which may need a time limit of its own. An exception ends
        the call.

        A judge that is asked here, by ``comparisons`` or by a scorer such as `judge_score`, is
        asked with the call's retries, budgets and options for judges.

        Args:
            comparisons: has the call's judge compare draws. The `Decision` records their errors,
                and the cost of everything that was asked here.
        """

    @abstractmethod
    def decide(self) -> Decision:
        """Decide among the draws that passed. This is called only if at least one has passed.

        Returns:
            The decision. If it has no winner, its ``complete`` is False.
        """

    def by_rank(self, i: int) -> tuple[int, int]:
        """Return the rank of the draw at index ``i`` in ``passed``. In a tie, the lowest wins."""
        return self.passed[i].rank


class BaseSelection(ABC):
    """Base class of selections, which decide when there are enough draws, and which of them wins.

    A selection is only configuration; `begin` makes its state for one call.
    """

    __slots__ = ()

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]] | None:
        """The function that marks each candidate that passes, for example with a score or a key.

        The function is called like a validator. If it raises an exception, the draw counts as
        errored. The property is None if candidates need no mark.
        """
        return None

    @property
    def features(self) -> tuple[str, ...]:
        """The selection's features, as named in `EXCLUSIONS`, the list of excluded combinations."""
        return ("several", "scored")

    @abstractmethod
    def begin(self, facts: SelectionFacts) -> SelectionState:
        """Return the state for a new call.

        Args:
            facts: the known facts about the call.

        Returns:
            The state of the selection in this call.
        """


# Marks of candidates: scores and keys


@lru_cache
def unjudged(name: str) -> Requirement:
    """Return the requirement to record as errored when a selection's ``mark`` raises."""
    return Requirement(f"{name} can judge it", lambda _: True, name=name, inline=True)


def scoring(
    score: Scorer, *, inline: bool = False
) -> Callable[[Candidate], Any | Awaitable[tuple[float, str]]]:
    """Return the function that marks a candidate with its score and the reason for it."""
    if inline:
        return lambda candidate: read_score(score(candidate))
    threaded = not is_async(score)

    async def mark(candidate: Candidate) -> tuple[float, str]:
        answer: Any = await run_in_thread(score, candidate) if threaded else score(candidate)
        return read_score(await answer if isawaitable(answer) else answer)

    return mark


def read_score(answer: object) -> tuple[float, str]:
    """Return a scorer's answer as (score, reason); raise an error if the answer is wrong."""
    number: Any = answer
    reason = ""
    if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
        number, said = pair
        reason = said if isinstance(said, str) else bounded(repr(said))
    if isinstance(number, bool) or not hasattr(number, "__float__"):
        msg = f"a scorer must return a float or (float, reason), not {answer!r}"
        raise TypeError(msg)
    score = float(number)
    if math.isnan(score):
        msg = "a scorer returned NaN, which can't be compared with other scores"
        raise ValueError(msg)
    return score, reason


def check_key(key: Key | None, what: str) -> None:
    """Make sure that a key function is None, or is synchronous and can be called."""
    if key is not None and (not callable(key) or is_async(key)):
        msg = f"{what} must be a synchronous function of a Candidate, not {key!r}"
        raise TypeError(msg)


def keying(key: Key | None) -> Callable[[Candidate], Any]:
    """Return the function that marks a candidate with its key."""
    answer_of = tool_key if key is None else key

    def mark(candidate: Candidate) -> Any:
        answer = answer_of(candidate)
        if isawaitable(answer):  # For example, a lambda called an async function.
            if iscoroutine(answer):
                answer.close()
            msg = f"a key function must be synchronous, but {key!r} returned {answer!r}"
            raise TypeError(msg)
        return _comparable(answer)

    return mark


def tool_key(candidate: Candidate) -> Any:
    """Return the key of a reply that calls tools: their names and arguments.

    Arguments are compared after parsing, with defaults filled in. Neither their order nor the
    order of several calls matters. `Vote` uses this key by default.

    Args:
        candidate: the reply.

    Returns:
        A key made of the calls, which can be compared with ``==``. For a reply without calls, the
        key is the parsed value, or else the text.
    """
    if candidate.tool_calls:
        return _Calls(candidate.tool_calls)
    value = candidate.value
    return value.strip() if isinstance(value, str) else value


class _Calls:
    """A key made of a reply's tool calls. The order of calls doesn't matter in comparisons."""

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
    """Return a key if ``key == key`` is true, else raise: NaNs and arrays can't be compared."""
    if not _equal(key, key):
        msg = (
            f"answers are told apart by ==, and {shown(key)} does not equal itself: return"
            " another key for it, or None for no answer"
        )
        raise ValueError(msg)
    return key


class Answers:
    """Collects the distinct answers of a call. Keys that are equal (``==``) are one answer."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self._places: dict[Any, int] = {}
        """Maps each key that is hashable to its index."""
        self._unhashable: list[int] = []

    def place(self, key: Any) -> int:
        """Return the index of an answer in ``keys``; a new answer is added."""
        others: Iterable[int] = self._unhashable  # A set is unhashable, but equals a frozenset.
        hashable = True
        try:
            known = self._places.get(key)
        except TypeError:
            known, others, hashable = None, range(len(self.keys)), False
        if known is None:
            known = next((place for place in others if _equal(self.keys[place], key)), None)
        if known is None:
            known = len(self.keys)
            self.keys.append(key)
            if hashable:
                self._places[key] = known
            else:
                self._unhashable.append(known)
        return known


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception as exc:
        what = shown(one) if one is other else f"{shown(one)} and {shown(other)}"
        msg = f"answers are told apart by ==, and {what} can't be compared so: {exc}"
        raise TypeError(msg) from exc


def label_of(key: object) -> str:
    """Return a key as text, for an answer in the `Decision`."""
    return bounded(key if isinstance(key, str) else safe_repr(key))
