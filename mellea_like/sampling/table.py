"""The table of options: which are at work in a call, and in what order.

A row makes one option from a call's setup, or returns None if the call doesn't need it. The first
option is the outermost: a draw's span includes its time limit, and the hooks of requests see each
try, because retries are outside them. The hooks of the call (`options/call_hooks.py`) aren't in the
table, because they begin before the other options are made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mellea_like.core.conversation import Instruction, Message
from mellea_like.core.given import GivenReply
from mellea_like.hooks.types import HookType
from mellea_like.options.first import First
from mellea_like.options.giving_up import GivingUp
from mellea_like.options.hooks import CheckHooks, RepairHooks, RequestHooks
from mellea_like.options.lanes import Lanes
from mellea_like.options.logged_errors import LoggedErrors
from mellea_like.options.ordered import Ordered
from mellea_like.options.repairs import Repairs
from mellea_like.options.retries import Retries
from mellea_like.options.same_bug import SameBug, SameBugInOrder, SameBugWaits
from mellea_like.options.spans import CheckSpans, DrawSpans, RequestSpans
from mellea_like.options.time_limit import TimeLimit
from mellea_like.options.tool_rounds import ToolRounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.kernel.ports import Option, Plan
    from mellea_like.options.hooks import Hooks
    from mellea_like.options.rounds import Rounds
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import CallInputs, Settings
    from mellea_like.schedules.base import BaseSchedule
    from mellea_like.selections.base import BaseSelection, SelectionState
    from mellea_like.telemetry.call import CallTelemetry

__all__ = ["OPTIONS", "Setup"]

ANY_TEXT = (Instruction.parse, Message.parse)
"""Parsers that take any text."""

_REQUEST_HOOKS = (
    HookType.GENERATION_PRE_CALL,
    HookType.GENERATION_POST_CALL,
    HookType.GENERATION_ERROR,
)
_CHECK_HOOKS = (HookType.VALIDATION_PRE_CHECK, HookType.VALIDATION_POST_CHECK)


class Setup:
    """The inputs from which the `Option` objects of one call are made."""

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        inputs: CallInputs,
        loop_budget: int,
        *,
        hooks: Hooks | None = None,
        telemetry: CallTelemetry | None = None,
        show: Callable[[str], None] | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self.strategy = strategy
        self.settings: Settings = strategy.settings
        self.inputs = inputs
        self.loop_budget = loop_budget
        self.hooks = hooks
        self.telemetry = telemetry
        self.rounds = rounds
        self.show = show if show is not None and may_show(self) else None
        # Most calls have none of these, and their modules are imported if one is needed.
        self.selected: Option | None = None
        self.selection: SelectionState | None = None
        self.restarts: Option | None = None
        self.stage_budgets: Option | None = None
        self.is_scheduled = False
        if not isinstance(self.settings.selection, str):
            self._begin_selection(self.settings.selection)
        self.repairs = self._repairs()
        self.plan: Plan = self._plan()

    def _begin_selection(self, selection: BaseSelection) -> None:
        from mellea_like.options.selected import Selected, begin_selection  # noqa: PLC0415

        settings, inputs = self.settings, self.inputs
        turns = self.loop_budget * settings.concurrency_budget
        self.selection = begin_selection(selection, inputs, settings, turns)
        marks = None if self.rounds is None else self.rounds.marks
        self.selected = Selected(selection, self.selection, inputs, settings, marks)

    def _repairs(self) -> Repairs:
        settings, inputs, name = self.settings, self.inputs, type(self.strategy).__name__
        if inputs.stages:
            from mellea_like.options.stages import StageBudgets, Stages  # noqa: PLC0415

            escalate: Any = self.strategy  # No other has stages.
            stages = Stages(inputs.stages, settings.stages, escalate.costs(inputs), name)
            self.stage_budgets = StageBudgets(settings.stages, stages)
            return stages
        several = self.selection is not None
        return Repairs((inputs, self.strategy.repair), strategy=name, several=several)

    def _plan(self) -> Plan:
        settings, width, selection = self.settings, self.settings.concurrency_budget, self.selection
        schedule: BaseSchedule | None = settings.schedule
        # In rounds, one chain draws again and again, so it never makes more draws than are wanted.
        enough = (
            selection is None
            or (self.rounds is not None and self.rounds.in_parts)
            or selection.wanted() >= width * self.loop_budget
        )
        if schedule is not None or not enough:
            plan = self._scheduled(schedule)
            if plan is not None:
                return plan
        race = width > 1 and (selection is not None or self.can_fail())
        return Lanes(self.repairs, width, self.loop_budget, race=race)

    def _scheduled(self, schedule: BaseSchedule | None) -> Plan | None:
        from mellea_like.options.scheduled import Scheduled, TurnPool  # noqa: PLC0415
        from mellea_like.schedules import CallFacts, Eager, SchedulePlan  # noqa: PLC0415

        inputs, width, selection = self.inputs, self.settings.concurrency_budget, self.selection
        if schedule is None or (selection is not None and isinstance(schedule, Eager)):
            schedule = Eager(pool=True)
        facts = CallFacts(inputs.action, inputs.requirements, width, self.loop_budget, inputs.model)
        planned = schedule.begin(facts)
        if planned is None:
            return None
        # If several have to pass, any chain may take the turns that another doesn't use.
        pooled = schedule.pooled or selection is not None
        self.is_scheduled = True
        plan = Scheduled(
            planned,
            self.repairs,
            TurnPool(width, self.loop_budget, pooled=pooled),
            loop_budget=self.loop_budget,
            most=width,
            extra=schedule.extra,
            wanted=None if selection is None else selection.wanted,
        )
        if getattr(type(planned), "patience", None) not in {None, SchedulePlan.patience}:
            self.restarts = _lazy("restarts", "Restarts", planned, plan)
        return plan

    def can_fail(self) -> bool:
        """Return whether a draw can fail although its backend gave a complete reply."""
        inputs = self.inputs
        return bool(
            inputs.requirements
            or inputs.format is not None
            or inputs.tools is not None
            or self.decides()
            or getattr(type(inputs.action), "parse", None) not in ANY_TEXT
        )

    def decides(self) -> bool:
        """Return whether a plugin takes part in deciding which draws pass."""
        return self.hooks is not None and any(map(self.hooks.run.decides, _CHECK_HOOKS))

    def streams(self) -> bool:
        """Return whether replies may be streamed: the backend can stream, or there are stages."""
        return hasattr(self.inputs.backend, "stream") or bool(self.inputs.stages)


def may_show(setup: Setup) -> bool:
    """Return whether a draw of a call may be certain to pass before it has ended.

    The answer is no if a format, a parser, a judge or a plugin needs the whole reply, if the winner
    also depends on other draws, or if a draw runs tools or must call one.
    """
    settings, inputs = setup.settings, setup.inputs
    return (
        settings.selection == "first"
        and settings.schedule is None
        and not inputs.stages
        and inputs.format is None
        and (inputs.tools is None or inputs.tools.leaves_texts)
        and getattr(type(inputs.action), "parse", None) in ANY_TEXT
        and all(r.streams and not r.judged for r in inputs.requirements)
        and not setup.decides()
    )


def _lazy(module: str, name: str, *arguments: Any) -> Option:
    """Import the module of an option that few programs need, and make the option."""
    made: Option = getattr(import_module(f"mellea_like.options.{module}"), name)(*arguments)
    return made


def _hear(hooks: Hooks, *types: HookType) -> bool:
    """Return whether a plugin listens to one of these hooks."""
    return not hooks.run.types.isdisjoint(types)


def _same_bug(setup: Setup) -> Option:
    lanes = setup.settings.concurrency_budget
    return (SameBugWaits if lanes > 1 and not setup.is_scheduled else SameBug)(lanes)


OPTIONS: tuple[Callable[[Setup], Option | None], ...] = (
    lambda s: _lazy("given", "Given") if isinstance(s.inputs.action, GivenReply) else None,
    lambda s: None if isinstance(s.inputs.action, GivenReply) else LoggedErrors(),
    lambda s: s.rounds,
    lambda s: DrawSpans(s.telemetry) if s.telemetry else None,
    lambda s: (
        RepairHooks(s.hooks) if s.hooks and _hear(s.hooks, HookType.SAMPLING_REPAIR) else None
    ),
    lambda s: TimeLimit(s.settings.iteration_timeout) if s.settings.iteration_timeout else None,
    lambda s: First() if s.settings.selection == "first" and s.show is None else None,
    lambda s: Ordered() if s.settings.selection == "ordered" else None,
    lambda s: s.selected,
    lambda s: GivingUp(s.settings.give_up.begin()) if s.settings.give_up else None,
    lambda s: CheckHooks(s.hooks) if s.hooks and _hear(s.hooks, *_CHECK_HOOKS) else None,
    lambda s: CheckSpans(s.telemetry) if s.telemetry else None,
    lambda s: _lazy("early_rejection", "TakenVerdicts") if s.streams() else None,
    lambda s: ToolRounds() if s.inputs.tools is not None else None,
    lambda s: s.restarts,
    lambda s: SameBugInOrder() if s.settings.selection == "ordered" else None,
    lambda s: _same_bug(s) if s.settings.selection != "ordered" else None,
    lambda s: _lazy("wrapped", "Wrapped", s.rounds.wrap) if s.rounds and s.rounds.wrap else None,
    lambda s: Retries(s.settings.retry),
    lambda s: RequestHooks(s.hooks) if s.hooks and _hear(s.hooks, *_REQUEST_HOOKS) else None,
    lambda s: RequestSpans(s.telemetry) if s.telemetry else None,
    lambda s: _lazy("budgets", "Budgets", s.inputs.budgets) if s.inputs.budgets else None,
    lambda s: s.stage_budgets,
    lambda s: _lazy("early_rejection", "WatchedReplies") if s.streams() else None,
    lambda s: _lazy("shown", "Shown", s.show) if s.show else None,
)
