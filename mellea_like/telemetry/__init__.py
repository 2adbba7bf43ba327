"""Spans and metrics through the OpenTelemetry API; an application brings the SDK, or does not.

A call has a span ``sampling <strategy>``; below it one span for each iteration; below that
``chat <model>`` for each request to a backend, ``execute_tool <name>`` for each run of a tool, and
``validation``.

Texts of prompts and replies, and messages of exceptions, are recorded only where the user asks for
them: exceptions are recorded by type. A span processor that raises is logged and ignored.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import SpanKind

from mellea_like.telemetry import names
from mellea_like.telemetry.call import CallTelemetry, Instruments
from mellea_like.telemetry.names import SCOPE
from mellea_like.telemetry.spans import SpanScope

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Telemetry", "server_span"]

SILENT = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
"""What serves where nobody has set a provider up."""


class Telemetry:
    """Where spans and metrics of a strategy's calls go.

    Without the SDK's providers, neither passed in nor set for the process, nothing is recorded and
    each call pays for one check.

    Args:
        tracer_provider: makes the tracer; by default the process's, looked up at each call.
        meter_provider: makes the instruments; by default the process's, looked up at each call.
        capture_content: record prompts, replies and messages of exceptions. They may hold personal
            data, so the default is False.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool = False,
    ) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._instruments: tuple[MeterProvider, Instruments] | None = None
        self.capture_content = capture_content

    def start_call(self, strategy: str, sampling_id: str) -> CallTelemetry | None:
        """Begin recording one call.

        Args:
            strategy: the name of the strategy's class.
            sampling_id: the call's id.

        Returns:
            What records it; None where nobody listens.
        """
        tracers = self._tracer_provider or trace.get_tracer_provider()
        meters = self._meter_provider or metrics.get_meter_provider()
        tracer = None if isinstance(tracers, SILENT) else tracers.get_tracer(SCOPE)
        instruments = None if _is_silent(meters) else self._instruments_of(meters)
        if tracer is None and instruments is None:
            return None
        return CallTelemetry(
            tracer or trace.NoOpTracer(), instruments, strategy, sampling_id, self.capture_content
        )

    def tool(self, name: str, call: str) -> AbstractContextManager[object]:
        """Return the span around one run of a tool, which has neither arguments nor answer.

        Args:
            name: the tool's name.
            call: the id of the call.

        Returns:
            What to enter with ``with``; it does nothing where nobody listens.
        """
        tracers = self._tracer_provider or trace.get_tracer_provider()
        if isinstance(tracers, SILENT):
            return nullcontext()
        about = {
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: call,
        }
        tracer = tracers.get_tracer(SCOPE)
        return SpanScope(tracer, f"execute_tool {name}", about, self.capture_content)

    def _instruments_of(self, provider: MeterProvider) -> Instruments:
        if self._instruments is None or self._instruments[0] is not provider:
            self._instruments = (provider, Instruments(provider.get_meter(SCOPE)))
        return self._instruments[1]


def server_span(name: str, headers: Iterable[tuple[bytes, bytes]]) -> SpanScope | None:
    """Begin the span of a request to a server of ours, within its caller's trace."""
    tracers = trace.get_tracer_provider()
    if isinstance(tracers, SILENT):
        return None
    carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers}
    span = SpanScope(tracers.get_tracer(SCOPE), name, {}, False, SpanKind.SERVER)
    return span.open(propagate.extract(carrier))


def _is_silent(provider: MeterProvider) -> bool:
    # The proxy that serves until a provider is set has no public name.
    return isinstance(provider, metrics.NoOpMeterProvider) or (
        type(provider).__name__ == "_ProxyMeterProvider"
    )
