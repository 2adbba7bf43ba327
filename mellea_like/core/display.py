"""Short texts that show objects to people. Making them never raises an exception."""

from __future__ import annotations

import json
import re
import reprlib
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CHARACTERS = 200

MOST_CHARACTERS = 2000
"""The most characters of one reason in a prompt or a log."""

MOST_REASONS = 20
"""The most reasons in one prompt or message."""

# Control characters other than tab and newline, DEL and C1, line separators that terminals treat
# in various ways, marks that change the direction of writing, and halves of surrogate pairs.
UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = CHARACTERS
_short.maxtuple = _short.maxlist = 3


def shown(value: object) -> str:
    """Return a short `repr`."""
    return _short.repr(value)


def bounded(text: str, most: int = MOST_CHARACTERS) -> str:
    """Shorten a text to its first ``most`` characters, for prompts, logs and messages."""
    more = len(text) - most
    return text if more <= 0 else f"{text[:most]}… ({more:,} more characters)"


def printable(text: str) -> str:
    r"""Replace control characters by escapes, such as ``\x1b``."""
    return UNSAFE.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 500) -> str:
    """Make a text fit in one line of a terminal."""
    line = " ".join(printable(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 (one byte)


def excerpt(text: str) -> str:
    """Return the beginning of a server's reply for an error, with control characters escaped."""
    shown = repr(text[: CHARACTERS + 1])[1:-1]
    return shown if len(shown) <= CHARACTERS else shown[: CHARACTERS - 1] + "…"


def clipped(text: str, limit: int = 80) -> str:
    """Shorten a text by leaving out its middle."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def quoted(text: str) -> str:
    """Put a text into double quotes, on one line and of limited length."""
    return json.dumps(clipped(text), ensure_ascii=False)


def first_few(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the first few reasons, each shortened, and how many more there are."""
    left = iter(reasons)
    kept = tuple(bounded(reason) for reason in islice(left, MOST_REASONS))
    more = sum(1 for _ in left)
    return (*kept, f"… and {more:,} more") if more else kept


def fields_shown(self: Any) -> str:
    """Return a dataclass's ``repr`` with shortened fields; for use as ``__repr__``."""
    inside = ", ".join(f"{f.name}={shown(getattr(self, f.name))}" for f in fields(self) if f.repr)
    return f"{type(self).__name__}({inside})"


def plural(number: int, thing: str) -> str:
    """Write a number with its noun, as in ``1 item`` or ``2 items``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def three_decimals(share: float) -> str:
    """Return a share as text; only exactly 0 and 1 are written as 0.000 and 1.000."""
    text = f"{share:.3f}"
    if text == "1.000" and share < 1:
        return "> 0.999"
    return "< 0.001" if text == "0.000" and share > 0 else text


def attempt_name(number: int, lane: int | None = None, of: int | None = None) -> str:
    """Name a draw for people, as in "attempt 2 of 8, lane 3", with 1-based numbers."""
    name = f"attempt {number}" if of is None else f"attempt {number} of {of}"
    return name if lane is None else f"{name}, lane {lane}"


def attempt_names(turns: Iterable[tuple[int, int, int]]) -> dict[int, str]:
    """Name the draws of a call, given the iteration, subsample and depth of each."""
    # The number of attempts in a lane follows from the ids in other lanes, if there are any.
    known = list(turns)
    others = [turn for turn in known if turn[1]]
    of = None
    if others:
        iteration, subsample, depth = others[0]
        of = (iteration - 1 - depth) // subsample
    return {
        iteration: attempt_name(depth + 1, subsample + 1 if others else None, of)
        for iteration, subsample, depth in known
    }


def with_reason(description: str, reason: str) -> str:
    """Join a description and the reason why it doesn't hold, as in ``description: reason``."""
    if not reason:
        return description
    stop = description.endswith(".") and not description.endswith("..")
    return f"{description[:-1] if stop else description}: {reason}"


def safe_repr(value: object) -> str:
    """Return a full `repr`; if the object's ``__repr__`` raises, return Python's default text."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 (the object's own)
        return object.__repr__(value)


def error_text(error: BaseException | None) -> str:
    """Return an exception's text, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (the exception's own)
        return f"<{type(error).__name__}'s __str__ failed>"


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, even to a frozen one."""
    vars(error).setdefault("__notes__", []).append(note)
