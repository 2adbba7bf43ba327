"""Helpers of the ready-made checks, and the wording of their reasons."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import anyio

from mellea_like.core.display import quoted
from mellea_like.core.requirement import Requirement
from mellea_like.lazy import needs_extra
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from mellea_like.core.requirement import OnError
    from mellea_like.core.validation import Candidate, StreamCheck, ValidationResult, Verdict

LONG = 2**17
"""The most characters to check inline, which takes about 0.1 s. A thread checks longer replies."""

LONG_SECONDS = 10.0
"""The time limit for a check in a thread, in seconds. Checking 10 MiB takes less."""

Decision: TypeAlias = "ValidationResult | Awaitable[ValidationResult]"


class CheckSettings(TypedDict, total=False):
    """Arguments that every ready-made check takes; see `Requirement`.

    Attributes:
        name: a short name for records and metrics, in place of the check's own.
        weight: how much the check counts when the best failed reply is chosen.
        check_only: whether to run the check but leave it out of the prompt.
        on_error: the effect of an exception in the check.
    """

    name: str
    weight: float
    check_only: bool
    on_error: OnError


def package(name: str, user: str) -> Any:
    """Import a package of the extra ``checks``, which ``user`` needs."""
    with needs_extra("checks", f"{user} needs the {name} package"):
        return import_module(name)


def check(
    name: str,
    description: str,
    validator: Callable[[Candidate], Decision],
    settings: CheckSettings,
    stream: StreamCheck | None = None,
) -> Requirement:
    """Return an inline requirement that checks long replies in a thread, with a time limit."""
    asked: CheckSettings = {"name": name, **settings}

    def decide(candidate: Candidate) -> Decision:
        if len(candidate.text) <= LONG:
            return validator(candidate)
        return _InThread(partial(validator, candidate))

    return Requirement(description, decide, inline=True, stream=stream, **asked)


class _InThread:
    """An awaitable verdict, which is computed in a thread when it is awaited."""

    def __init__(self, decide: Callable[[], Decision]) -> None:
        self._decide = decide

    def __await__(self) -> Generator[Any, Any, ValidationResult]:
        return self._run().__await__()

    async def _run(self) -> ValidationResult:
        with anyio.fail_after(LONG_SECONDS):
            decision = await run_in_thread(self._decide)
            return await decision if isinstance(decision, Awaitable) else decision


def folded(text: str, *, ignore_case: bool) -> str:
    """Return a text in Unicode normal form (NFC), case-folded if ``ignore_case``."""
    text = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", text.casefold()) if ignore_case else text


def listed(texts: Sequence[str], joint: str = "and") -> str:
    """Return quoted texts separated by commas, with ``joint`` before the last one."""
    words = [quoted(text) for text in texts]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {joint} {words[-1]}"


def given_texts(name: str, texts: Sequence[object]) -> tuple[str, ...]:
    """Return a check's texts without repetitions; raise an error for an empty text or no texts."""
    if not texts:
        msg = f"{name} needs at least one text"
        raise TypeError(msg)
    found: dict[str, None] = {}
    for text in texts:
        if not isinstance(text, str):
            msg = f"{name} needs texts, not {text!r}"
            raise TypeError(msg)
        if not text:
            msg = f"{name}: texts can't be empty"
            raise ValueError(msg)
        found[text] = None
    return tuple(found)


def how_found(*, ignore_case: bool, words: bool = False) -> str:
    """Return the end of a check's description, such as " as a whole word", or "" by default."""
    whole = " as a whole word" if words else ""
    return f"{whole} (upper or lower case)" if ignore_case else whole


def found_in(
    text: str, needle: str, *, words: bool = False, start: int = 0, end: int | None = None
) -> bool:
    """Return whether ``needle`` occurs in a text; with ``words``, only as a whole word."""
    end = len(text) if end is None else end
    at = text.find(needle, start, end)
    while words and at >= 0 and (_in_word(text, at - 1) or _in_word(text, at + len(needle))):
        at = text.find(needle, at + 1, end)
    return at >= 0


def _in_word(text: str, at: int) -> bool:
    """Return whether a word character (letter, digit, combining mark or ``_``) is at an index."""
    if not 0 <= at < len(text):
        return False
    return text[at].isalnum() or text[at] == "_" or unicodedata.category(text[at])[0] == "M"


# --- while a reply arrives --------------------------------------------------------------------
# A stream check fails only if no reply with this beginning passes the check of a whole reply. It
# takes time linear in the length of the reply, however small the pieces are.

Answer: TypeAlias = "Verdict | tuple[Verdict, str]"
Look: TypeAlias = "Callable[[str, str], Answer]"
"""A stream check for one reply, which keeps its state from one piece to the next."""


class Fresh:
    """A stream check whose copies start afresh, without the state of the original."""

    __slots__ = ("_look", "_make")

    def __init__(self, make: Callable[[], Look]) -> None:
        self._make = make
        self._look: Look | None = None

    def __deepcopy__(self, memo: object) -> Fresh:
        return Fresh(self._make)

    def __call__(self, text_so_far: str, delta: str) -> Answer:
        """Check the newest piece; see `StreamCheck`."""
        if self._look is None:
            self._look = self._make()
        return self._look(text_so_far, delta)
