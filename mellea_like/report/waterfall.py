"""The waterfall of a call: its subsamples over time, and how each iteration ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.report.attempts import problems_of, winner_of
from mellea_like.report.charts import ticks
from mellea_like.report.format import plural, seconds
from mellea_like.report.icons import box, mark
from mellea_like.report.markup import Html, clip, joined, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MOST_ROWS", "anchor", "iteration_in_words", "span_of", "waterfall"]

MOST_ROWS = 200
"""Subsamples that are drawn; beyond that a picture doesn't help."""

_ROW, _BAR = 34, 28
_AXIS = 24
_TICKS = 5
_THINNEST = 0.6
"""Per cent of the width: so thin is an iteration that took no time at all."""

_ROOMY, _SLIM = 11, 4
"""Per cent of the width from which a bar has room for its number, or for its mark, on a phone."""


class _Paint(NamedTuple):
    """How long the time axis is, and the ids of the panels (None for no links) and patterns."""

    reach: float
    panels: str | None
    patterns: str


def waterfall(
    trace: Mapping[str, Any], scope: str, *, links: bool, patterns: str | None = None
) -> Html:
    """Draw a call's iterations over time, a row for each subsample."""
    slices: Sequence[Mapping[str, Any]] = trace["slices"]
    chains = sorted({s["chain"] for s in slices})
    reach = span_of(trace)
    winner = winner_of(trace)
    of_chain: dict[int, list[Mapping[str, Any]]] = {chain: [] for chain in chains[:MOST_ROWS]}
    for s in slices:
        if s["chain"] in of_chain:
            of_chain[s["chain"]].append(s)
    paint = _Paint(reach, scope if links else None, patterns or scope)
    rows = [_row(chain, some, winner, paint) for chain, some in of_chain.items()]
    left_out = len(chains) - MOST_ROWS
    return tag(
        "div",
        tag("div", "subsample", class_="wf-head", aria_hidden="true"),
        *rows,
        tag("div", tag("div", class_="wf-name"), _axis(reach), class_="wf-row wf-axis"),
        tag("p", f"{plural(left_out, 'more subsample')} not drawn.", class_="note")
        if left_out > 0
        else None,
        class_="waterfall",
        role="group",
        aria_label=f"{plural(len(slices), 'iteration')} over {seconds(reach)}",
    )


def span_of(trace: Mapping[str, Any]) -> float:
    """Return how long the time axis of a call is."""
    ends: list[float] = [s["ended_at"] for s in trace["slices"]]
    elapsed: float = trace["elapsed"]
    return max(elapsed, *ends, 1e-9)


def anchor(scope: str, slice_: Mapping[str, Any]) -> str:
    """Return the id of an iteration's panel."""
    return f"{scope}-{slice_['iteration']}"


def iteration_in_words(slice_: Mapping[str, Any], *, won: bool) -> str:
    """Say in a line how an iteration went."""
    outcome = "passed and won" if won else slice_["outcome"]
    when = f"{seconds(slice_['started_at'])} to {seconds(slice_['ended_at'])}"
    problems = problems_of(slice_)
    what = f": {clip('; '.join(problems), 160)}" if problems else ""
    return f"Iteration {slice_['iteration']} {outcome}, {when}{what}"


def _row(
    chain: int,
    slices: Sequence[Mapping[str, Any]],
    winner: Mapping[str, Any] | None,
    paint: _Paint,
) -> Html:
    reach = paint.reach
    lines = [
        tag("line", x1=_place(at, reach), x2=_place(at, reach), y1=0, y2=_ROW, class_="grid")
        for at in ticks(reach, _TICKS)
    ]
    if winner is not None:
        at = _place(winner["ended_at"], reach)
        lines.append(tag("line", x1=at, x2=at, y1=0, y2=_ROW, class_="won"))
    bars = [_bar(s, paint, won=s is winner) for s in sorted(slices, key=lambda s: s["started_at"])]
    track = tag(
        "svg",
        *lines,
        *bars,
        class_="wf-track",
        width="100%",
        height=_ROW,
        role="group",
        aria_label=f"subsample {chain}",
    )
    return tag(
        "div", tag("div", chain, class_="wf-name", aria_hidden="true"), track, class_="wf-row"
    )


def _bar(slice_: Mapping[str, Any], paint: _Paint, *, won: bool) -> Html:
    start = 100 * max(slice_["started_at"], 0.0) / paint.reach
    width = max(100 * slice_["ended_at"] / paint.reach - start, _THINNEST)
    start = min(start, 100 - width)
    outcome = "won" if won else slice_["outcome"]
    words = iteration_in_words(slice_, won=won)
    size = "roomy" if width >= _ROOMY else "slim" if width >= _SLIM else "thin"
    inside = joined(
        tag("title", words),
        box(outcome, start, width, _BAR, paint.patterns),
        tag(
            "svg",
            mark(outcome, 6, 8),
            tag("text", slice_["iteration"], x=27, y=21, class_="number"),
            x=f"{start:.5g}%",
            width=f"{width:.5g}%",
            height=_ROW,
            aria_hidden="true",
        ),
    )
    name = f"bar {size} {outcome}"
    if paint.panels is None:
        return tag("g", inside, class_=name, role="img", aria_label=words)
    return tag("a", inside, class_=name, href=f"#{anchor(paint.panels, slice_)}")


def _axis(reach: float) -> Html:
    labels: list[Html] = []
    for at in ticks(reach, _TICKS):
        # A label at the right end would stick out.
        side = "start" if not at else "end" if at > 0.93 * reach else "middle"
        labels.append(tag("text", seconds(at), x=_place(at, reach), y=16, text_anchor=side))
    return tag("svg", *labels, class_="wf-track", width="100%", height=_AXIS, aria_hidden="true")


def _place(at: float, reach: float) -> str:
    return f"{100 * at / reach:.5g}%"
