"""The table of options: which are at work in a call, and in what order they surround it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.backend import SPENDS_ON
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.conversation import Instruction, Message
from mellea_like.core.generation import Usage
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import HookError, LimitExceeded, SamplingFailed
from mellea_like.hooks.dispatch import HookRun
from mellea_like.hooks.plugins import snapshot
from mellea_like.hooks.types import HookType
from mellea_like.kernel.call import Call, Rules
from mellea_like.kernel.ports import Option, Plan, Ruling, Stop
from mellea_like.options.call_hooks import CallHooks
from mellea_like.options.comparisons import Comparisons
from mellea_like.options.early_rejection import TakenVerdicts, WatchedReplies
from mellea_like.options.first import First
from mellea_like.options.giving_up import GivingUp
from mellea_like.options.hooks import CheckHooks, Hooks, RepairHooks, RequestHooks
from mellea_like.options.lanes import Lanes
from mellea_like.options.logged_errors import LoggedErrors
from mellea_like.options.ordered import Ordered
from mellea_like.options.repairs import Repairs
from mellea_like.options.restarts import Restarts
from mellea_like.options.retries import Retries
from mellea_like.options.same_bug import SameBug, SameBugInOrder
from mellea_like.options.scheduled import Scheduled, TurnPool
from mellea_like.options.selected import Selected
from mellea_like.options.spans import CheckSpans, DrawSpans, RequestSpans
from mellea_like.options.stages import StageBudgets, Stages
from mellea_like.options.time_limit import TimeLimit
from mellea_like.options.tool_rounds import ToolRounds
from mellea_like.runtime.event_loops import clock
from mellea_like.runtime.logs import warn
from mellea_like.sampling.ending import Ending, conclude
from mellea_like.schedules.base import SchedulePlan

_TEXT = (Instruction.parse, Message.parse)
_REQUEST_HOOKS = (
    HookType.GENERATION_PRE_CALL,
    HookType.GENERATION_POST_CALL,
    HookType.GENERATION_ERROR,
)


class Sampling:
    """One call of a strategy, from its configuration to its result."""

    def __init__(self, strategy: Any, inputs: Any, on_slice: Any) -> None:
        self.strategy, self.settings, self.inputs = strategy, strategy.settings, inputs
        settings = self.settings
        self.id = os.urandom(16).hex()
        self.name = type(strategy).__name__
        self.started_utc = datetime.now(UTC)
        handlers = snapshot(settings.handlers)
        self.hooks = (
            Hooks(HookRun(handlers, self.id), self.id, self.name, self.rule) if handlers else None
        )
        self.telemetry = settings.telemetry.start_call(self.name, self.id)
        every = settings.validate_all
        every = strategy.needs_all_reasons if every is None else every
        now = clock()
        started = now()
        self.due: Stop | None = None
        around: list[Option] = []
        self.call_hooks: CallHooks | None = None
        if self.hooks is not None or on_slice is not None:
            self.call_hooks = CallHooks(self.hooks, on_slice, self._begin, self._end_fields)
            around.append(self.call_hooks)
        around.append(LoggedErrors())
        self.selected: Selected | None = None
        self.ending: Ending | None = None
        self.call = Call(
            self.id,
            inputs,
            Rules(settings.judge_options, every, settings.accept_incomplete, settings.cancel_grace),
            around,
            self.assemble,
            clock=now,
            started=started,
            deadline=self._deadline(started),
        )
        self.inside = SPENDS_ON.get()
        if self.inside is not None:
            self.inside.add(self)

    def rule(self, ruling: Ruling) -> None:
        self.call.rule(ruling)

    @property
    def usage(self) -> Usage:
        compared = Usage() if self.selected is None else self.selected.state.usage
        return sum((s.usage for s in self.call.slices), compared)

    @property
    def usage_by_model(self) -> list[tuple[str | None, Usage]]:
        parts = [part for s in self.call.slices for part in s.usage_by_model]
        if self.selected is not None:
            parts.append((self.selected.state.model, self.selected.state.usage))
        return parts

    def _deadline(self, started: float) -> float | None:
        settings = self.settings
        deadline = None if settings.timeout is None else started + settings.timeout
        schedule = settings.schedule
        if schedule is not None and schedule.seconds is not None:
            due = started + schedule.seconds
            deadline = due if deadline is None else min(deadline, due)
        for budget in self.inputs.budgets:
            left = budget.seconds_left()
            up = None if left is None else started + left
            if up is not None and (deadline is None or up < deadline):
                deadline = up
                spent = (
                    f"sampling {self.id}: the time of budget {budget.name!r} is up"
                    f" ({left:.6g} s were left when the call began)"
                )
                self.due = Stop(StopReason.BUDGET, spent, LimitExceeded(spent))
        return deadline

    # Assembly

    def assemble(self, call: Call, loop_budget: int) -> tuple[Plan, list[Option]]:
        settings, inputs, hooks = self.settings, self.inputs, self.hooks
        width, selection = settings.concurrency_budget, settings.selection
        options: list[Option] = []
        state = None
        if self.telemetry is not None:
            options.append(DrawSpans(self.telemetry))
        if hooks is not None and HookType.SAMPLING_REPAIR in hooks.run.types:
            options.append(RepairHooks(hooks))
        if settings.iteration_timeout is not None:
            options.append(TimeLimit(settings.iteration_timeout))
        if not isinstance(selection, str):
            from mellea_like.sampling.selection_runner import begin_selection  # noqa: PLC0415

            state = begin_selection(selection, inputs, settings, loop_budget * width)
            self.selected = Selected(selection, state, inputs.budgets)
            options.append(self.selected)
            options.append(Comparisons(selection, state, settings, inputs))
        else:
            options.append(Ordered() if selection == "ordered" else First())
        if settings.give_up is not None:
            options.append(GivingUp(settings.give_up.begin()))
        types = () if hooks is None else hooks.run.types
        if HookType.VALIDATION_PRE_CHECK in types or HookType.VALIDATION_POST_CHECK in types:
            options.append(CheckHooks(hooks))
        if self.telemetry is not None:
            options.append(CheckSpans(self.telemetry))
        if inputs.stages:
            costs = self.strategy.costs(inputs)
            repairs: Repairs = Stages(inputs.stages, settings.stages, costs, self.name)
        else:
            repairs = Repairs(
                inputs, self.strategy.repair, self.name, several=state is not None
            )
        if any(
            spec.requirements or spec.format is not None or spec.tools is not None
            for spec in (inputs, *inputs.stages)
        ):
            options.append(TakenVerdicts())
        if inputs.tools is not None:
            options.append(ToolRounds())
        plan = self._plan(repairs, loop_budget, state, options)
        if selection == "ordered":
            options.append(SameBugInOrder())
        else:
            options.append(SameBug(width, patient=isinstance(plan, Lanes)))
        options.append(Retries(settings.retry))
        if hooks is not None and not types.isdisjoint(_REQUEST_HOOKS):
            options.append(RequestHooks(hooks))
        if self.telemetry is not None:
            options.append(RequestSpans(self.telemetry))
        if inputs.budgets:
            from mellea_like.options.budgets import Budgets  # noqa: PLC0415

            options.append(Budgets(inputs.budgets))
        if isinstance(repairs, Stages):
            options.append(StageBudgets(settings.stages, repairs))
        options.append(WatchedReplies())
        return plan, options

    def _plan(self, repairs: Repairs, loop_budget: int, state: Any, options: list[Option]) -> Any:
        settings, inputs = self.settings, self.inputs
        schedule, width = settings.schedule, settings.concurrency_budget
        enough = state is None or state.wanted() >= width * loop_budget
        planned: SchedulePlan | None = None
        if schedule is not None or not enough:
            from mellea_like.schedules import CallFacts, Eager  # noqa: PLC0415

            if schedule is None or (state is not None and isinstance(schedule, Eager)):
                schedule = Eager(pool=True)
            facts = CallFacts(inputs.action, inputs.requirements, width, loop_budget, inputs.model)
            planned = schedule.begin(facts)
        if planned is not None:
            pool = TurnPool(width, loop_budget, pooled=schedule.pooled or state is not None)
            plan = Scheduled(
                planned,
                repairs,
                pool,
                loop_budget=loop_budget,
                most=width,
                extra=schedule.extra,
                wanted=None if state is None else state.wanted,
            )
            if getattr(type(planned), "patience", None) not in {None, SchedulePlan.patience}:
                options.append(Restarts(planned, plan))
            return plan
        race = width > 1 and (state is not None or self._can_fail())
        return Lanes(repairs, width, loop_budget, race=race)

    def _can_fail(self) -> bool:
        inputs, hooks = self.inputs, self.hooks
        return bool(
            inputs.requirements
            or inputs.format is not None
            or inputs.tools is not None
            or (hooks is not None and hooks.run.decides(HookType.VALIDATION_PRE_CHECK))
            or (hooks is not None and hooks.run.decides(HookType.VALIDATION_POST_CHECK))
            or getattr(type(inputs.action), "parse", None) not in _TEXT
        )

    # Course

    async def _begin(self, loop_budget: int) -> int:
        settings, inputs = self.settings, self.inputs

        def amend(_before: Any, after: Any, plugin: str) -> Any:
            settings.check_loop_budget(after.loop_budget, f"plugin {plugin} set loop_budget")
            return after

        changed = await self.hooks.fire(
            HookType.SAMPLING_LOOP_START,
            None,
            amend,
            action=inputs.action,
            context=inputs.context,
            requirements=inputs.requirements,
            loop_budget=loop_budget,
            concurrency_budget=settings.concurrency_budget,
        )
        return changed.loop_budget

    def _end_fields(self, cancelled: bool) -> dict[str, Any]:
        ending, slices = self._conclude(cancelled), self.call.slices
        return {
            "slices": tuple(slices),
            "success": ending.success,
            "best": None if ending.best_index is None else slices[ending.best_index],
            "error": ending.error,
            "iterations_used": sum(map(_finished_validation, slices)),
            "stop_reason": ending.stop_reason,
            "decision": ending.decision,
            "started": self.started_utc,
            "elapsed": self.call.clock() - self.call.started,
        }

    async def run(self) -> SamplingResult[Any]:
        if self.telemetry is None:
            return await self._run()
        from mellea_like.telemetry.names import (  # noqa: PLC0415
            DECISION_KIND,
            DECISION_REASON,
            STOP_REASON,
            SUCCESS,
        )

        with self.telemetry.call() as span:
            try:
                return await self._run()
            finally:
                ended = self.ending
                reason = StopReason.CANCELLED if ended is None else ended.stop_reason
                span.set({STOP_REASON: reason.value, SUCCESS: bool(ended and ended.success)})
                if ended is not None and (decided := ended.decision) is not None:
                    span.set({DECISION_KIND: decided.kind, DECISION_REASON: decided.reason})

    async def _run(self) -> SamplingResult[Any]:
        try:
            await self._course()
            return self._finished()
        finally:
            self.call.forget()

    async def _course(self) -> None:
        await self.call.run(self.settings.loop_budget)
        # A caller who left while the call was ending is told so, and handed no result.
        await checkpoint_if_cancelled()

    def _finished(self) -> SamplingResult[Any]:
        ending = self._conclude(False)
        if self.hooks is not None and self.hooks.run.interrupt is not None:
            raise self.hooks.run.interrupt
        error = ending.error
        if error is not None:
            if (
                isinstance(error, HookError | LimitExceeded | SamplingFailed)
                and error.result is None
            ):
                error.result = self._result(ending)
            if self.inside is not None and is_of_backend(error):
                error.retried = self.settings.retry is not None
            raise error
        return self._result(ending)

    def _conclude(self, cancelled: bool) -> Ending:
        if self.ending is None:
            call = self.call
            race = getattr(call, "race", None)
            fatal = call.fatal if race is None else race.fatal
            stopped = None if race is None else race.why
            turns = self.settings.concurrency_budget * self.settings.loop_budget
            late = race is not None and race.late
            timed_out = call.timed_out or late and (
                len(call.slices) < turns
                or any(s.outcome is Outcome.CANCELLED for s in call.slices)
            )
            if stopped is None and timed_out:
                stopped = self.due
            ordered = self.settings.selection == "ordered"
            won = race is not None and race.won
            won = won and not call.undecided
            won = won or (ordered and any(s.passed for s in call.slices))
            facts = None if race is None else call.facts(cancelled=cancelled)
            self.ending = conclude(
                call.slices,
                selection=self.settings.selection,
                selected=None if self.selected is None else self.selected.state,
                select_from_failure=self.strategy.select_from_failure,
                strategy=self.name,
                won=won,
                fatal=fatal,
                late=call.late,
                timed_out=timed_out,
                stopped=stopped,
                broken=facts is not None and facts.broken,
                cancelled=cancelled,
                sampling_id=self.id,
            )
            if call.late is not None:
                if self.ending.success:
                    warn(
                        "after the call was decided: %s: %s",
                        type(call.late).__name__,
                        call.late,
                        sampling_id=self.id,
                    )
                call.late = None
            call.concluded = True
        return self.ending

    def _result(self, ending: Ending) -> SamplingResult[Any]:
        return SamplingResult(
            slices=tuple(self.call.slices),
            best_index=ending.best_index,
            stop_reason=ending.stop_reason,
            sampling_id=self.id,
            started=self.started_utc,
            elapsed=self.call.clock() - self.call.started,
            undelivered=0 if self.call_hooks is None else self.call_hooks.undelivered,
            stop_detail=ending.stop_detail,
            decision=ending.decision,
            toolbox=self.inputs.tools,
        )


def _finished_validation(slice_: Slice) -> bool:
    return slice_.outcome in {Outcome.PASSED, Outcome.FAILED} or bool(slice_.verdicts)
