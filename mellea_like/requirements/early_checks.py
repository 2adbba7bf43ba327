"""The ready-made checks' ways to see, while a reply arrives, that it will not pass.

Each says FAIL only if no reply that starts so passes the whole check, and takes time linear in the
length of the reply, however small the pieces are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from mellea_like.core.streaming import Verdict
from mellea_like.requirements.json_prefix import JsonPrefix

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Answer", "Fresh", "Look", "at_most", "characters", "json_only", "lines", "words"]

Answer: TypeAlias = "Verdict | tuple[Verdict, str]"
Look: TypeAlias = "Callable[[str, str], Answer]"
"""Looks at one reply, piece by piece: a stream check with the state in it."""


class Fresh:
    """A stream check whose copies start from nothing.

    Args:
        make: makes what looks at one reply.
    """

    __slots__ = ("_look", "_make")

    def __init__(self, make: Callable[[], Look]) -> None:
        self._make = make
        self._look: Look | None = None

    def __deepcopy__(self, memo: object) -> Fresh:
        return Fresh(self._make)

    def __call__(self, text_so_far: str, delta: str) -> Answer:
        """Look at the newest piece; see `StreamCheck`."""
        if self._look is None:
            self._look = self._make()
        return self._look(text_so_far, delta)


def at_most(
    limit: int, counting: Callable[[], Callable[[str], int]], reason: Callable[[int], str]
) -> Fresh:
    """Return a check that fails once there are too many of something.

    Args:
        limit: the most allowed.
        counting: makes a counter of one reply: it takes a piece, and returns how many there are by
            then.
        reason: says what is wrong, given the number.

    Returns:
        The check.
    """

    def make() -> Look:
        count = counting()

        def look(_: str, delta: str) -> Answer:
            number = count(delta)
            return Verdict.UNKNOWN if number <= limit else (Verdict.FAIL, reason(number))

        return look

    return Fresh(make)


def characters() -> Callable[[str], int]:
    """Return a counter of code points.

    Returns:
        Takes a piece, returns how many have arrived.
    """
    number = 0

    def count(delta: str) -> int:
        nonlocal number
        number += len(delta)
        return number

    return count


def words() -> Callable[[str], int]:
    """Return a counter of words that have begun: runs with a letter or digit in them.

    Returns:
        Takes a piece, returns how many words have begun.
    """
    number = 0
    begun = False  # Whether the run at the end of the text is a word already.

    def count(delta: str) -> int:
        nonlocal number, begun
        if delta[:1].isspace():
            begun = False
        for i, run in enumerate(delta.split()):
            begun = begun and i == 0
            if not begun and any(map(str.isalnum, run)):
                begun = True
                number += 1
        if delta[-1:].isspace():
            begun = False
        return number

    return count


def lines() -> Callable[[str], int]:
    """Return a counter of lines with something else than white space in them.

    Returns:
        Takes a piece, returns how many such lines have begun.
    """
    number = 0
    begun = False  # Whether the line at the end of the text counts already.

    def count(delta: str) -> int:
        nonlocal number, begun
        # One more character makes a line of what follows the last line break, also if it is empty.
        for i, line in enumerate(f"{delta} ".splitlines()):
            begun = begun and i == 0
            if not begun and not line.isspace() and line:
                begun = True
                number += 1
        return number

    return count


def json_only(*, constants: bool = False) -> Fresh:
    """Return a check that fails once a reply can't become JSON any more.

    Args:
        constants: whether ``NaN`` and the infinities are numbers.

    Returns:
        The check.
    """
    return Fresh(partial(_json_look, constants=constants))


def _json_look(*, constants: bool) -> Look:
    scanner = JsonPrefix(constants=constants)

    def look(_: str, delta: str) -> Answer:
        problem = scanner.feed(delta)
        if problem is None:
            return Verdict.UNKNOWN
        return Verdict.FAIL, f"it is not valid JSON: {problem}"

    return look
