"""HTML and SVG put together piece by piece: what is not `Html` is text, and is escaped."""

from __future__ import annotations

import re
from html import escape
from typing import LiteralString, TypeAlias

__all__ = ["Html", "Piece", "clip", "html", "joined", "text_block", "visible"]

_INVISIBLE = re.compile(
    # Controls but tab and newline, DEL and C1; marks that turn the direction of writing, that break
    # lines, that have no width, and tags; halves of characters, and what isn't a character.
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES = 0x2400
"""Unicode's pictures of the control characters: U+2400 shows U+0000."""
_CONTROLS, _DELETE, _LATIN, _FIRST_PLANE = 0x20, 0x7F, 0xFF, 0xFFFF


class Html(str):
    """Markup that is safe to put into a page as it is; jinja2 knows it by ``__html__``."""

    __slots__ = ()

    def __html__(self) -> Html:
        """Return the markup itself, as jinja2 asks for it."""
        return self


Piece: TypeAlias = "str | float | None"
"""What is put into markup: `Html`, or text to escape; None is nothing."""


def visible(text: str) -> str:
    r"""Show what could not be seen or would turn the text around it: ``␀``, or ``\u202e``."""
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
    """Shorten a text for a place that has no room for all of it."""
    return text if len(text) <= limit else f"{text[: max(limit - 1, 0)]}…"


def html(template: LiteralString, /, *pieces: Piece, **named: Piece) -> Html:
    """Fill pieces into the fields of a template, as `str.format` does, each escaped."""
    made = {name: _escaped(piece) for name, piece in named.items()}
    return Html(template.format(*map(_escaped, pieces), **made))


def joined(*pieces: Piece) -> Html:
    """Put pieces one after the other."""
    return Html("".join(map(_escaped, pieces)))


def text_block(text: str, limit: int) -> Html:
    """Show a text of any length and any writing direction, with its line ends."""
    more = len(text) - limit
    # The parser drops a line end that follows <pre> at once.
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
