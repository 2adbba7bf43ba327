"""The view of a result in a notebook: the waterfall of its call, without a script."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from mellea_like.report.call import headline, stopped
from mellea_like.report.draw_details import Capacity, decided, panels
from mellea_like.report.icons import patterns, swatch
from mellea_like.report.markup import Html, html
from mellea_like.report.page import style
from mellea_like.report.views import TraceView
from mellea_like.report.waterfall import waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["cell"]

ROOM = Capacity(panels=200, texts=200_000, text=10_000)
"""A notebook keeps its outputs in its file."""


def cell(record: Mapping[str, Any]) -> Html:
    """Show a call in a notebook's cell."""
    trace = TraceView(record)
    # A notebook can show several results.
    scope = f"mlr-{sha256(trace.sampling_id.encode('utf-8', 'replace')).hexdigest()[:12]}"
    drawn, _ = trace.cut(ROOM.panels)
    facts = " · ".join(f"{value} {name}" for name, value in headline(trace))
    return html(
        '<div class="mlr mlr-cell"><style>{}</style>{}'
        "<header>{}<strong>{}</strong><span>{}</span></header>{}{}{}</div>",
        Html(style("trace")),
        patterns(scope),
        swatch("won" if trace.success else "failed"),
        stopped(trace),
        facts,
        waterfall(drawn, scope, links=False),
        decided(trace),
        panels(trace, scope, ROOM),
    )
