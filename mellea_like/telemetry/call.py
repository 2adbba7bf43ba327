"""Recording one call: its spans, and its share of the metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind, Tracer

from mellea_like.telemetry.names import (
    DEPTH,
    ERROR_TYPE,
    FAILED_REQUIREMENTS,
    INPUT_MESSAGES,
    INPUT_TOKENS,
    ITERATION,
    OPERATION,
    OUTCOME,
    OUTPUT_MESSAGES,
    OUTPUT_TOKENS,
    PROVIDER,
    PURPOSE,
    REQUEST_MAX_TOKENS,
    REQUEST_MODEL,
    REQUEST_SEED,
    REQUEST_STOP,
    REQUEST_TEMPERATURE,
    REQUEST_TOP_P,
    REQUIREMENT,
    RESPONSE_FINISH,
    RESPONSE_MODEL,
    RETRY,
    SAMPLING_ID,
    STRATEGY,
    SUBSAMPLE,
    TOKEN_TYPE,
)
from mellea_like.telemetry.spans import SpanScope, type_name

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation, Usage
    from mellea_like.core.slice import Slice
    from mellea_like.telemetry.instruments import Instruments

__all__ = ["CallTelemetry"]


class CallTelemetry:
    """Records one call."""

    def __init__(
        self,
        tracer: Tracer,
        instruments: Instruments | None,
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
            attributes[ERROR_TYPE] = type_name(error)
        self._instruments.duration.record(duration, attributes)

    def ended(self, span: SpanScope | None, slice_: Slice) -> None:
        """Record the outcome of an iteration, and close its span."""
        if self._instruments is not None:
            counted = {STRATEGY: self._strategy, OUTCOME: slice_.outcome.value}
            if slice_.error is not None:
                counted[ERROR_TYPE] = type_name(slice_.error)
            self._instruments.slices.add(1, counted)
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
