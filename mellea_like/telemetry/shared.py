"""Spans of work that several callers share: one of its own, linked to each of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind

from mellea_like.telemetry.names import SCOPE
from mellea_like.telemetry.spans import SpanScope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.trace import SpanContext
    from opentelemetry.util.types import AttributeValue

__all__ = ["caller_span", "shared_span"]


def caller_span() -> SpanContext | None:
    """Return the span that the running code is in, to link to later."""
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def shared_span(
    name: str,
    attributes: Mapping[str, AttributeValue],
    members: Iterable[SpanContext | None],
    kind: SpanKind = SpanKind.INTERNAL,
) -> SpanScope:
    """Return the span of work that several callers share."""
    # A span's context can't be hashed in every version of OpenTelemetry.
    unique = {(each.trace_id, each.span_id): each for each in members if each is not None}
    links = [Link(context) for context in unique.values()]
    return SpanScope(trace.get_tracer(SCOPE), name, attributes, False, kind, links)
