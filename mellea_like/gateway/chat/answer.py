"""The content of an answer: the replies to one request, or the reason why there are none."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.core.extra import NO_EXTRA, with_extra
from mellea_like.core.generation import REJECTED, Usage
from mellea_like.errors import (
    BackendError,
    CircuitOpen,
    InvalidRequest,
    LimitExceeded,
    RateLimited,
    ReplyBroken,
    RequirementError,
    SamplingTimeout,
)
from mellea_like.gateway.chat.caller_checks import TooCostly
from mellea_like.gateway.chat.served_model import CALL
from mellea_like.gateway.fields import CHAT_FIELDS, is_kept_back
from mellea_like.gateway.redaction import disclosure_of
from mellea_like.gateway.refusal import (
    BUDGET_SPENT,
    NO_BUDGET_SOON,
    NO_RETRY,
    Refusal,
    budget_spent,
    retry_after,
    too_many,
)
from mellea_like.gateway.upstream_codes import CONTEXT_LENGTH, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.core.generation import Generation, TokenLogprob
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.chat.served_model import Choice, PreparedRequest, ReplyOutcome

logger = logging.getLogger("mellea_like.gateway")

PASSED = "x-mellea-like-passed"
"""The name of the header whose value is ``true`` if all replies passed, and ``false`` otherwise."""

CUT = frozenset({"length", "content_filter"})
REFUSED = "refusal"

UNLIKELY = -9999.0
"""OpenAI's log-probability for tokens that are very unlikely. JSON lacks minus infinity."""

MOST_PROBLEMS = 20
"""The maximum length of a reply's ``problems``, the reasons why the reply failed."""

CALLERS_FAULT = frozenset({400, 413, 422})
"""The HTTP statuses that mean that the caller's request itself is wrong, for example too long."""


class Answer(ABC):
    """The answer to one request, as a whole or as a stream of events, in an endpoint's format."""

    # `take` comes before `whole` and `rest`. `piece` may be called before it.
    def __init__(self, request: ChatRequest, model: str, prepared: PreparedRequest) -> None:
        self.request = request
        self.model = model
        self.prepared = prepared

    def take(self, outcomes: Sequence[ReplyOutcome]) -> None:
        """Take the replies, or raise a `Refusal` if there is none to show."""
        prepared = self.prepared
        most = prepared.n if prepared.collects else 1
        self.shown: list[Choice] = [
            choice
            for outcome in outcomes
            for choice in outcome.choices(most, failures=prepared.best)
        ]
        if not self.shown:
            raise refusal_of(self.model, prepared, outcomes)
        self.summary = _summary(outcomes)
        self.usage = _spent(outcomes)
        self.headers = {PASSED: "true" if self.summary["passed"] else "false"}

    @abstractmethod
    def whole(self) -> Mapping[str, Any]:
        """Return the complete answer, for a request that isn't streamed."""

    @abstractmethod
    def piece(self, text: str) -> bytes:
        """Return the events for a piece of the only reply's text, while the reply arrives."""

    @abstractmethod
    def rest(self) -> bytes:
        """Return the events after the pieces, or all events if there were no pieces."""

    @abstractmethod
    def failed(self, refusal: Refusal) -> bytes:
        """Format a refusal as the last event of a stream that has begun."""


# --- the contents of a reply ---------------------------------------------------------------------


def generated(reply: Slice) -> Generation:
    """Return the model's output from which a reply was made."""
    assert reply.generation is not None  # noqa: S101 (what was judged was generated)
    return reply.generation


def message_of(reply: Slice, *, further: bool = False, sent: bool = False) -> dict[str, Any]:
    """Return a reply as a message for callers; ``further`` adds the upstream's extra fields."""
    made = generated(reply)
    refusal = made.refusal or (made.text if made.finish_reason == REFUSED else None)
    # A message that calls tools needs no text.
    content = made.text or (None if made.tool_calls else "")
    if sent:  # While it arrived, so it remains a text.
        refusal = None if refusal == content else refusal
    elif refusal is not None:
        content = None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    if made.tool_calls:
        calls = made.tool_calls
        plain = calls if further else [replace(call, extra=NO_EXTRA) for call in calls]
        message["tool_calls"] = [call.as_dict() for call in plain]
    if made.reasoning:
        message["reasoning_content"] = made.reasoning
    return with_extra(message, further_of(reply, "message")) if further else message


def further_of(reply: Slice, place: str) -> dict[str, Any]:
    """Return an upstream's extra fields in one object of its reply, such as ``"message"``."""
    found: Mapping[str, Any] = generated(reply).extra.get(place, {})
    return {name: value for name, value in found.items() if not is_kept_back(name)}


def finish_reason(reply: Slice) -> str:
    """Return the finish reason: ``stop``, ``length``, ``content_filter`` or ``tool_calls``."""
    made = generated(reply)
    # A best failure may have been rejected before it was whole.
    reason = "length" if made.finish_reason == REJECTED else made.finish_reason or "stop"
    if made.tool_calls and reason not in CUT:
        return "tool_calls"
    return reason if reason in CUT else "stop"


def tokens_of(reply: Slice) -> list[dict[str, Any]]:
    """Return the log-probabilities of a reply's tokens in OpenAI's format."""

    def written(text: str, logprob: float) -> dict[str, Any]:
        data = text.encode("utf-8", "surrogatepass")
        known = logprob if math.isfinite(logprob) else UNLIKELY
        return {"token": text, "logprob": known, "bytes": list(data)}

    def entry(token: TokenLogprob) -> dict[str, Any]:
        top = [written(*alternative) for alternative in token.alternatives]
        return {**written(token.text, token.logprob), "top_logprobs": top}

    return [entry(token) for token in generated(reply).logprobs]


def told(choice: Choice) -> dict[str, Any]:
    """Return how a reply was sampled, for the field ``mellea_like`` of an entry in ``choices``."""
    result, reply = choice
    shown: dict[str, Any] = {
        "passed": reply.passed,
        "sampling_id": result.sampling_id,
        "iterations": len(result.slices),
        "iteration": reply.iteration,
        "stop_reason": result.stop_reason.value,
    }
    return shown if reply.passed else {**shown, "problems": reply.problems[:MOST_PROBLEMS]}


def usage_of(usage: Usage, further: Mapping[str, Any] = NO_EXTRA) -> dict[str, Any]:
    """Return token counts as a chat completion's ``usage``, with the extra fields ``further``."""
    written: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if cached := usage.cached_input_tokens:
        written["prompt_tokens_details"] = {"cached_tokens": cached}
    if thought := usage.reasoning_tokens:
        written["completion_tokens_details"] = {"reasoning_tokens": thought}
    return with_extra(written, further)


def _summary(outcomes: Sequence[ReplyOutcome]) -> dict[str, Any]:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    usage = _spent(outcomes)
    return {
        "passed": all(outcome.passed for outcome in outcomes),
        "sampling_id": results[0].sampling_id if results else None,
        "iterations": sum(len(result.slices) for result in results),
        "requests": usage.requests,
        "requests_of_unknown_cost": usage.unknown,
    }


def _spent(outcomes: Sequence[ReplyOutcome]) -> Usage:
    # Including those without a reply.
    return sum((each.result.usage for each in outcomes if each.result is not None), Usage())


# --- why there is no reply -----------------------------------------------------------------------


def refusal_of(model: str, prepared: PreparedRequest, outcomes: Sequence[ReplyOutcome]) -> Refusal:
    """Return the refusal: 422 if a call ended without an error, or that of the first error."""
    judged = [
        outcome.result
        for outcome in outcomes
        if outcome.error is None and outcome.result is not None
    ]
    if not judged:
        error = next(outcome.error for outcome in outcomes if outcome.error is not None)
        return _of_error(model, prepared, error)
    result = judged[0]
    best = {**message_of(result.best), "finish_reason": finish_reason(result.best)}
    del best["role"]
    failure = {
        **_summary(outcomes),
        "problems": result.best.problems[:MOST_PROBLEMS],
        "best": best,
        "stop_reason": result.stop_reason.value,
        "stop_detail": result.stop_detail,
        "usage": usage_of(_spent(outcomes)),
    }
    message = "no reply met all requirements: error.mellea_like has the reasons and the best reply"
    code = "nothing_passed"
    return Refusal(422, message, kind=code, code=code, more={"mellea_like": failure})


def _of_error(model: str, prepared: PreparedRequest, error: Exception) -> Refusal:
    match error:
        case BackendError():
            return _of_upstream(model, prepared, error)
        case ReplyBroken():
            message = "the reply failed after part of it was sent: what you received is incomplete"
            return Refusal(502, message, kind="upstream_error", code="reply_broken")
        case TooCostly():
            message = "the request's checks took too long on a reply: use simpler patterns"
            return Refusal(422, message, code="checks_too_costly")
        case LimitExceeded():
            # The first words of the message name the budget.
            if f"budget {CALL!r}" not in str(error):
                return budget_spent(error.shortage)
            message = "the budget for one call of this model is too small for this request"
            return Refusal(422, message, kind="budget_exceeded", code="budget_exceeded")
        case SamplingTimeout():
            status, code, message = 504, "timeout", "the time ran out before any reply was judged"
        case RequirementError():
            status, code, message = 502, "not_judged", "the replies could not be judged"
        case _:
            raise error  # This is a bug in the gateway, and its guard logs where.
    headers = NO_RETRY if prepared.retried else {}
    return Refusal(status, message, kind="upstream_error", code=code, headers=headers)


def _of_upstream(model: str, prepared: PreparedRequest, error: BackendError) -> Refusal:
    words, status, code = disclosure_of(error)
    message = f"the upstream {words}"
    if isinstance(error, RateLimited):
        wait = error.retry_after or (NO_BUDGET_SOON if error.code == BUDGET_SPENT else 1.0)
        refusal = too_many(f"{message}: try again later", wait, error.code or code)
        refusal.kind = error.kind or refusal.kind
        if not error.retryable:
            refusal.headers = {**refusal.headers, **NO_RETRY}
        return refusal
    if isinstance(error, InvalidRequest) and error.status in CALLERS_FAULT:
        return _of_refused_request(model, prepared, error)
    headers: dict[str, str] = {}
    if isinstance(error, CircuitOpen):
        headers = retry_after(error.retry_after or 1.0)
    elif prepared.retried or not error.retryable:
        # The gateway has already retried. If clients also retried, the attempts would multiply.
        headers = NO_RETRY
    return Refusal(status, message, kind="upstream_error", code=code, headers=headers)


WHY = {
    CONTEXT_LENGTH: "it is longer than the model's context length: shorten it",
    "content_filter": "it was blocked by the content filter: rephrase it",
    "content_policy_violation": "it violates the content policy: rephrase it",
    "unknown_parameter": "it has a field that the upstream doesn't know",
    "unsupported_parameter": "it has a field that the model doesn't support",
    "unsupported_value": "a field has a value that the model doesn't support",
}
WHY_ELSE = "it may be too long, or have a field or a part that the upstream doesn't support"


def _of_refused_request(model: str, prepared: PreparedRequest, error: InvalidRequest) -> Refusal:
    """Return a refusal with 502 if the configuration set the rejected field, and else with 400."""
    code, param, kind = error.code, error.param, error.kind
    field = (param or "").replace("[", ".").partition(".")[0]
    if param == SCHEMA:  # It may also be the schema of a tool.
        param, field = None, "" if "tools" in prepared.arguments else "response_format"
    if place := prepared.configured.get(field):
        logger.warning(
            "the upstream of the model %r rejected %s (HTTP %s), which no caller sent: change"
            " models.%s.%s in the configuration (server.log_upstream_errors logs the upstream's"
            " own message)",
            *(model, field, error.status, model, place),
        )
        message = "the upstream rejects a setting of this model: see the gateway's log"
        kind, code = "upstream_error", "upstream_misconfigured"
        return Refusal(502, message, kind=kind, code=code, headers=NO_RETRY)
    message = f"the upstream rejected the request (HTTP {error.status}): "
    message += WHY.get(code or "", WHY_ELSE)
    named = param if field in CHAT_FIELDS or field in prepared.options.extra else None
    kind = kind or "invalid_request_error"
    return Refusal(400, message, kind=kind, code=code or "upstream_refused", param=named)
