"""How a call's requests are sent: watched, within budgets, seen by hooks, and tried again.

From the inside out, a request of an iteration meets the incremental checks of the requirements,
the budgets, the hooks and telemetry, and the retries. So hooks see each retry, and budgets admit
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.shown import add_note
from mellea_like.errors import LimitExceeded
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.limits.retry import retries
from mellea_like.sampling.observed import observed

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.errors import BackendError
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.sampling.call import Call

__all__ = ["gate_before", "send_at", "surrounded", "try_again"]


def surrounded(backend: Backend, call: Call, *, watched: bool = False) -> Backend:
    """Return a backend as the call's producers use it.

    Args:
        backend: the user's.
        call: the call.
        watched: whether incremental checks look at its replies.

    Returns:
        The backend itself where nobody has an interest in its requests.
    """
    # Most programs need neither, and are not to load them.
    if watched:
        from mellea_like.sampling.watched import WatchedBackend  # noqa: PLC0415

        backend = WatchedBackend(backend, call.plan.requirements)
    if call.plan.budgets:
        from mellea_like.limits.budgets import within_budgets  # noqa: PLC0415

        backend = within_budgets(backend, call.plan.budgets)
    return observed(backend, call)


def gate_before(backend: Backend) -> BackoffGate | None:
    """Return the gate at which requests to a backend wait, or are refused.

    Args:
        backend: the user's.

    Returns:
        The gate; None where the backend itself sees to it, for it retries.
    """
    return None if retries(backend) else gate_of(backend)


async def send_at(gate: BackoffGate, backend: Backend, request: Request, call: Call) -> Generation:
    """Send a request as soon as its gate lets it through.

    Args:
        gate: the backend's.
        backend: what answers it, as `surrounded` returned it.
        request: what is to be sent.
        call: the call.

    Returns:
        The reply.

    Raises:
        RateLimited: it would have to wait too long.
        BackendError: there is no reply.
    """
    return await gate.send(backend.generate, request, call.strategy.settings.retry)


async def try_again(
    backend: Backend, gate: BackoffGate | None, request: Request, first: BackendError, call: Call
) -> Generation:
    """Try a request again, as the retry policy says.

    Args:
        backend: what answers it, as `surrounded` returned it.
        gate: the backend's gate; None where nothing is to be tried again.
        request: the request, tried once.
        first: how that failed.
        call: the call.

    Returns:
        The reply.

    Raises:
        BackendError: it failed again and again, or is not to be tried again.
    """
    try:
        policy = call.strategy.settings.retry
        if gate is None:
            raise first
        if policy is None:
            gate.heard(first, None)
            raise first
        try:
            return await policy.again(backend.generate, request, first, gate)
        except LimitExceeded as exc:
            if exc.result is not None:
                raise  # It ended a call inside this one.
            call.race.out_of_budget(exc)
            add_note(first, f"not tried again: {exc}")
        # Outside the handler: what ends the call may be raised from this error, not it from that.
        raise first
    finally:
        del first  # A frame that holds its own exception waits for the collector.
