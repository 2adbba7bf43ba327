"""The waterfall of a call: a chart of its lanes over time, with the outcome of each draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.display import plural
from mellea_like.report.charts import ticks
from mellea_like.report.markup import Html, box, clip, html, joined, mark
from mellea_like.report.numbers import capital, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.report.views import SliceView, TraceView

MOST_ROWS = 200
"""The most lanes to draw, because a chart with more would not be useful."""

_ROW, _BAR = 34, 28
_AXIS = 24
_TICKS = 5
_THINNEST = 0.6
"""The least width of a draw's bar, in per cent, for draws that took almost no time."""

_ROOMY, _SLIM = 11, 4
"""The least widths of a bar, in per cent, to show its symbol and number, or only its symbol."""


class _Paint(NamedTuple):
    """Settings for drawing a waterfall: its length in seconds, the draws' names, id prefixes."""

    reach: float
    names: Mapping[int, str]
    panels: str | None
    """The prefix of the ids of the draws' panels, to which bars link; None for no links."""
    patterns: str


def waterfall(trace: TraceView, scope: str, *, links: bool, patterns: str | None = None) -> Html:
    """Return a chart of a call's draws over time, with a row for each lane."""
    slices = trace.slices
    chains = sorted({s.chain for s in slices})
    reach = max(trace.elapsed, *(s.ended_at for s in trace.slices), 1e-9)
    winners = trace.winners
    of_chain: dict[int, list[SliceView]] = {chain: [] for chain in chains[:MOST_ROWS]}
    for s in slices:
        if s.chain in of_chain:
            of_chain[s.chain].append(s)
    paint = _Paint(reach, trace.names, scope if links else None, patterns or scope)
    rows = [_row(chain, some, winners, paint) for chain, some in of_chain.items()]
    left_out = len(chains) - MOST_ROWS
    note = html('<p class="note">{} not drawn.</p>', plural(left_out, "more lane"))
    return html(
        '<div class="waterfall" role="group" aria-label="{} over {}">'
        '<div class="wf-head" aria-hidden="true">lane</div>{}'
        '<div class="wf-row wf-axis"><div class="wf-name"></div>{}</div>{}</div>',
        plural(len(slices), "draw"),
        seconds(reach),
        joined(*rows),
        _axis(reach),
        note if left_out > 0 else None,
    )


def anchor(scope: str, slice_: SliceView) -> str:
    """Return the id of a draw's panel."""
    return f"{scope}-{slice_.iteration}"


def _row(
    chain: int,
    slices: Sequence[SliceView],
    winners: Sequence[SliceView],
    paint: _Paint,
) -> Html:
    reach = paint.reach
    lines = [_line(at, reach, "grid") for at in ticks(reach, _TICKS)]
    if winners:  # A line marks the end of the last winner.
        lines.append(_line(max(s.ended_at for s in winners), reach, "won"))
    bars = [_bar(s, paint, won=s in winners) for s in sorted(slices, key=lambda s: s.started_at)]
    return html(
        '<div class="wf-row"><div class="wf-name" aria-hidden="true">{0}</div>'
        '<svg class="wf-track" width="100%" height="{1}" role="group" aria-label="lane {0}">'
        "{2}{3}</svg></div>",
        chain + 1,
        _ROW,
        joined(*lines),
        joined(*bars),
    )


def _line(at: float, reach: float, kind: str) -> Html:
    place = _place(at, reach)
    return html('<line x1="{0}" x2="{0}" y1="0" y2="{1}" class="{2}"/>', place, _ROW, kind)


def _bar(slice_: SliceView, paint: _Paint, *, won: bool) -> Html:
    start = 100 * max(slice_.started_at, 0.0) / paint.reach
    width = max(100 * slice_.ended_at / paint.reach - start, _THINNEST)
    start = min(start, 100 - width)
    outcome = "won" if won else slice_.outcome
    name = capital(paint.names[slice_.iteration])
    when = f"{seconds(slice_.started_at)} to {seconds(slice_.ended_at)}"
    what = f": {clip('; '.join(problems), 160)}" if (problems := slice_.problems) else ""
    words = f"{name}: {'passed and won' if won else outcome}, {when}{what}"
    size = "roomy" if width >= _ROOMY else "slim" if width >= _SLIM else "thin"
    inside = html(
        '<title>{}</title>{}<svg x="{}%" width="{}%" height="{}" aria-hidden="true">{}'
        '<text x="27" y="21" class="number">{}</text></svg>',
        words,
        box(outcome, start, width, _BAR, paint.patterns),
        f"{start:.5g}",
        f"{width:.5g}",
        _ROW,
        mark(outcome, ' transform="translate(6 8)"'),
        slice_.depth + 1,
    )
    kind = f"bar {size} {outcome}"
    if paint.panels is None:
        return html('<g class="{}" role="img" aria-label="{}">{}</g>', kind, words, inside)
    return html('<a class="{}" href="#{}">{}</a>', kind, anchor(paint.panels, slice_), inside)


def _axis(reach: float) -> Html:
    labels: list[Html] = []
    for at in ticks(reach, _TICKS):
        # At the right end, a centred label would extend beyond the chart.
        side = "start" if not at else "end" if at > 0.93 * reach else "middle"
        place = _place(at, reach)
        labels.append(
            html('<text x="{}" y="16" text-anchor="{}">{}</text>', place, side, seconds(at))
        )
    return html(
        '<svg class="wf-track" width="100%" height="{}" aria-hidden="true">{}</svg>',
        _AXIS,
        joined(*labels),
    )


def _place(at: float, reach: float) -> str:
    return f"{100 * at / reach:.5g}%"
