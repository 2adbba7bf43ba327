"""Bars and histograms, as inline SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from mellea_like.report.format import amount, count, percent, plural
from mellea_like.report.icons import box, swatch
from mellea_like.report.markup import Html, html, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.report.statistics import Distribution

__all__ = ["columns", "distribution", "rate_bar", "stacked"]

WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 30, 160
MOST_BINS = 32
_MOST_COLUMNS = 12
_FLAG, _EDGE = 38, 36
"""How wide a quantile's name is; how near to the edge a label sticks out."""


def stacked(parts: Sequence[tuple[str, float]], scope: str, title: str) -> Html:
    """Draw the parts of a whole beside each other."""
    whole = sum(part for _, part in parts)
    boxes: list[Html] = []
    at = 0.0
    for kind, part in parts:
        if part <= 0:
            continue
        width = 100 * part / whole
        boxes.append(box(kind, at, width, 26, scope))
        at += width
    return html(
        '<svg class="stack" width="100%" height="30" role="img" aria-label="{0}">{1}'
        "<title>{0}</title></svg>",
        title,
        joined(*boxes),
    )


def rate_bar(share: float) -> Html:
    """Draw a share as a bar in its track; the figure stands beside it."""
    bar = html('<rect width="{}%" height="8" rx="4" class="fill"/>', f"{100 * share:.5g}")
    return html(
        '<svg width="100%" height="8" aria-hidden="true">'
        '<rect width="100%" height="8" rx="4" class="track"/>{}</svg>',
        bar if share else None,
    )


def columns(counts: Sequence[tuple[str, int]], title: str, along: str) -> Html:
    """Draw a histogram of few values: a column for each."""
    most = max((number for _, number in counts), default=1) or 1
    step = (WIDTH - 2 * RIGHT) / max(len(counts), 4)
    parts: list[Html] = [_base(RIGHT), _along(along)]
    for place, (name, number) in enumerate(counts):
        x = RIGHT + place * step
        height = max((BOTTOM - TOP) * number / most, 1.5 if number else 0)
        middle = x + step / 2
        parts.append(
            html(
                '<rect x="{}" y="{}" width="{}" height="{}" rx="3" class="col"/>',
                x + step * 0.12,
                BOTTOM - height,
                step * 0.76,
                height,
            )
        )
        parts.append(_text(middle, BOTTOM + 14, name))
        parts.append(_text(middle, BOTTOM - height - 5, amount(number), "value"))
    return _chart(parts, title)


def distribution(
    found: Distribution, write: Callable[[float], str], title: str, along: str
) -> Html:
    """Draw how values are distributed on a logarithmic axis, with their p50 and p95."""
    low, high, counts = bins_of(found, MOST_BINS)
    most = max(counts)
    reach = math.log(high / low)
    step = (WIDTH - LEFT - RIGHT) / len(counts)

    def place(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / reach
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    parts: list[Html] = []
    for at in ticks(most, 3):
        y = BOTTOM - (BOTTOM - TOP) * at / most
        parts.append(_line(LEFT, WIDTH - RIGHT, y, y, "grid"))
        if at == int(at):
            parts.append(_text(LEFT - 5, y + 4, amount(at), side="end"))
    parts += [
        html(
            '<rect x="{}" width="{}" y="{}" height="{}" class="col"/>',
            LEFT + number * step + 0.5,
            max(step - 1, 1),
            BOTTOM - (BOTTOM - TOP) * height / most,
            (BOTTOM - TOP) * height / most,
        )
        for number, height in enumerate(counts)
        if height
    ]
    parts.append(_base(LEFT))
    for at in log_ticks(low, high, 6):
        x = place(at)
        parts.append(_text(x, BOTTOM + 14, write(at), side=_side(x)))
    middle, late = place(found.quantile(0.5)), place(found.quantile(0.95))
    for x in (middle, late):
        parts.append(_line(x, x, TOP - 8, BOTTOM, "line"))
    parts += [_text(x, TOP - 13, name, "flag", side) for x, name, side in _flags(middle, late)]
    parts.append(_along(along))
    return _chart(parts, title)


def binned(counts: dict[int, int]) -> list[tuple[str, int]]:
    """Put whole numbers into at most a dozen columns: small ones alone, then in longer runs."""
    most = max(counts, default=1)
    if most <= _MOST_COLUMNS:
        return [(str(number), counts.get(number, 0)) for number in range(1, most + 1)]
    made: list[tuple[str, int]] = []
    first = 1
    while first <= most:
        last = first if first <= 5 else min(most, math.ceil(first * 1.5) - (first % 2 == 0))  # noqa: PLR2004
        if len(made) == _MOST_COLUMNS - 1:
            last = most
        total = sum(number for value, number in counts.items() if first <= value <= last)
        made.append((f"{first}" if first == last else f"{first}–{last}", total))
        first = last + 1
    return made


def _flags(middle: float, late: float) -> list[tuple[float, str, str]]:
    """Place the names of the two quantiles so that they do not lie on each other, nor outside."""
    if late - middle >= _FLAG:
        return [(middle, "p50", "middle"), (late, "p95", _side(late))]
    if late > WIDTH - _FLAG:
        return [(late, "p50, p95", "end")]
    return [(middle, "p50", "end"), (late, "p95", "start")]


def _side(x: float) -> str:
    return "end" if x > WIDTH - _EDGE else "start" if x < LEFT + _EDGE / 2 else "middle"


def _chart(parts: Sequence[Html], title: str) -> Html:
    return html(
        '<svg class="chart" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><title>{2}</title>'
        "{3}</svg>",
        WIDTH,
        HEIGHT,
        title,
        joined(*parts),
    )


def _line(x1: float, x2: float, y1: float, y2: float, kind: str) -> Html:
    return html('<line x1="{}" x2="{}" y1="{}" y2="{}" class="{}"/>', x1, x2, y1, y2, kind)


def _base(left: float) -> Html:
    return _line(left, WIDTH - RIGHT, BOTTOM, BOTTOM, "base")


def _along(words: str) -> Html:
    return _text(WIDTH / 2, HEIGHT - 6, words)


def _text(x: float, y: float, words: str, kind: str = "", side: str = "middle") -> Html:
    return html(
        '<text x="{}" y="{}" text-anchor="{}"{}>{}</text>',
        f"{x:.5g}",
        f"{y:.5g}",
        side,
        html(' class="{}"', kind) if kind else None,
        words,
    )


def columns_in_words(counts: Sequence[tuple[str, int]], thing: str) -> str:
    """Say what a histogram shows."""
    said = ", ".join(f"{name}: {count(number)}" for name, number in counts)
    return f"{plural(sum(number for _, number in counts), thing)}. {said}."


class Part(TypedDict):
    """A row: a sign, what it is, how much, and its share of the whole."""

    sign: Html
    name: str
    number: str
    share: str


def whole_of(parts: Sequence[tuple[str, str, int]]) -> list[Part]:
    """Make the rows of a table."""
    whole = sum(number for _, _, number in parts)
    return [
        Part(sign=swatch(kind), name=name, number=count(number), share=percent(number, whole))
        for kind, name, number in parts
    ]


def parts_in_words(parts: Sequence[tuple[str, int]], thing: str) -> str:
    """Say in a sentence what the parts are."""
    whole = sum(number for _, number in parts)
    said = ", ".join(f"{percent(number, whole)} {name}" for name, number in parts)
    return f"{plural(whole, thing)}: {said}" if said else plural(whole, thing)


_STEPS = (1, 2, 5, 10)
_NARROWEST = 1.07
"""How much further a bin ends than it begins, at least: narrower ones would show noise."""


def nice_step(reach: float, most: int) -> float:
    """Choose the distance between ticks: 1, 2 or 5 times a power of ten."""
    least = reach / most
    power = 10.0 ** math.floor(math.log10(least))
    # A division by a power of ten may give a little more than what was meant.
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def ticks(reach: float, most: int) -> list[float]:
    """Choose the ticks of an axis that begins at 0."""
    step = nice_step(reach, most)
    return [number * step for number in range(int(reach / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose the ticks of a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [
            factor * 10.0**power
            for power in range(first, last + 1)
            for factor in factors
            if low <= factor * 10.0**power <= high
        ]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def bins_of(found: Distribution, most: int) -> tuple[float, float, list[int]]:
    """Cut values into bins of equal width on a logarithmic axis: its ends, and the bins' counts."""
    low = max(found.quantile(0.0), found.most / 1e6, 1e-6)
    high = max(found.most, low)
    if high < low * 1.5:  # All much the same: a bin or a few, in the middle of some room.
        low, high = low / 1.5, high * 1.5
    number = min(most, max(1, int(math.log(high / low) / math.log(_NARROWEST))))
    counts = [0] * number
    for value in found.values:
        place = math.log(max(value, low) / low) / math.log(high / low)
        counts[min(int(place * number), number - 1)] += 1
    return low, high, counts
