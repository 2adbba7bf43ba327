"""What a caller is told when there is no reply: a status, a code and a sentence, no one's text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    CircuitOpen,
    InvalidRequest,
    LimitExceeded,
    RateLimited,
    RequirementError,
    SamplingTimeout,
)
from mellea_like.gateway.chat.caller_checks import TooCostly
from mellea_like.gateway.chat.models import CALL
from mellea_like.gateway.http.admission import budget_spent
from mellea_like.gateway.http.refusal import Refusal, too_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.gateway.chat.calls import Draw

__all__ = ["refusal_of"]

NO_RETRY = {"x-should-retry": "false"}
"""Asks OpenAI's clients, which try again by themselves, not to: it would not help."""

CALLERS_FAULT = frozenset({400, 413, 422})
"""What an upstream answers to a request that is at fault itself: a prompt that is too long, say."""

ANSWERS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (BackendTimeout, 504, "upstream_timeout", "the upstream did not answer in time"),
    (SamplingTimeout, 504, "timeout", "time was up before any reply was judged"),
    (
        AuthenticationFailed,
        502,
        "upstream_authentication",
        "the upstream does not accept the gateway's key",
    ),
    (InvalidRequest, 502, "upstream_refused", "the upstream does not take the gateway's request"),
    (RequirementError, 502, "not_judged", "the replies could not be judged"),
    (BackendError, 502, "upstream_failed", "the upstream can't be reached, or broke off"),
)
"""What errors become: the first class that fits says it."""


def refusal_of(draws: Sequence[Draw], more: dict[str, Any], *, retried: bool) -> Refusal:
    """Say why there is no reply.

    Args:
        draws: how the sampling of each reply ended; none passed.
        more: what is known of the best failure, where something was judged.
        retried: whether the gateway has tried again by itself: then clients need not, or their
            tries and the gateway's would multiply.

    Returns:
        The answer: 422 where replies were judged and none passed; else what the first error says.

    Raises:
        Exception: the first error, where it is none that an upstream or a limit explains.
    """
    errors = [draw.error for draw in draws if draw.error is not None]
    if len(errors) < len(draws):
        message = "no reply met all requirements: error.mellea_like says why, and has the best one"
        return Refusal(
            422,
            message,
            kind="nothing_passed",
            code="nothing_passed",
            more={"mellea_like": more},
        )
    return _of_error(errors[0], retried=retried)


def _of_error(error: Exception, *, retried: bool) -> Refusal:
    if isinstance(error, RateLimited):
        message = "the upstream asks for fewer requests: try again later"
        refusal = too_many(message, error.retry_after or 1.0, "upstream_rate_limit")
        refusal.headers |= {} if error.retryable else NO_RETRY
        return refusal
    if isinstance(error, CircuitOpen):
        seconds = max(1, math.ceil(error.retry_after or 1.0))
        return Refusal(
            503,
            "the upstream has failed again and again, and is left alone for a while",
            kind="upstream_error",
            code="upstream_unavailable",
            headers={"retry-after": str(seconds)},
        )
    if isinstance(error, TooCostly):
        message = "the request's checks take too long on a reply: make its patterns simpler"
        return Refusal(422, message, code="checks_too_costly")
    if isinstance(error, LimitExceeded):
        return _of_budget(error)
    if isinstance(error, InvalidRequest) and error.status in CALLERS_FAULT:
        message = f"the upstream refuses the request (HTTP {error.status}): is it too long?"
        return Refusal(400, message, code="upstream_refused")
    for kind, status, code, message in ANSWERS:
        if isinstance(error, kind):
            lasting = retried or kind in {AuthenticationFailed, InvalidRequest}
            headers = NO_RETRY if lasting else {}
            return Refusal(status, message, kind="upstream_error", code=code, headers=headers)
    raise error  # A mistake in the gateway: its guard logs where.


def _of_budget(error: LimitExceeded) -> Refusal:
    # The first words of the message name the budget.
    if f"budget {CALL!r}" in str(error):
        message = "what one call of this model may spend is too little for this request"
        return Refusal(422, message, kind="budget_exceeded", code="budget_exceeded")
    return budget_spent()
