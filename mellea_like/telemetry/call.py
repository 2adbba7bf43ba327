"""Record the spans and metrics of one call of a strategy."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.trace import NoOpTracer, SpanKind, Tracer

from mellea_like.core.conversation import joined_text, reply_message
from mellea_like.core.slice import Outcome
from mellea_like.core.tools import plain_arguments
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.telemetry import names
from mellea_like.telemetry.sessions import SESSION_ID
from mellea_like.telemetry.spans import SpanScope, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.util.types import AttributeValue

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.conversation import Message
    from mellea_like.core.generation import Generation, Usage
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ending import Ending


class CallTelemetry:
    """Records the spans and metrics of one call of a strategy."""

    def __init__(
        self,
        tracer: Tracer | None,
        instruments: Instruments | None,
        strategy: str,
        sampling_id: str,
        capture_content: bool,  # noqa: FBT001
    ) -> None:
        self._tracer = tracer or NoOpTracer()
        self._instruments = instruments
        self._strategy = strategy
        self._sampling_id = sampling_id
        self._capture = capture_content
        session_id = SESSION_ID.get()
        self._session: dict[str, AttributeValue] = (
            {}
            if session_id is None
            else {names.SESSION_ID: session_id, names.CONVERSATION_ID: session_id}
        )
        self._passed: list[tuple[int, SpanScope, int]] = []
        """Iteration, span and end time of each draw that passed, until the winner is known."""

    def call(self) -> SpanScope:
        """Return the span around the whole call."""
        attributes: dict[str, AttributeValue] = {
            names.SAMPLING_ID: self._sampling_id,
            names.STRATEGY: self._strategy,
            names.SPAN_KIND: "CHAIN",
            **self._session,
        }
        return SpanScope(self._tracer, f"sampling {self._strategy}", attributes, self._capture)

    def iteration(self, iteration: int, subsample: int, depth: int) -> SpanScope:
        """Return the span around one draw."""
        attributes: dict[str, AttributeValue] = {
            names.SAMPLING_ID: self._sampling_id,
            names.ITERATION: iteration,
            names.SUBSAMPLE: subsample,
            names.DEPTH: depth,
            names.SPAN_KIND: "CHAIN",
        }
        return SpanScope(self._tracer, f"iteration {iteration}", attributes, self._capture)

    def validation(self) -> SpanScope:
        """Return the span around the validation of a draw."""
        attributes = {names.SAMPLING_ID: self._sampling_id, names.SPAN_KIND: "EVALUATOR"}
        return SpanScope(self._tracer, "validation", attributes, self._capture)

    def chat(self, backend: Backend, request: Request) -> SpanScope:
        """Return the span around one request to a backend."""
        attributes = _request_attributes(backend, request) | self._session
        if self._capture:
            attributes[names.INPUT_MESSAGES] = _as_json(request.messages)
        model = attributes.get(names.REQUEST_MODEL)
        name = f"chat {model}" if model else "chat"
        return SpanScope(self._tracer, name, attributes, self._capture, SpanKind.CLIENT)

    def answered(self, span: SpanScope, generation: Generation) -> None:
        """Record a reply on the span of its request."""
        found: dict[str, AttributeValue] = {}
        if generation.model is not None:
            found[names.RESPONSE_MODEL] = generation.model
        if generation.finish_reason is not None:
            found[names.RESPONSE_FINISH] = [generation.finish_reason]
        if self._capture:
            found[names.OUTPUT_MESSAGES] = _output(generation)
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
        """Record the cost of a request, whether or not it was answered."""
        spent: dict[str, AttributeValue] = {
            names.INPUT_TOKENS: usage.input_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
        }
        if usage.cached_input_tokens:
            spent[names.CACHED_INPUT_TOKENS] = usage.cached_input_tokens
        if usage.reasoning_tokens:
            spent[names.REASONING_TOKENS] = usage.reasoning_tokens
        if usage.cache_hits:
            spent[names.CACHE_HIT] = True
        span.set(spent)
        if self._instruments is None:
            return
        attributes = _metric_attributes(backend, request)
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if tokens:
                self._instruments.tokens.record(tokens, {**attributes, names.TOKEN_TYPE: kind})
        if error is not None and split_cancellation(error)[0] is not None:
            attributes[names.OUTCOME] = "cancelled"
        elif error is not None:
            attributes[names.ERROR_TYPE] = type_name(error)
        self._instruments.duration.record(duration, attributes)

    def ended(self, span: SpanScope, slice_: Slice) -> None:
        """Record a draw's outcome, and close its span unless the draw passed and may still win."""
        if self._instruments is not None:
            counted = {names.STRATEGY: self._strategy, names.OUTCOME: slice_.outcome.value}
            if slice_.error is not None:
                counted[names.ERROR_TYPE] = type_name(slice_.error)
            self._instruments.slices.add(1, counted)
            for requirement, _ in slice_.failures:
                self._instruments.failures.add(
                    1, {names.STRATEGY: self._strategy, names.REQUIREMENT: requirement.name}
                )
        found: dict[str, AttributeValue] = {names.OUTCOME: slice_.outcome.value}
        if slice_.failures:
            found[names.FAILED_REQUIREMENTS] = [failed.name for failed, _ in slice_.failures]
        if self._capture and slice_.generation is not None:
            found[names.OUTPUT_VALUE] = reply_message(slice_.generation).text
        span.set(found)
        if slice_.passed:
            # An attribute can't be added to a span that has ended.
            span.leave()
            self._passed.append((slice_.iteration, span, time.time_ns()))
        else:
            span.close(None if slice_.outcome is Outcome.CANCELLED else slice_.error)

    def decided(
        self,
        span: SpanScope,
        ending: Ending | None,
        slices: Sequence[Slice],
        usage: Usage,
        money: tuple[float, str] | None,
    ) -> None:
        """Record the outcome of the call on its span, and mark the winners' spans.

        ``ending`` is None if the caller was cancelled.
        """
        best = None if ending is None or not ending.success else ending.best_index
        winners: set[int] = set() if best is None else {slices[best].iteration}
        if best is not None and ending is not None and ending.decision is not None:
            winners |= set(ending.decision.winners)
        for iteration, passed, ended_at in self._passed:
            if iteration in winners:
                passed.set({names.WINNER: True})
            passed.close(ended_at=ended_at)
        found: dict[str, AttributeValue] = {
            names.STOP_REASON: "cancelled" if ending is None else ending.stop_reason.value,
            names.SUCCESS: best is not None,
            names.REQUESTS: usage.requests,
            # These aren't the conventions' names, because viewers would add these totals to the
            # tokens of the single requests.
            names.ALL_INPUT_TOKENS: usage.input_tokens,
            names.ALL_OUTPUT_TOKENS: usage.output_tokens,
        }
        if ending is not None and ending.decision is not None:
            found[names.DECISION_KIND] = ending.decision.kind
            found[names.DECISION_REASON] = ending.decision.reason
        if money is not None:
            found[names.COST], found[names.CURRENCY] = money
        if self._capture:
            first = next((s for s in slices if s.messages), None)
            asked = first.messages[: len(first.messages) - len(first.rounds)] if first else ()
            found[names.INPUT_MESSAGES] = _as_json(asked)
            if asked:
                found[names.INPUT_VALUE] = asked[-1].text
            if best is not None and (reply := slices[best].generation) is not None:
                found[names.OUTPUT_MESSAGES] = _output(reply)
                found[names.OUTPUT_VALUE] = reply_message(reply).text
        span.set(found)


def _metric_attributes(backend: Backend, request: Request) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        names.OPERATION: "chat",
        names.PROVIDER: str(getattr(backend, "provider", type(backend).__name__)),
        names.PURPOSE: request.meta.purpose,
    }
    model = request.options.model or getattr(backend, "model", None)
    if model:
        attributes[names.REQUEST_MODEL] = str(model)
    return attributes


def _request_attributes(backend: Backend, request: Request) -> dict[str, AttributeValue]:
    options, meta = request.options, request.meta
    optional = {
        names.REQUEST_TEMPERATURE: options.temperature,
        names.REQUEST_TOP_P: options.top_p,
        names.REQUEST_MAX_TOKENS: options.max_tokens,
        names.REQUEST_SEED: options.seed,
        names.REQUEST_STOP: options.stop or None,
        names.ITERATION: meta.iteration,
        names.SUBSAMPLE: meta.subsample,
    }
    return {
        **_metric_attributes(backend, request),
        names.SAMPLING_ID: meta.sampling_id,
        names.RETRY: meta.retry,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _as_json(messages: Sequence[Message]) -> str:
    written = [{"role": message.role, "parts": _parts(message)} for message in messages]
    return json.dumps(written, ensure_ascii=False)


def _output(reply: Generation) -> str:
    """Return a reply as JSON in the format of the GenAI conventions, with its finish reason."""
    message = reply_message(reply)
    ended = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    ended = "tool_call" if ended == "tool_calls" else ended
    written = {"role": message.role, "parts": _parts(message), "finish_reason": ended}
    return json.dumps([written], ensure_ascii=False)


def _parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        answer = {"id": message.tool_call_id, "response": message.text}
        return [{"type": "tool_call_response", **answer}]
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    text = joined_text(message.content)
    if text or not message.tool_calls:
        parts.append({"type": "text", "content": text})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": plain_arguments(call)}
        for call in message.tool_calls
    ]
    return parts


class Instruments:
    """The histograms and counters that metrics are recorded with, made by one meter provider."""

    def __init__(self, provider: MeterProvider) -> None:
        self.provider = provider
        meter = provider.get_meter(names.SCOPE)
        self.duration = meter.create_histogram(
            names.OPERATION_DURATION,
            unit="s",
            description="Duration of one request to a backend",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        )
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            description="Tokens of one request to a backend",
            explicit_bucket_boundaries_advisory=names.TOKEN_BUCKETS,
        )
        self.slices = meter.create_counter(
            names.SLICES, unit="{slice}", description="Draws by outcome"
        )
        self.failures = meter.create_counter(
            names.REQUIREMENT_FAILURES,
            unit="{failure}",
            description="Verdicts against a draw, by requirement",
        )


def meters_of(provider: MeterProvider | None) -> MeterProvider | None:
    """Return ``provider`` or else the process's provider; return None if it records nothing."""
    meters = provider or metrics.get_meter_provider()
    # The proxy that is in place until a provider is set has no public name.
    silent = isinstance(meters, metrics.NoOpMeterProvider) or (
        type(meters).__name__ == "_ProxyMeterProvider"
    )
    return None if silent else meters
