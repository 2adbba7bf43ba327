"""One call of a strategy: its hooks, its clock, its race, and the result."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.backend import CURRENT
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.generation import Usage
from mellea_like.core.prices import cost, price_for
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import HookError, LimitExceeded, RequirementError, SamplingFailed
from mellea_like.hooks.dispatch import Hooks
from mellea_like.hooks.plugins import snapshot
from mellea_like.kernel.call import Call
from mellea_like.kernel.ending import Ending, conclude
from mellea_like.kernel.ports import Ruling, Stop
from mellea_like.options.deliveries import Deliveries
from mellea_like.runtime.event_loops import clock
from mellea_like.runtime.logs import warn
from mellea_like.sampling.best_failure import choose_failure
from mellea_like.sampling.setup import Setup
from mellea_like.sampling.table import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.kernel.ports import Option, Plan
    from mellea_like.options.rounds import Rounds
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import CallInputs
    from mellea_like.telemetry.call import CallTelemetry

__all__ = ["RunningCall"]

_PAUSED = Ending(None, StopReason.EXHAUSTED, None)
_JUDGED = (Outcome.PASSED, Outcome.FAILED)
_WITH_RECORD = (HookError, LimitExceeded, RequirementError, SamplingFailed)
"""The errors that have an attribute ``result``, for the result of the call that raises them."""


class RunningCall(Call):
    """One call of a strategy, from its checked arguments to its result."""

    keeps = False
    """Whether to keep the state after `run`, because this object will continue the paused call."""
    _hooks: Hooks | None = None
    _deliveries: Deliveries | None = None
    _ending: Ending | None = None
    _rounds: Rounds | None = None
    _show: Callable[[str], None] | None = None

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        inputs: CallInputs,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None = None,
        *,
        show: Callable[[str], None] | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self.strategy, self.inputs = strategy, inputs
        self.settings = settings = strategy.settings
        if show is not None:
            self._show = show
        if rounds is not None:
            self._rounds = rounds
        before = 0.0 if rounds is None else rounds.before
        sampling_id, now = os.urandom(16).hex(), clock()
        super().__init__(sampling_id, settings, clock=now, started=now() - before)
        self._set_times(before)
        self._telemetry = settings.telemetry.start_call(type(strategy).__name__, sampling_id)
        handlers = snapshot(settings.handlers)
        if handlers:
            self._hooks = Hooks(handlers, sampling_id, type(strategy).__name__, self._hook_failed)
            from mellea_like.hooks.call import CallHooks  # noqa: PLC0415 (it needs pydantic)

            fires = CallHooks(self._hooks, settings, inputs, self._end_fields)
            self._deliveries = Deliveries(on_slice, fires)
        elif on_slice is not None:
            self._deliveries = Deliveries(on_slice)
        if self._deliveries is not None:
            self.add([self._deliveries])
        _, self._outer_meter = CURRENT.get()
        if self._outer_meter is not None:
            self._outer_meter.add(self)

    def _set_times(self, before: float) -> None:
        """Set the deadline: the earliest one of the timeout, the schedule and the budgets.

        ``before`` is how long earlier runs of the call took, in seconds.
        """
        settings, started = self.settings, self.started
        self._started_utc = datetime.now(UTC) - timedelta(seconds=before)
        deadline = None if settings.timeout is None else started + settings.timeout
        schedule = settings.schedule
        if schedule is not None and schedule.seconds is not None:
            due = started + schedule.seconds
            deadline = due if deadline is None else min(deadline, due)
        for budget in self.inputs.budgets:
            left = budget.seconds_left()
            up = None if left is None else started + before + left
            if up is not None and (deadline is None or up < deadline):
                deadline = up
                spent = (
                    f"sampling {self.id}: the time of budget {budget.name!r} is up"
                    f" ({left:.6g} s were left when the call began)"
                )
                self.due = Stop(StopReason.BUDGET, spent, LimitExceeded(spent))
        self.deadline = deadline

    def assemble(self, loop_budget: int) -> tuple[Plan, Sequence[Option]]:
        """Make the plan, and those options of the table `OPTIONS` that the call needs."""
        setup = Setup(
            strategy=self.strategy,
            settings=self.settings,
            inputs=self.inputs,
            loop_budget=loop_budget,
            hooks=self._hooks,
            telemetry=self._telemetry,
            show=self._show,
            rounds=self._rounds,
        )
        return setup.plan, [option for row in OPTIONS if (option := row(setup)) is not None]

    # Its cost so far, for an outer call

    @property
    def usage(self) -> Usage:
        """The cost of the call's draws and comparisons so far."""
        return sum((usage for _, usage in self.usage_by_model), Usage())

    @property
    def usage_by_model(self) -> list[tuple[str | None, Usage]]:
        """The cost of the call's draws and comparisons so far, by model."""
        return [*(part for s in self.slices for part in s.usage_by_model), *self.beside]

    # Its course

    def run(self) -> Awaitable[SamplingResult[Any]]:
        """Run the call; see `BaseSamplingStrategy.sample` for what it raises."""
        return self._run() if self._telemetry is None else self._run_traced(self._telemetry)

    async def _run_traced(self, telemetry: CallTelemetry) -> SamplingResult[Any]:
        with telemetry.call() as span:
            try:
                return await self._run()
            finally:
                slices = self.slices
                first = next((s for s in slices if s.messages), None)
                asked = first.messages[: len(first.messages) - len(first.rounds)] if first else ()
                telemetry.decided(
                    span, self._ending, slices, self.usage, asked=asked, money=self._money()
                )

    def _money(self) -> tuple[float, str] | None:
        """Return the cost so far and its currency; None if the price of a used model is unknown."""
        prices = next((b.prices for b in self.inputs.budgets if b.prices), None)
        spent = [(model, usage) for model, usage in self.usage_by_model if usage != Usage()]
        if not prices or any(price_for(model, prices) is None for model, _ in spent):
            return None
        currency = next(iter(prices.values())).currency
        return sum((cost(usage, model, prices) for model, usage in spent), 0.0), currency

    async def _run(self) -> SamplingResult[Any]:
        try:
            await self.run_race(self.settings.loop_budget)
            # If the caller was cancelled during the call's end, it gets no result.
            await checkpoint_if_cancelled()
            rounds = self._rounds
            if rounds is not None and rounds.paused and self.fatal is None:
                # It continues as it is if nothing listens to its rounds.
                self.keeps = self._telemetry is None and self._deliveries is None
                return self._result(self._ending or _PAUSED)
            ending = self._conclude()
            interrupt = None if self._hooks is None else self._hooks.interrupt
            if interrupt is not None:
                raise interrupt
            if ending.error is not None:
                raise self._noted(ending.error, ending)
            return self._result(ending)
        finally:
            if not self.keeps:
                self.forget()
                self._deliveries = self._hooks = None  # They refer to this call.

    def _noted(self, error: BaseException, ending: Ending) -> BaseException:
        """Attach this call's result to an error that doesn't have an inner call's result yet."""
        if isinstance(error, _WITH_RECORD) and error.result is None:
            error.result = self._result(ending)
        if self._outer_meter is not None and is_of_backend(error):
            error.retried = self.settings.retry is not None  # type: ignore[attr-defined]
        return error

    def _hook_failed(self, error: HookError) -> None:
        self.rule(Ruling(fatal=error))

    def _end_fields(self, cancelled: bool) -> dict[str, Any]:  # noqa: FBT001
        """Return the fields of the payload for the call's end, after deciding how it ended."""
        ending, slices = self._conclude(cancelled=cancelled), self.slices
        return {
            "slices": tuple(slices),
            "success": ending.success,
            "best": None if ending.best_index is None else slices[ending.best_index],
            "error": ending.error,
            "iterations_used": sum(s.outcome in _JUDGED or bool(s.verdicts) for s in slices),
            "stop_reason": ending.stop_reason,
            "decision": ending.decision,
            "started": self._started_utc,
            "elapsed": self.now,
        }

    def _conclude(self, *, cancelled: bool = False) -> Ending:
        """Return how the call ended. Only the first use of this method decides that."""
        # A hook for the end of the call asks first, and the result must be what it was told.
        if self._ending is None:
            turns = self.settings.concurrency_budget * self.settings.loop_budget
            self._ending = conclude(
                self.facts(turns, cancelled=cancelled),
                self.choose,
                partial(choose_failure, self.strategy),
                sampling_id=self.id,
                fatal=self.fatal,
                late=self.late,
            )
            self.concluded, error = True, self.late
            if error is not None and self._ending.success:
                message = "after the call was decided: %s: %s"
                warn(message, type(error).__name__, error, sampling_id=self.id)
        return self._ending

    def _result(self, ending: Ending) -> SamplingResult[Any]:
        return SamplingResult(
            slices=tuple(self.slices),
            best_index=ending.best_index,
            stop_reason=ending.stop_reason,
            sampling_id=self.id,
            started=self._started_utc,
            elapsed=self.now,
            undelivered=0 if self._deliveries is None else self._deliveries.undelivered,
            stop_detail=ending.stop_detail,
            decision=ending.decision,
            toolbox=self.inputs.tools,
        )

    # Rounds

    def resume(self, draws: int | None, heard: Callable[[Slice], None] | None) -> Rounds:
        """Let a paused call make more draws at its next `run`; its clock skips the pause."""
        rounds = self._rounds
        assert rounds is not None  # noqa: S101 (it was paused)
        self.keeps = False
        rounds.left, rounds.heard, rounds.paused = draws, heard, False
        before = self.slices[-1].ended_at
        self.started = self.clock() - before
        self._set_times(before)
        self.race.resume(self.started, self.deadline)
        return rounds
