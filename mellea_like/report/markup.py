"""Assemble HTML and SVG from pieces, and draw the marks and bars of outcomes.

Only an `Html` object is markup. Anything else is text, and is escaped.
"""

from __future__ import annotations

import re
from html import escape
from typing import LiteralString, TypeAlias

_INVISIBLE = re.compile(
    # Control characters except tab and newline, DEL and C1; marks of writing direction, line
    # breaks, characters without width, and tags; lone surrogates and noncharacters.
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES = 0x2400
"""The first code point of Unicode's block Control Pictures: the visible symbol for U+0000."""
_CONTROLS, _DELETE, _LATIN, _FIRST_PLANE = 0x20, 0x7F, 0xFF, 0xFFFF


class Html(str):
    """Markup that can be put into a page unchanged; jinja2 recognizes it by ``__html__``."""

    __slots__ = ()

    def __html__(self) -> Html:
        """Return the markup itself, for jinja2."""
        return self


Piece: TypeAlias = "str | float | None"
"""A piece of markup: an `Html` object, or a text or number to escape; None is left out."""


def visible(text: str) -> str:
    r"""Return a text with invisible characters replaced by visible ones: ``␀``, ``\u202e``."""
    return _INVISIBLE.sub(_shown, text.replace("\r\n", "\n"))


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < _CONTROLS:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    if code <= _LATIN:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _FIRST_PLANE else f"\\U{code:08x}"


def clip(text: str, limit: int) -> str:
    """Shorten a text to at most ``limit`` characters; a shortened text ends with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def html(template: LiteralString, /, *pieces: Piece, **named: Piece) -> Html:
    """Fill in a template like `str.format`, escaping each piece that isn't `Html`."""
    made = {name: _escaped(piece) for name, piece in named.items()}
    return Html(template.format(*map(_escaped, pieces), **made))


def joined(*pieces: Piece) -> Html:
    """Concatenate pieces, escaping each one that isn't `Html`."""
    return Html("".join(map(_escaped, pieces)))


def text_block(text: str, limit: int) -> Html:
    """Return a block of text with its line breaks, cut after ``limit`` characters."""
    more = len(text) - limit
    # HTML parsers drop a line end right after <pre>.
    begin = "\n" if text.startswith(("\n", "\r\n")) else ""
    shown = html('<pre dir="auto">{}</pre>', begin + text[:limit])
    if more <= 0:
        return shown
    return html('{}<p class="note">{}</p>', shown, f"… and {more:,} more characters")


def _escaped(piece: Piece) -> str:
    if piece is None:
        return ""
    if isinstance(piece, Html):
        return piece
    if isinstance(piece, float):
        return f"{piece:.6g}"
    return escape(visible(str(piece)))


# --- signs of outcomes: each has a colour, a pattern and a mark

_STROKES = {
    "passed": "M3 8.5 6.5 12 13 4.5",
    "failed": "M4 4 12 12M12 4 4 12",
    "errored": "M8 2.5V9.2M8 12.6V13",
    "cancelled": "M3.5 8H12.5",
    "skipped": "M3.5 8H12.5",
    "unfinished": "M3 8H3.2M7.9 8H8.1M12.8 8H13",
}
_AS = {
    "won": "passed",
    "heard": "passed",
    "late": "passed",
    "rejected": "failed",
    "compared": "unfinished",
    "other": "unfinished",
}
"""Maps outcomes without a mark of their own to the outcomes whose marks they use."""


_PATTERNS = """\
<svg width="0" height="0" aria-hidden="true" class="patterns"><defs>\
<pattern id="{scope}-failed" width="8" height="8" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><path d="M0 0V8" class="stroke failed"/></pattern>\
<pattern id="{scope}-errored" width="6" height="6" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><path d="M0 0V6M0 0H6" class="stroke errored"/></pattern>\
<pattern id="{scope}-unfinished" width="6" height="6" patternUnits="userSpaceOnUse">\
<circle cx="3" cy="3" r="1.2" class="dot"/></pattern></defs></svg>"""


def mark(outcome: str, place: LiteralString = "") -> Html:
    """Draw an outcome's mark, such as a tick or a cross, in a square of 16 pixels."""
    strokes = _STROKES[_AS.get(outcome, outcome)]
    return html('<path d="{}" class="mark {}"{}/>', strokes, outcome, Html(place))


def swatch(outcome: str) -> Html:
    """Draw an outcome's mark in a box, for a legend or a line that also names the outcome."""
    return html(
        '<svg class="sign" aria-hidden="true"><rect class="box {}"/>{}</svg>',
        outcome,
        mark(outcome),
    )


def box(outcome: str, x: float, width: float, height: int, scope: str) -> Html:
    """Draw an outcome's bar: position and width are in per cent, the height in pixels."""
    kind = _AS.get(outcome, outcome)
    place = html('x="{}%" y="2" width="{}%" height="{}" rx="4"', f"{x:.5g}", f"{width:.5g}", height)
    plain = html('<rect class="box {}" {}/>', outcome, place)
    if kind not in {"failed", "errored", "unfinished"}:
        return plain
    pattern = html('<rect fill="url(#{}-{})" class="pattern" {}/>', scope, kind, place)
    return joined(plain, pattern)


def patterns(scope: str) -> Html:
    """Return the definitions of the patterns that `box` uses; their ids begin with ``scope``."""
    return html(_PATTERNS, scope=scope)
