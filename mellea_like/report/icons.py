"""The signs of outcomes: each has a colour, a pattern and its own letter-like mark."""

from __future__ import annotations

from mellea_like.report.markup import Html, html, joined

__all__ = ["box", "mark", "patterns", "swatch"]

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
"""What a sign is the same as."""


_PATTERNS = """\
<svg width="0" height="0" aria-hidden="true" class="patterns"><defs>\
<pattern id="{scope}-failed" width="8" height="8" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><path d="M0 0V8" class="stroke failed"/></pattern>\
<pattern id="{scope}-errored" width="6" height="6" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><path d="M0 0V6M0 0H6" class="stroke errored"/></pattern>\
<pattern id="{scope}-unfinished" width="6" height="6" patternUnits="userSpaceOnUse">\
<circle cx="3" cy="3" r="1.2" class="dot"/></pattern></defs></svg>"""


def mark(outcome: str, x: int, y: int) -> Html:
    """Draw a tick, a cross, an exclamation mark, a dash, or dots, in a square of 16 pixels."""
    strokes = _STROKES[_AS.get(outcome, outcome)]
    return html(
        '<path d="{}" class="mark {}" transform="translate({} {})"/>', strokes, outcome, x, y
    )


def swatch(outcome: str) -> Html:
    """Draw an outcome's sign for a legend or a line of text; the words stand beside it."""
    return html(
        '<svg class="sign" aria-hidden="true">'
        '<rect class="box {0}"/><path d="{1}" class="mark {0}"/></svg>',
        outcome,
        _STROKES[_AS.get(outcome, outcome)],
    )


def box(outcome: str, x: float, width: float, height: int, scope: str) -> Html:
    """Draw a bar: where it begins and how wide it is are per cents, its height is in pixels."""
    kind = _AS.get(outcome, outcome)
    place = html('x="{}%" y="2" width="{}%" height="{}" rx="4"', f"{x:.5g}", f"{width:.5g}", height)
    plain = html('<rect class="box {}" {}/>', outcome, place)
    if kind not in {"failed", "errored", "unfinished"}:
        return plain
    pattern = html('<rect fill="url(#{}-{})" class="pattern" {}/>', scope, kind, place)
    return joined(plain, pattern)


def patterns(scope: str) -> Html:
    """Define the patterns that `box` uses, whose ids begin with the scope."""
    return html(_PATTERNS, scope=scope)
