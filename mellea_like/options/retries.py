"""``retry=``: requests wait while a backend has trouble and are retried after transient errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.display import add_note
from mellea_like.errors import LimitExceeded
from mellea_like.kernel.ports import Option
from mellea_like.limits.backoff_gate import gate_before
from mellea_like.limits.retry import try_again
from mellea_like.runtime.event_loops import scope_cancelled

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.kernel.call import Call
    from mellea_like.kernel.ports import Sent
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.limits.retry import Retry


@dataclass(eq=False)
class Retries(Option):
    """Sends requests through the backend's `BackoffGate`, and retries them if there is a policy."""

    policy: Retry | None

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend so that its requests wait for the gate and are retried."""
        return _Retried(inner, gate_before(sent.backend), self.policy, self.call)


@dataclass(eq=False)
class _Retried(BackendWrapper):
    inner: Backend
    gate: BackoffGate | None
    policy: Retry | None
    call: Call

    async def generate(self, request: Request) -> Generation:
        """Send a request, and send it again after a transient error."""
        gate, send = self.gate, self.inner.generate
        try:
            if gate is None:
                return await send(request)
            breaker = gate.breaker
            if gate.opens is not None or breaker.failures:
                return await gate.send(send, request, self.policy)
            reply = await send(request)
            gate.answered_at = self.call.clock()
            if breaker.failures:  # Other requests have failed in the meantime.
                gate.answered(gate.answered_at)
            return reply  # noqa: TRY300 (the hot path)
        except LimitExceeded as exc:
            self._ends_call(exc)
            raise
        except Exception as exc:
            if gate is None or not is_of_backend(exc):
                raise
            if (draw := self.call.draw_of(request)) is not None:
                # If the draw's time runs out before another try, this is the cause.
                draw.tried = exc
            try:
                return await try_again(send, request, exc, self.policy, gate, self._lost)
            except LimitExceeded as refusal:
                if not self._ends_call(refusal):
                    raise
                add_note(exc, f"not retried: {refusal}")
            raise

    def _lost(self) -> bool:
        """Return whether a backend has swallowed a cancellation of this call."""
        return self.call.race.asked_to_stop() and not scope_cancelled()

    def _ends_call(self, refusal: LimitExceeded) -> bool:
        """Tell this call that a budget refused a request, unless that ended a call inside it."""
        if refusal.result is not None:
            return False
        self.call.refused(refusal)
        return True
