"""What a caller is told: a completion as OpenAI writes it, or why there is none. All of it pure."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.core.generation import Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    CircuitOpen,
    InvalidRequest,
    LimitExceeded,
    RateLimited,
    RequirementError,
    SamplingTimeout,
)
from mellea_like.gateway.chat.caller_checks import TooCostly
from mellea_like.gateway.chat.served_model import CALL
from mellea_like.gateway.redaction import told
from mellea_like.gateway.refusal import NO_RETRY, Refusal, budget_spent, too_many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mellea_like.core.generation import Generation
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["Draw", "Reply", "answerable", "refusal_of", "usage_of"]

FINISHED = frozenset({"stop", "length", "content_filter"})
REFUSED = "refusal"

PIECE = 256
"""Characters of one chunk of a streamed text, about."""

MOST_PROBLEMS = 20
"""Reasons that are told, at most."""

CALLERS_FAULT = frozenset({400, 413, 422})
"""What an upstream answers to a request that is at fault itself: a prompt that is too long."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How the sampling of one reply ended: with a result, or an error, which may have a record."""

    result: SamplingResult[Any] | None
    error: Exception | None = None

    @property
    def passed(self) -> bool:
        """Whether a slice passed."""
        return self.error is None and self.result is not None and self.result.success

    @property
    def outcome(self) -> str:
        """How it ended, in one word."""
        return "errored" if self.error is not None else "passed" if self.passed else "failed"


def usage_of(draws: Sequence[Draw]) -> Usage:
    """Add up what was spent, as far as it is known."""
    return sum((draw.result.usage for draw in draws if draw.result is not None), Usage())


def answerable(draw: Draw, *, best: bool) -> bool:
    """Tell whether there is a reply to show; with ``best``, the best failure counts."""
    return draw.passed or (best and draw.error is None)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a completion and all of its chunks have in common."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, draws: Sequence[Draw], *, best: bool) -> dict[str, Any]:
        """Write a completion."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", **_message(result)},
                "logprobs": None,
                "finish_reason": _finish_reason(result),
                "mellea_like": _told(result),
            }
            for index, result in enumerate(_shown(draws, best=best))
        ]
        return {
            **self._frame("chat.completion", choices),
            "usage": _usage(usage_of(draws)),
            "mellea_like": _summary(draws),
        }

    def chunks(
        self, draws: Sequence[Draw], *, best: bool, include_usage: bool
    ) -> Iterator[dict[str, Any]]:
        """Write the chunks of a streamed completion."""
        shown = _shown(draws, best=best)
        for index, result in enumerate(shown):
            yield self._chunk(index, {"role": "assistant", "content": ""})
            for kind, text in _message(result).items():
                for piece in _pieces(text or ""):
                    yield self._chunk(index, {kind: piece})
            last = self._chunk(index, {}, _finish_reason(result))
            last["choices"][0]["mellea_like"] = _told(result)
            if index == len(shown) - 1:
                last["mellea_like"] = _summary(draws)
            yield last
        if include_usage:
            usage = _usage(usage_of(draws))
            yield {**self._frame("chat.completion.chunk", []), "usage": usage}

    def progress(self, index: int, done: Slice) -> dict[str, Any]:
        """Write a chunk that says how one draw ended; without choices, so that clients skip it."""
        event = {
            "event": "iteration",
            "choice": index,
            "iteration": done.iteration,
            "subsample": done.subsample,
            "outcome": done.outcome.value,
            "problems": _problems(done),
            "seconds": round(done.ended_at, 3),
        }
        return {**self._frame("chat.completion.chunk", []), "mellea_like": {"progress": event}}

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        frame = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**frame, "choices": choices}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._frame("chat.completion.chunk", [choice])


def _shown(draws: Sequence[Draw], *, best: bool) -> list[SamplingResult[Any]]:
    return [d.result for d in draws if answerable(d, best=best) and d.result is not None]


def _summary(draws: Sequence[Draw]) -> dict[str, Any]:
    results = [d.result for d in draws if d.result is not None]
    usage = usage_of(draws)
    return {
        "passed": all(d.passed for d in draws),
        "sampling_id": results[0].sampling_id if results else None,
        "iterations": sum(len(r.slices) for r in results),
        "requests": usage.requests,
        "requests_of_unknown_cost": usage.unknown,
    }


def _told(result: SamplingResult[Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "passed": result.success,
        "sampling_id": result.sampling_id,
        "iterations": len(result.slices),
        "iteration": result.best.iteration,
        "stop_reason": result.stop_reason.value,
    }
    return shown if result.success else {**shown, "problems": _problems(result.best)}


def _message(result: SamplingResult[Any]) -> dict[str, str | None]:
    text = result.best.text
    refused = _generation(result).finish_reason == REFUSED
    return {"content": None, "refusal": text} if refused else {"content": text, "refusal": None}


def _finish_reason(result: SamplingResult[Any]) -> str:
    reason = _generation(result).finish_reason
    return reason if reason is not None and reason in FINISHED else "stop"


def _generation(result: SamplingResult[Any]) -> Generation:
    generation = result.best.generation
    assert generation is not None  # noqa: S101 (what was judged was generated)
    return generation


def _problems(done: Slice) -> list[str]:
    return list(done.problems[:MOST_PROBLEMS])


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }


def _pieces(text: str) -> Iterator[str]:
    """Cut a text where words end."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + PIECE)
        end = len(text) if end < 0 else min(end, start + 2 * PIECE)
        yield text[start:end]
        start = end


# --- why there is no reply -----------------------------------------------------------------------


def refusal_of(draws: Sequence[Draw], *, retried: bool) -> Refusal:
    """Say why there is no reply: 422 where replies were judged, else what the first error says."""
    # Where the gateway has tried again by itself, clients need not: their tries and the gateway's
    # would multiply.
    errors = [draw.error for draw in draws if draw.error is not None]
    if len(errors) == len(draws):
        return _of_error(errors[0], retried=retried)
    return Refusal(
        422,
        "no reply met all requirements: error.mellea_like says why, and has the best one",
        kind="nothing_passed",
        code="nothing_passed",
        more={"mellea_like": _best_failure(draws)},
    )


def _best_failure(draws: Sequence[Draw]) -> dict[str, Any]:
    judged = [d.result for d in draws if d.error is None and d.result is not None]
    result = judged[0]
    return {
        **_summary(draws),
        "problems": _problems(result.best),
        "best": {**_message(result), "finish_reason": _finish_reason(result)},
        "stop_reason": result.stop_reason.value,
        "stop_detail": result.stop_detail,
        "usage": _usage(usage_of(draws)),
    }


def _of_error(error: Exception, *, retried: bool) -> Refusal:
    match error:
        case BackendError():
            return _of_upstream(error, retried=retried)
        case TooCostly():
            message = "the request's checks take too long on a reply: make its patterns simpler"
            return Refusal(422, message, code="checks_too_costly")
        case LimitExceeded():
            # The first words of the message name the budget.
            if f"budget {CALL!r}" not in str(error):
                return budget_spent()
            message = "what one call of this model may spend is too little for this request"
            return Refusal(422, message, kind="budget_exceeded", code="budget_exceeded")
        case SamplingTimeout():
            status, code, message = 504, "timeout", "time was up before any reply was judged"
        case RequirementError():
            status, code, message = 502, "not_judged", "the replies could not be judged"
        case _:
            raise error  # A mistake in the gateway: its guard logs where.
    headers = NO_RETRY if retried else {}
    return Refusal(status, message, kind="upstream_error", code=code, headers=headers)


def _of_upstream(error: BackendError, *, retried: bool) -> Refusal:
    words, status, code = told(error)
    message = f"the upstream {words}"
    if isinstance(error, RateLimited):
        refusal = too_many(f"{message}: try again later", error.retry_after or 1.0, code)
        refusal.headers |= {} if error.retryable else NO_RETRY
        return refusal
    if isinstance(error, InvalidRequest) and error.status in CALLERS_FAULT:
        message = f"the upstream refuses the request (HTTP {error.status}): is it too long?"
        return Refusal(400, message, code=code)
    headers: dict[str, str] = {}
    if isinstance(error, CircuitOpen):
        headers = {"retry-after": str(max(1, math.ceil(error.retry_after or 1.0)))}
    elif retried or isinstance(error, AuthenticationFailed | InvalidRequest):
        headers = NO_RETRY
    return Refusal(status, message, kind="upstream_error", code=code, headers=headers)
