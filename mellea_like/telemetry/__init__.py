"""Spans and metrics through the OpenTelemetry API. They need an SDK, set up by the application.

A call has a span ``sampling <strategy>``, with a child span for each draw. A draw's span has the
children ``chat <model>`` for each request to a backend, ``execute_tool <name>`` for each run of a
tool, and ``validation``.

Prompts, replies and messages of exceptions are recorded only if the user asks for it. Otherwise,
only the types of exceptions are recorded. An error in a span processor is logged and ignored.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import check_type
from mellea_like.telemetry.sessions import session

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from mellea_like.telemetry.call import CallTelemetry, Instruments
    from mellea_like.telemetry.spans import SpanScope

__all__ = ["Telemetry", "session"]

BY_NAME = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER")
"""Environment variables that name a provider for OpenTelemetry to load."""


class Telemetry:
    """The destination of the spans and metrics of a strategy's calls.

    If no provider of the SDK is passed in or set for the process, nothing is recorded, and each
    call costs one check.

    Args:
        tracer_provider: makes the tracer. The default is the process's provider, looked up at each
            call.
        meter_provider: makes the instruments. The default is the process's provider, looked up at
            each call.
        capture_content: whether to record prompts, replies and messages of exceptions. They may
            contain personal data, so the default is False.

    Raises:
        TypeError: ``capture_content`` isn't a bool.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool = False,
    ) -> None:
        check_type("Telemetry: capture_content", capture_content, bool, "a bool")
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._instruments: Instruments | None = None
        self.capture_content = capture_content

    def start_call(self, strategy: str, sampling_id: str) -> CallTelemetry | None:
        """Begin recording one call.

        Args:
            strategy: the name of the strategy's class.
            sampling_id: the call's id.

        Returns:
            The recorder of the call, or None if neither spans nor metrics are collected.
        """
        if not self._may_be_heard():
            return None
        from mellea_like.telemetry import call, spans  # noqa: PLC0415

        tracer = spans.tracer_of(self._tracer_provider)
        meters = call.meters_of(self._meter_provider)
        instruments = None if meters is None else self._instruments_of(meters)
        if tracer is None and instruments is None:
            return None
        return call.CallTelemetry(tracer, instruments, strategy, sampling_id, self.capture_content)

    def tool(
        self, name: str, call: str, arguments: str = ""
    ) -> AbstractContextManager[SpanScope | None]:
        """Return the span around one run of a tool.

        Args:
            name: the tool's name.
            call: the id of the model's tool call.
            arguments: the call's arguments, as JSON; recorded only with ``capture_content``.

        Returns:
            A context manager, which does nothing if no spans are collected.
        """
        tracer = self._tracer()
        if tracer is None:
            return nullcontext()
        from mellea_like.telemetry.spans import tool_span  # noqa: PLC0415

        return tool_span(tracer, name, call, arguments, self.capture_content)

    def server(self, name: str, headers: Iterable[tuple[bytes, bytes]]) -> SpanScope | None:
        """Begin the span of a request that a server received, as part of the client's trace.

        Args:
            name: the span's name, such as "POST /v1/chat/completions".
            headers: the request's headers in lower case, which may include a ``traceparent``.

        Returns:
            The span, which has ``set(attributes)`` and ``close()``, or None if no spans are
            collected.
        """
        tracer = self._tracer()
        if tracer is None:
            return None
        from mellea_like.telemetry.spans import server_span  # noqa: PLC0415

        return server_span(tracer, name, headers)

    def _tracer(self) -> Tracer | None:
        if not self._may_be_heard():
            return None
        from mellea_like.telemetry.spans import tracer_of  # noqa: PLC0415

        return tracer_of(self._tracer_provider)

    def _instruments_of(self, provider: MeterProvider) -> Instruments:
        if self._instruments is None or self._instruments.provider is not provider:
            from mellea_like.telemetry.call import Instruments  # noqa: PLC0415

            self._instruments = Instruments(provider)
        return self._instruments

    def _may_be_heard(self) -> bool:
        """Return whether there may be a provider, without a 30 ms import of OpenTelemetry."""
        return (
            self._tracer_provider is not None
            or self._meter_provider is not None
            or "opentelemetry" in sys.modules
            or any(name in os.environ for name in BY_NAME)
        )
