"""Whether a text that is still arriving can become JSON: a state machine over its characters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JsonPrefix"]

_WHITE = " \t\n\r"  # RFC 8259, section 2
_DIGITS = "0123456789"
_HEX = "0123456789abcdefABCDEF"
_ESCAPES = '"\\/bfnrt'
_SHOWN = 20
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORDS = {"t": "true", "f": "false", "n": "null"}
_CONSTANTS = {"N": "NaN", "I": "Infinity"}


class JsonPrefix:
    r"""Reads a reply piece by piece, and says as soon as it can't become JSON any more.

    It takes what the JSON checks take: one value of RFC 8259, with white space of any kind round
    it, or within one Markdown code fence. The time is linear in the length of the reply, however it
    is cut into pieces. What a reader refuses for its size alone (too many digits, too deep a
    nesting) is not refused here.

    Args:
        constants: whether ``NaN``, ``Infinity`` and ``-Infinity`` are numbers; pydantic takes them.

    Attributes:
        problem: what is wrong and where; None as long as something may follow that makes the text
            JSON.
    """

    __slots__ = ("_seen", "_state", "problem")

    def __init__(self, *, constants: bool = False) -> None:
        self._state = _State(constants)
        self._seen = 0
        self.problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the text so far is JSON as it is."""
        state = self._state
        if self.problem is not None:
            return False
        if state.fenced:
            return state.step is _closed
        return not state.open and (state.step in _ENDS or state.step in (_after, _ended))

    def feed(self, delta: str) -> str | None:
        """Read the newest piece.

        Args:
            delta: what follows what was read before.

        Returns:
            The `problem`.
        """
        if self.problem is not None:
            return self.problem
        state, at, end = self._state, 0, len(delta)
        while at < end:
            at = state.step(state, delta, at)
            if state.wanted:
                place = self._seen + at + 1
                found = ascii(delta[at : at + _SHOWN])
                self.problem = f"expected {state.wanted} at character {place}, found {found}"
                break
        self._seen += end
        return self.problem


class _State:
    """Where in the text the scanner is: ``step`` reads on from there."""

    __slots__ = ("constants", "fenced", "left", "open", "step", "then", "wanted")

    def __init__(self, constants: bool) -> None:  # noqa: FBT001
        self.constants = constants
        self.fenced = False
        self.open: list[str] = []  # The brackets that will close what is open.
        self.step: _Step = _start
        self.left = ""  # What must follow to the letter, and ...
        self.then: _Step = _after  # ... what reads on after that, or after a string.
        self.wanted = ""  # What must follow, once something else does.

    def expect(self, exactly: str, then: _Step) -> None:
        self.left, self.then, self.step = exactly, then, _exactly

    def refuse(self, at: int, wanted: str) -> int:
        self.wanted = wanted
        return at


_Step: TypeAlias = "Callable[[_State, str, int], int]"
"""Reads from a position in a piece on; returns the position that is next."""


def _exactly(s: _State, text: str, at: int) -> int:
    if text[at] != s.left[0]:
        return s.refuse(at, ascii(s.left))
    s.left = s.left[1:]
    if not s.left:
        s.step = s.then
    return at + 1


# --- round the value --------------------------------------------------------------------------


def _start(s: _State, text: str, at: int) -> int:
    if text[at].isspace():
        return at + 1
    if text[at] == "`":
        s.fenced = True
        s.expect("```", _language)
    else:
        s.step = _value
    return at


def _language(s: _State, text: str, at: int) -> int:
    c = text[at]
    if (c.isascii() and c.isalnum()) or c in "_-":
        return at + 1
    s.step = _end_of_fence_line
    return at


def _end_of_fence_line(s: _State, text: str, at: int) -> int:
    c = text[at]
    if c in " \t":
        return at + 1
    if c == "\n":
        s.step = _value
        return at + 1
    if c == "\r":
        s.expect("\n", _value)
        return at + 1
    return s.refuse(at, "a new line")


def _ended(s: _State, text: str, at: int) -> int:
    c = text[at]
    if s.fenced and c == "`":
        s.expect("```", _closed)
        return at
    if c in _WHITE or (not s.fenced and c.isspace()):
        return at + 1
    return s.refuse(at, "the end of the code fence" if s.fenced else "nothing more")


def _closed(s: _State, text: str, at: int) -> int:
    return at + 1 if text[at].isspace() else s.refuse(at, "nothing more")


# --- values -----------------------------------------------------------------------------------


def _value(s: _State, text: str, at: int) -> int:
    c = text[at]
    if c in _WHITE:
        return at + 1
    if c == '"':
        s.step, s.then = _string, _after
    elif c == "{":
        s.open.append("}")
        s.step = _first_key
    elif c == "[":
        s.open.append("]")
        s.step = _first_item
    elif c in "-0123456789":
        s.step = {"-": _minus, "0": _zero}.get(c, _whole)
    else:
        word = _WORDS.get(c) or (_CONSTANTS.get(c) if s.constants else None)
        if word is None:
            return s.refuse(at, "a value")
        s.expect(word, _after)
        return at
    return at + 1


def _after(s: _State, text: str, at: int) -> int:
    c = text[at]
    if not s.open:
        s.step = _ended
        return at
    if c in _WHITE:
        return at + 1
    if c == ",":
        s.step = _key if s.open[-1] == "}" else _value
        return at + 1
    if c != s.open[-1]:
        return s.refuse(at, f"a comma or {s.open[-1]!r}")
    s.open.pop()
    return at + 1


def _first_item(s: _State, text: str, at: int) -> int:
    if text[at] in _WHITE:
        return at + 1
    s.step = _after if text[at] == "]" else _value
    return at


def _first_key(s: _State, text: str, at: int) -> int:
    if text[at] in _WHITE:
        return at + 1
    s.step = _after if text[at] == "}" else _key
    return at


def _key(s: _State, text: str, at: int) -> int:
    if text[at] in _WHITE:
        return at + 1
    if text[at] != '"':
        return s.refuse(at, "a key in double quotes")
    s.step, s.then = _string, _colon
    return at + 1


def _colon(s: _State, text: str, at: int) -> int:
    if text[at] in _WHITE:
        return at + 1
    if text[at] != ":":
        return s.refuse(at, "a colon")
    s.step = _value
    return at + 1


# --- strings ----------------------------------------------------------------------------------


def _string(s: _State, text: str, at: int) -> int:
    plain = _PLAIN.match(text, at)
    at = at if plain is None else plain.end()
    if at == len(text):
        return at
    if text[at] == '"':
        s.step = s.then
    elif text[at] == "\\":
        s.step = _escape
    else:
        return s.refuse(at, "a character of a string (a control character is escaped)")
    return at + 1


def _escape(s: _State, text: str, at: int) -> int:
    if text[at] == "u":
        s.left, s.step = "0000", _hex
    elif text[at] in _ESCAPES:
        s.step = _string
    else:
        return s.refuse(at, "an escape that JSON knows")
    return at + 1


def _hex(s: _State, text: str, at: int) -> int:
    if text[at] not in _HEX:
        return s.refuse(at, "a hexadecimal digit")
    s.left = s.left[1:]
    if not s.left:
        s.step = _string
    return at + 1


# --- numbers ----------------------------------------------------------------------------------


def _minus(s: _State, text: str, at: int) -> int:
    if s.constants and text[at] == "I":
        s.expect("Infinity", _after)
        return at
    return _digit(s, text, at, _zero if text[at] == "0" else _whole)


def _zero(s: _State, text: str, at: int) -> int:
    if text[at] == ".":
        s.step = _point
        return at + 1
    return _exponent_or_end(s, text, at)


def _whole(s: _State, text: str, at: int) -> int:
    return at + 1 if text[at] in _DIGITS else _zero(s, text, at)


def _point(s: _State, text: str, at: int) -> int:
    return _digit(s, text, at, _fraction)


def _fraction(s: _State, text: str, at: int) -> int:
    return at + 1 if text[at] in _DIGITS else _exponent_or_end(s, text, at)


def _exponent_or_end(s: _State, text: str, at: int) -> int:
    if text[at] in "eE":
        s.step = _exponent
        return at + 1
    s.step = _after
    return at


def _exponent(s: _State, text: str, at: int) -> int:
    if text[at] in "+-":
        s.step = _signed_exponent
        return at + 1
    return _digit(s, text, at, _power)


def _signed_exponent(s: _State, text: str, at: int) -> int:
    return _digit(s, text, at, _power)


def _power(s: _State, text: str, at: int) -> int:
    if text[at] in _DIGITS:
        return at + 1
    s.step = _after
    return at


def _digit(s: _State, text: str, at: int, then: _Step) -> int:
    if text[at] not in _DIGITS:
        return s.refuse(at, "a digit")
    s.step = then
    return at + 1


_ENDS = (_zero, _whole, _fraction, _power)
"""Where a number may end."""
