"""How a call's requests are sent: watched, within budgets, seen by hooks, and tried again.

From the backend outwards, a request passes the incremental checks of the requirements, the budgets,
the hooks and telemetry, the backend's gate, and the retries. So hooks see each retry, and budgets
admit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.connection_errors import is_of_backend
from mellea_like.errors import LimitExceeded
from mellea_like.hooks.types import HookType
from mellea_like.limits.backoff_gate import gate_before
from mellea_like.limits.retry import try_again
from mellea_like.sampling.events import ObservedBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.tools import CallWatch
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.retry import Retry
    from mellea_like.sampling.escalate import StageAtWork
    from mellea_like.sampling.events import Events

__all__ = ["Sender"]

_REQUEST_HOOKS = (
    HookType.GENERATION_PRE_CALL,
    HookType.GENERATION_POST_CALL,
    HookType.GENERATION_ERROR,
)


class Sender:
    """Sends a call's requests to one backend, at its gate and again where they failed."""

    __slots__ = ("_gate", "_generate", "_policy", "_recorder", "_stage", "backend")

    def __init__(
        self,
        backend: Backend,
        policy: Retry | None,
        budgets: Sequence[Budget],
        events: Events,
        watched: Sequence[Requirement] = (),
        stage: StageAtWork | None = None,
        *,
        by_format: bool = False,
        calls: Mapping[str, CallWatch] | None = None,
    ) -> None:
        self._gate = gate_before(backend)
        self._policy = policy
        self._recorder = events.recorder
        self._stage = stage
        if watched or by_format or calls:
            # Imported lazily, as are the others: most programs don't need it.
            from mellea_like.sampling.early_rejection import WatchedBackend  # noqa: PLC0415

            backend = WatchedBackend(backend, watched, by_format=by_format, calls=calls)
        if stage is not None:
            backend = stage.within_budget(backend)
        if budgets:
            from mellea_like.limits.budget import within_budgets  # noqa: PLC0415

            backend = within_budgets(backend, budgets)
        if events.telemetry is not None or not events.hooks.types.isdisjoint(_REQUEST_HOOKS):
            backend = ObservedBackend(backend, events)
        self.backend = backend
        self._generate = backend.generate

    async def send(
        self, request: Request, on_failure: Callable[[Exception], None] | None = None
    ) -> Generation:
        """Send a request as soon as its gate lets it through, and again as the policy says.

        Where it fails at first, ``on_failure`` is given the error.
        """
        gate = self._gate
        try:
            if gate is None:
                return await self._generate(request)
            if gate.closed:
                return await gate.send(self._generate, request, self._policy)
            reply = await self._generate(request)
            gate.answered()
            return reply  # noqa: TRY300 (the hot path)
        except LimitExceeded as exc:
            if exc.result is None:  # Otherwise it ended a call inside this one.
                self._out_of_budget(exc)
            raise
        except Exception as exc:
            if not is_of_backend(exc):
                raise
            if on_failure is not None:
                on_failure(exc)
            stop = self._out_of_budget
            return await try_again(self._generate, request, exc, self._policy, gate, stop)

    def _out_of_budget(self, error: LimitExceeded) -> None:
        self._recorder.out_of_budget(error, self._stage)
