"""The hooks at the start and end of a call, and after each of its draws."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import SkipValidation

from mellea_like.core.backend import CURRENT
from mellea_like.core.conversation import Action, Context
from mellea_like.core.decision import Decision
from mellea_like.core.requirement import Requirement
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import HookError
from mellea_like.hooks.payload import Is, Payload
from mellea_like.hooks.types import HookType
from mellea_like.kernel.ports import Ruling
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup

    from mellea_like.core.spec import Spec
    from mellea_like.hooks.dispatch import Hooks
    from mellea_like.kernel.call import Call
    from mellea_like.kernel.ending import Ending

__all__ = [
    "SamplingIterationPayload",
    "SamplingLoopEndPayload",
    "SamplingLoopStartPayload",
]

JUDGED = (Outcome.PASSED, Outcome.FAILED)


class SamplingLoopStartPayload(Payload):
    """Passed to handlers before the first draw.

    Attributes:
        action: the task.
        context: the conversation so far.
        requirements: the requirements of each draw, in order.
        loop_budget: the number of attempts of each lane. A handler may change it to an int of at
            least 1, as long as ``loop_budget * concurrency_budget`` is within the strategy's
            ``max_iterations``.
        concurrency_budget: the number of lanes.
    """

    hook = HookType.SAMPLING_LOOP_START
    writable = frozenset({"loop_budget"})

    action: SkipValidation[Action[Any]]
    context: Is[Context]
    requirements: tuple[Is[Requirement], ...]
    loop_budget: int
    concurrency_budget: int


class SamplingIterationPayload(Payload):
    """Passed to handlers after each draw, in the order in which draws were recorded.

    Attributes:
        slice: the record of the draw.
    """

    hook = HookType.SAMPLING_ITERATION

    slice: Is[Slice]


class SamplingLoopEndPayload(Payload):
    """Passed to handlers once, at the end of the call.

    Attributes:
        slices: the record of each draw that started.
        success: whether there is an answer: a draw has won, or k draws with ``Collect(k)``. False
            if the call raises, or if its caller was cancelled before there was an answer.
        best: the winner, else the best failure; None if no draw was judged.
        error: the error that the call raises, or None.
        iterations_used: the number of draws that finished validation.
        stop_reason: why the call stopped.
        decision: the selection's decision, as in the result; None if it made none.
        started: when the call began (UTC).
        elapsed: how long the call took, in seconds.
    """

    hook = HookType.SAMPLING_LOOP_END

    slices: tuple[Is[Slice], ...]
    success: bool
    best: Is[Slice] | None
    error: Is[BaseException] | None
    iterations_used: int
    stop_reason: StopReason
    decision: Is[Decision] | None
    started: datetime
    elapsed: float


class EndedCall(Protocol):
    """The parts of a call that tell how it ended."""

    started_utc: datetime

    def conclude(self, *, cancelled: bool = False) -> Ending:
        """Return how the call ended; only the first use of this method decides that."""
        ...


class CallHooks:
    """Fires the hooks for a call's start and end, and after each draw.

    Args:
        hooks: the call's hooks.
        inputs: the call's inputs.
        lanes: the call's concurrency budget.
        check: raises ``ValueError`` for a loop budget that isn't allowed; its second argument says
            who asks for it.
        ended: the call, for how it ended.
    """

    def __init__(
        self,
        hooks: Hooks,
        inputs: Spec,
        lanes: int,
        check: Callable[[object, str], None],
        ended: EndedCall,
    ) -> None:
        self._hooks = hooks
        self._inputs = inputs
        self._lanes = lanes
        self._check = check
        self._ended = ended
        self.wants_slices = HookType.SAMPLING_ITERATION in hooks.types

    async def begin(self, call: Call, loop_budget: int, tasks: TaskGroup) -> int:
        """Fire the hook for the call's start; return the loop budget, which plugins may change."""
        inputs, check = self._inputs, self._check
        self._hooks.call, self._hooks.tasks = call, tasks
        _, self._hooks.outside = CURRENT.get()

        def amend(_: object, after: SamplingLoopStartPayload, plugin: str) -> Any:
            check(after.loop_budget, f"plugin {plugin} set loop_budget")
            return after

        changed = await self._hooks.fire(
            SamplingLoopStartPayload,
            None,
            amend,
            action=inputs.action,
            context=inputs.context,
            requirements=inputs.requirements,
            loop_budget=loop_budget,
            concurrency_budget=self._lanes,
        )
        return loop_budget if changed is None else int(changed.loop_budget)

    async def hand_over(self, slice_: Slice) -> None:
        """Fire the hook for a recorded slice."""
        with suppress(HookError):  # The call already knows of it.
            await self._hooks.fire(SamplingIterationPayload, slice_, slice=slice_)

    async def end(self, deadline: float, *, cancelled: bool) -> int:
        """Fire the hook for the call's end, and wait for background hooks until the deadline."""
        call = self._hooks.call
        try:
            if HookType.SAMPLING_LOOP_END in self._hooks.types:
                await self._fire_end(call.slices, self._ended.conclude(cancelled=cancelled))
        except Exception as exc:  # noqa: BLE001 (logged; the outcome stays as it is)
            warn("%s: %s", type(exc).__name__, exc, sampling_id=call.id)
        except BaseException as exc:
            if split_cancellation(exc)[0] is not None:
                raise
            call.rule(Ruling(fatal=exc))
        return await self._hooks.drain(deadline)

    async def _fire_end(self, slices: Sequence[Slice], ending: Ending) -> None:
        await self._hooks.fire(
            SamplingLoopEndPayload,
            None,
            slices=tuple(slices),
            success=ending.success,
            best=None if ending.best_index is None else slices[ending.best_index],
            error=ending.error,
            iterations_used=sum(s.outcome in JUDGED or bool(s.verdicts) for s in slices),
            stop_reason=ending.stop_reason,
            decision=ending.decision,
            started=self._ended.started_utc,
            elapsed=self._hooks.call.now,
        )
