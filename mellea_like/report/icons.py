"""The signs of outcomes: each has a colour, a pattern and its own letter-like mark."""

from __future__ import annotations

from mellea_like.report.markup import Html, joined, tag

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
    "late": "passed",
    "rejected": "failed",
    "other": "unfinished",
}
"""What a sign is the same as."""


def mark(outcome: str, x: float, y: float) -> Html:
    """Draw the mark of an outcome: a tick, a cross, an exclamation mark, a dash, or dots."""
    strokes = _STROKES[_AS.get(outcome, outcome)]
    return tag("path", d=strokes, class_=f"mark {outcome}", transform=f"translate({x:g} {y:g})")


def swatch(outcome: str) -> Html:
    """Draw an outcome's sign for a legend or a line of text."""
    strokes = _STROKES[_AS.get(outcome, outcome)]
    return tag(
        "svg",
        tag("rect", class_=f"box {outcome}"),
        tag("path", d=strokes, class_=f"mark {outcome}"),
        class_="sign",
        aria_hidden="true",
    )


def box(outcome: str, x: float, width: float, height: int, scope: str) -> Html:
    """Draw a bar, as wide as a share of its drawing."""
    kind = _AS.get(outcome, outcome)
    place: dict[str, str | float] = {
        "x": f"{x:.5g}%",
        "y": 2,
        "width": f"{width:.5g}%",
        "height": height,
        "rx": 4,
    }
    plain = tag("rect", class_=f"box {outcome}", **place)
    if kind not in {"failed", "errored", "unfinished"}:
        return plain
    return joined(plain, tag("rect", fill=f"url(#{scope}-{kind})", class_="pattern", **place))


def patterns(scope: str) -> Html:
    """Define the patterns that `box` uses: stripes, a grid of lines, and dots."""
    stripes = tag("path", d="M0 0V8", class_="stroke failed")
    grid = tag("path", d="M0 0V6M0 0H6", class_="stroke errored")
    dots = tag("circle", cx=3, cy=3, r=1.2, class_="dot")
    return tag(
        "svg",
        tag(
            "defs",
            _pattern(f"{scope}-failed", 8, stripes, "rotate(45)"),
            _pattern(f"{scope}-errored", 6, grid, "rotate(45)"),
            _pattern(f"{scope}-unfinished", 6, dots),
        ),
        width=0,
        height=0,
        aria_hidden="true",
        class_="patterns",
    )


def _pattern(name: str, size: int, inside: Html, turned: str | None = None) -> Html:
    return tag(
        "pattern",
        inside,
        id=name,
        width=size,
        height=size,
        patternUnits="userSpaceOnUse",
        patternTransform=turned,
    )
