"""What a selection wants to know of each candidate: its score, or its key."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mellea_like.core.display import bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.validation import Candidate

__all__ = ["Key", "Scorer", "key_of", "keying", "scoring", "shown"]

Scorer: TypeAlias = (
    "Callable[[Candidate], float | tuple[float, str] | Awaitable[float | tuple[float, str]]]"
)
Key: TypeAlias = "Callable[[Candidate], Hashable]"


def scoring(score: Scorer) -> Callable[[Candidate], Awaitable[tuple[float, str]]]:
    """Return what marks a candidate with its score and the reason for it."""

    async def mark(candidate: Candidate) -> tuple[float, str]:
        answer: Any = score(candidate)
        if inspect.isawaitable(answer):
            answer = await answer
        return read_score(answer)

    return mark


def read_score(answer: object) -> tuple[float, str]:
    """Read what a scorer returned; a `TypeError` or `ValueError` says what is wrong with it."""
    reason = ""
    if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
        answer, said = pair
        reason = said if isinstance(said, str) else bounded(repr(said))
    if isinstance(answer, bool) or not hasattr(answer, "__float__"):
        msg = f"a scorer returns a float, or (float, reason), not {answer!r}"
        raise TypeError(msg)
    score = float(cast("float", answer))
    if math.isnan(score):
        msg = "a scorer returned NaN, which is neither more nor less than another score"
        raise ValueError(msg)
    return score, reason


def keying(key: Key | None) -> Callable[[Candidate], Hashable]:
    """Return what marks a candidate with the key that it votes for, or differs by."""
    if key is None:
        return key_of
    return lambda candidate: _hashable(key(candidate))


def key_of(candidate: Candidate) -> Hashable:
    """Return the key of a candidate where none is given: its parsed value, else its text."""
    value = candidate.value
    return value.strip() if isinstance(value, str) else _hashable(value)


def _hashable(value: Any) -> Hashable:
    """Return something equal for equal values that can be counted: JSON, where it is no key."""
    try:
        hash(value)
    except TypeError:
        dump = getattr(value, "model_dump_json", None)
        return dump() if dump is not None else repr(value)
    return cast("Hashable", value)


def shown(key: Hashable) -> str:
    """Return a key as the decision shows it."""
    return bounded(key if isinstance(key, str) else repr(key))
