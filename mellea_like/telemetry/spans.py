"""Spans whose errors never reach the application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from mellea_like.core.display import error_text
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextvars import Token
    from types import TracebackType
    from typing import Self

    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, TracerProvider
    from opentelemetry.util.types import AttributeValue


@dataclass(slots=True, eq=False)
class SpanScope:
    """A span that is current until it is closed. Errors of span processors are only logged."""

    _tracer: Tracer
    _name: str
    _attributes: Mapping[str, AttributeValue]
    _capture: bool
    _kind: SpanKind = SpanKind.INTERNAL
    _links: Sequence[Link] = ()
    _span: Span | None = None
    _token: Token[Any] | None = None

    def open(self, parent: Context | None = None) -> Self:
        """Start the span as a child of ``parent`` or of the current span, and make it current."""
        try:
            self._span = self._tracer.start_span(
                self._name,
                parent,
                kind=self._kind,
                attributes=self._attributes,
                links=self._links,
            )
            self._token = otel_context.attach(trace.set_span_in_context(self._span))
        except Exception as exc:  # noqa: BLE001 (the application's processors)
            _complain("start", self._name, exc)
        return self

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def leave(self) -> None:
        """Make the enclosing span current again, but keep this one open."""
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None

    def close(self, error: BaseException | None = None, ended_at: int | None = None) -> None:
        """End the span, now or at ``ended_at`` in epoch nanoseconds; a cancellation is no error."""
        self.leave()
        span, self._span = self._span, None
        if span is None:
            return
        try:
            if error is not None and split_cancellation(error)[0] is not None:
                span.set_attribute(names.OUTCOME, "cancelled")
            elif error is not None:
                span.set_attribute(names.ERROR_TYPE, type_name(error))
                span.set_status(
                    Status(StatusCode.ERROR, error_text(error) if self._capture else None)
                )
            span.end(ended_at)
        except Exception as exc:  # noqa: BLE001 (the application's processors)
            _complain("end", self._name, exc)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(exc)


def _complain(verb: str, name: str, exc: Exception) -> None:
    warn("telemetry could not %s the span %r: %s: %s", verb, name, type(exc).__name__, exc)


def type_name(error: BaseException) -> str:
    """Return the qualified name under which an exception's type is recorded."""
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def tracer_of(provider: TracerProvider | None) -> Tracer | None:
    """Return the tracer of ``provider`` or else of the process; None if nothing is recorded."""
    tracers = provider or trace.get_tracer_provider()
    silent = isinstance(tracers, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    return None if silent else tracers.get_tracer(names.SCOPE)


def tool_span(
    tracer: Tracer,
    name: str,
    call: str,
    arguments: str,
    capture: bool,  # noqa: FBT001
) -> SpanScope:
    """Return the span around one run of a tool."""
    about = {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: name,
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: call,
    }
    if capture:
        about[names.TOOL_ARGUMENTS] = arguments
    return SpanScope(tracer, f"execute_tool {name}", about, capture)


def server_span(tracer: Tracer, name: str, headers: Iterable[tuple[bytes, bytes]]) -> SpanScope:
    """Begin the span of a request that a server received, as part of the client's trace."""
    carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers}
    span = SpanScope(tracer, name, {}, False, SpanKind.SERVER)
    return span.open(propagate.extract(carrier))


def caller_span() -> SpanContext | None:
    """Return the context of the current span, to link to later, or None if there is none."""
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def shared_span(
    name: str,
    attributes: Mapping[str, AttributeValue],
    members: Iterable[SpanContext | None],
) -> SpanScope:
    """Return the span of work that several callers share, linked to the callers' spans."""
    # Not every version of OpenTelemetry has hashable span contexts.
    unique = {(each.trace_id, each.span_id): each for each in members if each is not None}
    links = [Link(context) for context in unique.values()]
    return SpanScope(
        trace.get_tracer(names.SCOPE), name, attributes, False, SpanKind.INTERNAL, links
    )
