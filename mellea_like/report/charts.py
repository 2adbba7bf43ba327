"""Bars and histograms, as inline SVG."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.display import plural
from mellea_like.report.markup import Html, box, html, joined, swatch
from mellea_like.report.numbers import amount, count, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mellea_like.pass_rates import Coverage
    from mellea_like.report.run_figures import Distribution


class Breakdown(NamedTuple):
    """A chart of the parts of a whole: a bar, and rows with symbol, name, number and share."""

    bar: Html
    rows: list[tuple[Html, str, str, str]]


def breakdown(parts: Iterable[tuple[str, str, int]], scope: str) -> Breakdown:
    """Chart the parts of a whole, each given as an outcome (for the colour), name and number."""
    some = [part for part in parts if part[2]]
    whole = sum(number for _, _, number in some)
    boxes: list[Html] = []
    at = 0.0
    for kind, _, number in some:
        width = 100 * number / whole
        boxes.append(box(kind, at, width, 26, scope))
        at += width
    # Screen readers get the same information from the table beside it.
    bar = html(
        '<svg class="stack" width="100%" height="30" aria-hidden="true">{}</svg>', joined(*boxes)
    )
    rows = [
        (swatch(kind), name, count(number), percent(number, whole)) for kind, name, number in some
    ]
    return Breakdown(bar, rows)


def rate_bar(share: float, begin: float = 0.0) -> Html:
    """Draw a bar that starts at ``begin`` and is ``share`` long; the full width is 1."""
    place = html('x="{}%" width="{}%"', f"{100 * begin:.5g}", f"{100 * share:.5g}")
    bar = html('<rect {} height="8" rx="4" class="fill"/>', place)
    return html(
        '<svg class="rate" width="100%" height="8" aria-hidden="true">'
        '<rect width="100%" height="8" rx="4" class="track"/>{}</svg>',
        bar if share else None,
    )


WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 8, 352, 30, 160
LETTER = 7.0
MOST_COLUMNS = 12
MOST_NAMES = 7
"""The most columns that have room for all their names. With more, every second name is left out,
unless the names are short."""


def columns(counts: Sequence[tuple[str, int]], along: str) -> Html | None:
    """Draw a histogram of items with a column for each name; None if there are no names."""
    if not counts:
        return None
    most = max(number for _, number in counts) or 1
    step = (RIGHT - LEFT) / max(len(counts), 4)
    each = 1 if len(counts) <= MOST_NAMES or len(counts[0][0]) < 3 else 2  # noqa: PLR2004 (letters)
    parts: list[Html] = []
    for place, (name, number) in enumerate(counts):
        x = LEFT + place * step
        height = max((BOTTOM - TOP) * number / most, 1.5 if number else 0)
        parts.append(
            html(
                '<rect x="{}" y="{}" width="{}" height="{}" rx="3" class="col"/>',
                x + step * 0.12,
                BOTTOM - height,
                step * 0.76,
                height,
            )
        )
        if place % each == 0:
            parts.append(_text(x + step / 2, BOTTOM + 14, name))
        if number:
            parts.append(_text(x + step / 2, BOTTOM - height - 5, amount(number), "value"))
    said = ", ".join(f"{name}: {count(number)}" for name, number in counts)
    return html(
        '<svg class="chart" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><title>{2}</title>'
        '<line x1="{3}" x2="{4}" y1="{5}" y2="{5}" class="base"/>{6}{7}</svg>',
        WIDTH,
        HEIGHT,
        f"{plural(sum(number for _, number in counts), 'item')}. {said}.",
        LEFT,
        RIGHT,
        BOTTOM,
        joined(*parts),
        _text(WIDTH / 2, HEIGHT - 6, along),
    )


def numbers(found: Distribution) -> list[tuple[str, int]]:
    """Count how often each whole number from 1 on occurs; the last column may cover a range."""
    most = round(found.most)
    alone = most if most <= MOST_COLUMNS else MOST_COLUMNS - 1
    made = [(str(number), found.values.count(number)) for number in range(1, alone + 1)]
    rest = len(found.values) - sum(number for _, number in made)
    return [*made, (f"{alone + 1}–{most}", rest)] if rest else made


STEPS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
"""Sets of upper ends for columns, to be multiplied by powers of ten.

The finest set is first. `sizes` uses the first set with at most `MOST_COLUMNS` columns.
"""


def sizes(found: Distribution, write: Callable[[float], str]) -> list[tuple[str, int]]:
    """Count the values in ranges of growing width, each named after its upper end."""
    high = found.most
    if high <= 0:
        return []
    low = max(found.quantile(0.0), high / 1e6)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ends: list[float] = []
    for steps in STEPS:
        every = [step * 10.0**power for power in powers for step in steps]
        ends = every[bisect_left(every, low) : bisect_left(every, high * (1 - 1e-9)) + 1]
        if len(ends) <= MOST_COLUMNS:
            break
    counts = [0] * len(ends)
    for value in found.values:
        counts[min(bisect_left(ends, value * (1 - 1e-9)), len(ends) - 1)] += 1
    return [(write(end), number) for end, number in zip(ends, counts, strict=True)]


def _text(x: float, y: float, words: str, kind: str = "") -> Html:
    half = LETTER * len(words) / 2  # Half the width of the words, which must stay inside the edges.
    return html(
        '<text x="{}" y="{}" text-anchor="middle"{}>{}</text>',
        f"{min(max(x, half), WIDTH - half):.5g}",
        f"{y:.5g}",
        html(' class="{}"', kind) if kind else None,
        words,
    )


SIDE = 44
"""The width of the labels of the vertical axis, in the units of the chart's ``viewBox``."""


def coverage_chart(curve: Sequence[Coverage]) -> Html:
    """Draw the share of items that pass, by number of draws, with intervals and extrapolation."""
    measured = [p for p in curve if not p.extrapolated]
    beyond = [measured[-1], *(p for p in curve if p.extrapolated)]
    reach = math.log2(max(curve[-1].draws, 2))

    def place(draws: int, share: float) -> str:
        x = SIDE + (RIGHT - SIDE) * math.log2(draws) / reach
        return f"{x:.5g},{BOTTOM - (BOTTOM - TOP) * share:.5g}"

    def line(points: Sequence[Coverage], kind: str) -> Html:
        upper = [place(p.draws, p.high) for p in points]
        lower = [place(p.draws, p.low) for p in reversed(points)]
        return html(
            '<polygon points="{}" class="band {}"/><polyline points="{}" class="curve {}"/>',
            " ".join(upper + lower),
            kind,
            " ".join(place(p.draws, p.share) for p in points),
            kind,
        )

    parts: list[Html] = []
    for share in (0.0, 0.5, 1.0):
        y = BOTTOM - (BOTTOM - TOP) * share
        parts.append(
            html('<line x1="{}" x2="{}" y1="{}" y2="{}" class="grid"/>', SIDE, RIGHT, y, y)
        )
        parts.append(_text(SIDE / 2, y + 4, percent(share, 1)))
    for power in range(0, int(reach) + 1, 1 + int(reach) // MOST_NAMES):
        x = SIDE + (RIGHT - SIDE) * power / reach
        parts.append(_text(x, BOTTOM + 16, str(2**power)))
    parts += [line(measured, "measured"), line(beyond, "predicted")]
    said = "; ".join(
        f"{plural(p.draws, 'draw')}: {percent(p.share, 1)},"
        f" {'extrapolated' if p.extrapolated else 'measured'}, {percent(p.low, 1)} to"
        f" {percent(p.high, 1)}"
        for p in curve
        if p.extrapolated or p.draws & (p.draws - 1) == 0
    )
    return html(
        '<svg class="chart" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><title>{2}</title>'
        "{3}{4}</svg>",
        WIDTH,
        HEIGHT,
        f"Coverage by draws. {said}.",
        joined(*parts),
        _text((SIDE + RIGHT) / 2, HEIGHT - 6, "draws of each item"),
    )


def ticks(reach: float, most: int) -> list[float]:
    """Return at most ``most + 1`` numbers from 0 to ``reach``, in steps of 1, 2 or 5 times 10^n."""
    least = reach / most
    power = 10.0 ** math.floor(math.log10(least))
    # Division by a power of ten may be off by a rounding error.
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= least * (1 - 1e-9))
    return [number * step for number in range(int(reach / step + 1e-9) + 1)]
