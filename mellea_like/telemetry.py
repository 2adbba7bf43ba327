"""Spans and metrics through the OpenTelemetry API; an application brings the SDK, or does not.

A call has a span ``sampling <strategy>``; below it one span for each iteration; below that
``chat <model>`` for each request to a backend and ``validation``. Names follow the GenAI semantic
conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/, status: development). They are
kept here and not imported, since they have moved between packages.

Texts of prompts and replies, and messages of exceptions, are recorded only where the user asks for
them: exceptions are recorded by type. A span processor that raises is logged and ignored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token
    from types import TracebackType
    from typing import Self

    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation, Usage
    from mellea_like.core.slice import Slice

__all__ = ["CallTelemetry", "SpanScope", "Telemetry"]

SCOPE: Final = "mellea_like"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STOP: Final = "gen_ai.request.stop_sequences"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 (no password)
ERROR_TYPE: Final = "error.type"

SAMPLING_ID: Final = "mellea_like.sampling_id"
ITERATION: Final = "mellea_like.iteration"
SUBSAMPLE: Final = "mellea_like.subsample"
DEPTH: Final = "mellea_like.depth"
OUTCOME: Final = "mellea_like.outcome"
STOP_REASON: Final = "mellea_like.stop_reason"
PURPOSE: Final = "mellea_like.purpose"
RETRY: Final = "mellea_like.retry"
STRATEGY: Final = "mellea_like.strategy"
REQUIREMENT: Final = "mellea_like.requirement"
FAILED_REQUIREMENTS: Final = "mellea_like.failed_requirements"

# Bucket boundaries that the conventions advise, in seconds and in tokens.
DURATION_BUCKETS: Final = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
]  # fmt: skip
TOKEN_BUCKETS: Final = [
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
]  # fmt: skip


class Telemetry:
    """Where spans and metrics of a strategy's calls go.

    Without the SDK's providers, neither passed in nor set for the process, nothing is recorded and
    each call pays for one check.

    Args:
        tracer_provider: makes the tracer; by default the process's, looked up at each call.
        meter_provider: makes the instruments; by default the process's, looked up at each call.
        capture_content: record prompts, replies, reasons and messages of exceptions. They may hold
            personal data, so the default is False.
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
        self._instruments: tuple[MeterProvider, _Instruments] | None = None
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
        silent = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
        tracer = None if isinstance(tracers, silent) else tracers.get_tracer(SCOPE)
        instruments = None if _is_silent(meters) else self._instruments_of(meters)
        if tracer is None and instruments is None:
            return None
        return CallTelemetry(
            tracer or trace.NoOpTracer(), instruments, strategy, sampling_id, self.capture_content
        )

    def _instruments_of(self, provider: MeterProvider) -> _Instruments:
        if self._instruments is None or self._instruments[0] is not provider:
            self._instruments = (provider, _Instruments(provider.get_meter(SCOPE)))
        return self._instruments[1]


class _Instruments:
    """The instruments of one meter provider."""

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Duration of one request to a backend",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of one request to a backend",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        self.slices = meter.create_counter(
            "mellea_like.slices", unit="{slice}", description="Iterations by outcome"
        )
        self.failures = meter.create_counter(
            "mellea_like.requirement.failures",
            unit="{failure}",
            description="Verdicts against a slice, by requirement",
        )


class CallTelemetry:
    """Records one call."""

    def __init__(
        self,
        tracer: Tracer,
        instruments: _Instruments | None,
        strategy: str,
        sampling_id: str,
        capture_content: bool,  # noqa: FBT001
    ) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._strategy = strategy
        self._sampling_id = sampling_id
        self._capture = capture_content

    def call(self) -> SpanScope:
        """Return the span round the whole call."""
        attributes = {SAMPLING_ID: self._sampling_id, STRATEGY: self._strategy}
        return SpanScope(self._tracer, f"sampling {self._strategy}", attributes, self._capture)

    def iteration(self, iteration: int, subsample: int, depth: int) -> SpanScope:
        """Return the span round one iteration."""
        attributes: dict[str, AttributeValue] = {
            SAMPLING_ID: self._sampling_id,
            ITERATION: iteration,
            SUBSAMPLE: subsample,
            DEPTH: depth,
        }
        return SpanScope(self._tracer, f"iteration {iteration}", attributes, self._capture)

    def validation(self) -> SpanScope:
        """Return the span round the validation of a slice."""
        return SpanScope(
            self._tracer, "validation", {SAMPLING_ID: self._sampling_id}, self._capture
        )

    def chat(self, backend: Backend, request: Request) -> SpanScope:
        """Return the span round one request to a backend."""
        attributes = _request_attributes(backend, request)
        if self._capture:
            attributes[INPUT_MESSAGES] = _as_messages(
                [(message.role, message.content) for message in request.messages]
            )
        model = attributes.get(REQUEST_MODEL)
        name = f"chat {model}" if model else "chat"
        return SpanScope(self._tracer, name, attributes, self._capture, SpanKind.CLIENT)

    def answered(self, span: SpanScope, generation: Generation) -> None:
        """Record a reply on its span."""
        found: dict[str, AttributeValue] = {}
        if generation.model is not None:
            found[RESPONSE_MODEL] = generation.model
        if generation.finish_reason is not None:
            found[RESPONSE_FINISH] = [generation.finish_reason]
        if self._capture:
            found[OUTPUT_MESSAGES] = _as_messages([("assistant", generation.text)])
        span.set(found)

    def requested(
        self,
        span: SpanScope,
        backend: Backend,
        request: Request,
        usage: Usage,
        duration: float,
        error: BaseException | None,
    ) -> None:
        """Record what a request cost, whether or not it was answered."""
        span.set({INPUT_TOKENS: usage.input_tokens, OUTPUT_TOKENS: usage.output_tokens})
        if self._instruments is None:
            return
        attributes = _metric_attributes(backend, request)
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if tokens:
                self._instruments.tokens.record(tokens, {**attributes, TOKEN_TYPE: kind})
        if error is not None:
            attributes[ERROR_TYPE] = _type_name(error)
        self._instruments.duration.record(duration, attributes)

    def ended(self, span: SpanScope | None, slice_: Slice) -> None:
        """Record the outcome of an iteration, and close its span."""
        if self._instruments is not None:
            self._instruments.slices.add(
                1, {STRATEGY: self._strategy, OUTCOME: slice_.outcome.value}
            )
            for requirement, _ in slice_.failures:
                self._instruments.failures.add(
                    1, {STRATEGY: self._strategy, REQUIREMENT: requirement.name}
                )
        if span is not None:
            found: dict[str, AttributeValue] = {OUTCOME: slice_.outcome.value}
            if slice_.failures:
                found[FAILED_REQUIREMENTS] = [failed.name for failed, _ in slice_.failures]
            span.set(found)
            span.close(slice_.error)


class SpanScope:
    """A span that is the current one until it is closed.

    Use it as a context manager, or `close` it.
    No failure of the application's span processors gets out of it.
    """

    __slots__ = ("_attributes", "_capture", "_kind", "_name", "_span", "_token", "_tracer")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        attributes: Mapping[str, AttributeValue],
        capture: bool,  # noqa: FBT001
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._capture = capture
        self._kind = kind
        self._span: Span | None = None
        self._token: Token[Any] | None = None

    def open(self) -> Self:
        """Start the span and make it the current one.

        Returns:
            This object.
        """
        try:
            self._span = self._tracer.start_span(
                self._name, kind=self._kind, attributes=self._attributes
            )
            self._token = otel_context.attach(trace.set_span_in_context(self._span))
        except Exception as exc:  # noqa: BLE001 (the application's processors)
            _complain("start", self._name, exc)
        return self

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes.

        Args:
            attributes: their names and values.
        """
        if self._span is not None:
            self._span.set_attributes(attributes)

    def close(self, error: BaseException | None = None) -> None:
        """End the span, and make the one round it current again.

        Args:
            error: the exception that ended it; recorded by type.
        """
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None
        span, self._span = self._span, None
        if span is None:
            return
        try:
            if error is not None:
                span.set_attribute(ERROR_TYPE, _type_name(error))
                span.set_status(Status(StatusCode.ERROR, str(error) if self._capture else None))
            span.end()
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


def _is_silent(provider: MeterProvider) -> bool:
    # The proxy that stands in until a provider is set has no public name.
    return isinstance(provider, metrics.NoOpMeterProvider) or (
        type(provider).__name__ == "_ProxyMeterProvider"
    )


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def _metric_attributes(backend: Backend, request: Request) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        OPERATION: "chat",
        PROVIDER: str(getattr(backend, "provider", type(backend).__name__)),
        PURPOSE: request.meta.purpose,
    }
    model = request.options.model or getattr(backend, "model", None)
    if model:
        attributes[REQUEST_MODEL] = str(model)
    return attributes


def _request_attributes(backend: Backend, request: Request) -> dict[str, AttributeValue]:
    options, meta = request.options, request.meta
    optional = {
        REQUEST_TEMPERATURE: options.temperature,
        REQUEST_TOP_P: options.top_p,
        REQUEST_MAX_TOKENS: options.max_tokens,
        REQUEST_SEED: options.seed,
        REQUEST_STOP: options.stop or None,
        ITERATION: meta.iteration,
        SUBSAMPLE: meta.subsample,
    }
    return {
        **_metric_attributes(backend, request),
        SAMPLING_ID: meta.sampling_id,
        RETRY: meta.retry,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _as_messages(messages: list[tuple[str, str]]) -> str:
    return json.dumps(
        [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages],
        ensure_ascii=False,
    )
