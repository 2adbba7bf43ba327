"""One call of a strategy: its clock, its race, how it ended, and the result."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.backend import CURRENT
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.generation import Usage
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.errors import HookError, LimitExceeded, RequirementError, SamplingFailed
from mellea_like.kernel.call import Call
from mellea_like.kernel.ending import Ending, conclude
from mellea_like.kernel.ports import Stop
from mellea_like.runtime.event_loops import clock
from mellea_like.runtime.logs import warn
from mellea_like.sampling.best_failure import choose_failure
from mellea_like.sampling.setup import Setup
from mellea_like.sampling.table import AROUND, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Option, Plan
    from mellea_like.options.rounds import Rounds
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import CallInputs

_PAUSED = Ending(None, StopReason.EXHAUSTED, None)
_WITH_RECORD = (HookError, LimitExceeded, RequirementError, SamplingFailed)
"""The errors that have an attribute ``result``, for the result of the call that raises them."""


class RunningCall(Call):
    """One call of a strategy, from its checked arguments to its result."""

    keeps = False
    """Whether to keep the state after `run`, because this object will continue the paused call."""
    undelivered = 0
    """How many slices a caller should have been told of, but time ran out."""
    _turns = 0
    """The most draws that the call could make, with the loop budget that a plugin may have set."""
    _ending: Ending | None = None
    _rounds: Rounds | None = None
    _setup: Setup | None
    """Makes the plan and the options; None once it has."""

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
        if rounds is not None:
            self._rounds = rounds
        before = 0.0 if rounds is None else rounds.before
        sampling_id, now = os.urandom(16).hex(), clock()
        super().__init__(sampling_id, settings, clock=now, started=now() - before)
        self._set_times(before)
        self._setup = setup = Setup(strategy, settings, inputs, sampling_id, on_slice, show, rounds)
        for row in AROUND:
            if (option := row(setup, self)) is not None:
                self.add([option])
        _, self._outer_meter = CURRENT.get()
        if self._outer_meter is not None:
            self._outer_meter.add(self)

    def _set_times(self, before: float) -> None:
        """Set the deadline, given how many seconds earlier runs of the call took."""
        settings, started = self.settings, self.started
        self.started_utc = datetime.now(UTC) - timedelta(seconds=before)
        deadline = None if settings.timeout is None else started + settings.timeout
        schedule = settings.schedule
        if schedule is not None and schedule.seconds is not None:
            due = started + schedule.seconds
            deadline = due if deadline is None else min(deadline, due)
        for budget in self.inputs.budgets:
            left = budget.seconds_left()
            # The call's start lies ``before`` seconds back; what is left counts from now.
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
        setup, self._setup = self._setup, None
        assert setup is not None  # noqa: S101 (this is done once)
        self._turns = self.settings.concurrency_budget * loop_budget
        plan = setup.begin(loop_budget)
        return plan, [option for row in OPTIONS if (option := row(setup)) is not None]

    # Its cost so far, for an outer call

    @property
    def usage(self) -> Usage:
        """The cost of the call's draws and comparisons so far."""
        return sum((usage for _, usage in self.usage_by_model), Usage())

    @property
    def usage_by_model(self) -> list[tuple[str | None, Usage]]:
        """The cost of the call's draws and comparisons so far, by model."""
        settling = () if self.meter is None else self.meter.usage_by_model
        return [*(part for s in self.slices for part in s.usage_by_model), *settling]

    # Its course

    async def run(self) -> SamplingResult[Any]:
        """Run the call; see `BaseSamplingStrategy.sample` for what it raises."""
        try:
            await self.run_race(self.settings.loop_budget)
            # If the caller was cancelled during the call's end, it gets no result.
            await checkpoint_if_cancelled()
            rounds = self._rounds
            if rounds is not None and rounds.paused and self.fatal is None:
                # It continues as it is if no option is around its rounds.
                self.keeps = not any("around" in option.uses for option in self.options)
                return self._result(self._ending or _PAUSED)
            ending = self.conclude()
            # An interrupt may come after the call was decided.
            error = self.fatal or ending.error
            if error is not None:
                raise self._noted(error, ending)
            return self._result(ending)
        finally:
            if not self.keeps:
                self._setup = None  # A plugin may have stopped the call before the race.
                self.forget()

    def _noted(self, error: BaseException, ending: Ending) -> BaseException:
        """Attach this call's result to an error that doesn't have an inner call's result yet."""
        if isinstance(error, _WITH_RECORD) and error.result is None:
            error.result = self._result(ending)
        if self._outer_meter is not None and is_of_backend(error):
            error.retried = self.settings.retry is not None  # type: ignore[attr-defined]
        return error

    def conclude(self, *, cancelled: bool = False) -> Ending:
        """Return how the call ended. Only the first use of this method decides that."""
        # Options around the call ask first, and the result must be what they were told.
        if self._ending is None:
            self._ending = conclude(
                self.facts(self._turns, cancelled=cancelled),
                self.choose,
                partial(choose_failure, self.strategy),
                sampling_id=self.id,
                fatal=self.fatal,
                late=self.late[0] if self.late else None,
            )
            self.concluded = True
            for error in self.late:
                if error is not self._ending.error:
                    message = "after the call was decided: %s: %s"
                    warn(message, type(error).__name__, error, sampling_id=self.id)
        return self._ending

    def _result(self, ending: Ending) -> SamplingResult[Any]:
        return SamplingResult(
            slices=tuple(self.slices),
            best_index=ending.best_index,
            stop_reason=ending.stop_reason,
            sampling_id=self.id,
            started=self.started_utc,
            elapsed=self.now,
            undelivered=self.undelivered,
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
