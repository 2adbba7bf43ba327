"""Set up a call: begin its selection, stages and schedule, and make its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mellea_like.core.conversation import Instruction, Message
from mellea_like.hooks.dispatch import Hooks
from mellea_like.hooks.plugins import snapshot
from mellea_like.hooks.types import HookType
from mellea_like.plans.lanes import Lanes
from mellea_like.plans.repairs import Repairs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Plan
    from mellea_like.options.rounds import Rounds
    from mellea_like.plans.stages import Stages
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import CallInputs, Settings
    from mellea_like.schedules.base import CallFacts, SchedulePlan
    from mellea_like.selections.base import BaseSelection, SelectionState
    from mellea_like.telemetry.call import CallTelemetry

ANY_TEXT = (Instruction.parse, Message.parse)
"""Parsers of replies that accept any text, so that a draw never fails because of them."""

CHECK_HOOKS = (HookType.VALIDATION_PRE_CHECK, HookType.VALIDATION_POST_CHECK)


@dataclass(slots=True, eq=False)
class Setup:
    """Makes a call's plan, and has all that is needed to make the call's `Option` objects."""

    strategy: BaseSamplingStrategy
    settings: Settings
    inputs: CallInputs
    sampling_id: str
    on_slice: Callable[[Slice], Awaitable[None] | None] | None
    show: Callable[[str], None] | None
    """Gets the text of a draw that is certain to pass; None if no draw of the call can be."""
    rounds: Rounds | None
    telemetry: CallTelemetry | None = field(init=False)
    hooks: Hooks | None = field(init=False, default=None)
    streams: bool = field(init=False)
    """Whether replies may be streamed: the backend can stream, or there are stages."""
    loop_budget: int = field(init=False)
    """Known only at the start of the race, because a plugin may change it. So is the rest."""
    selection: SelectionState | None = field(init=False, default=None)
    stages: Stages | None = field(init=False, default=None)
    schedule_plan: SchedulePlan | None = field(init=False, default=None)
    running: MutableMapping[int, float] = field(init=False, default_factory=dict[int, float])
    """Maps chains to times, as `Scheduled.running` does; empty without a schedule."""

    def __post_init__(self) -> None:
        name = type(self.strategy).__name__
        self.telemetry = self.settings.telemetry.start_call(name, self.sampling_id)
        if handlers := snapshot(self.settings.handlers):
            self.hooks = Hooks(handlers, name)
        self.streams = hasattr(self.inputs.backend, "stream") or bool(self.inputs.stages)
        if self.show is not None and not self._may_show():
            self.show = None

    def begin(self, loop_budget: int) -> Plan:
        """Begin the selection, the stages and the schedule, and make the plan."""
        self.loop_budget = loop_budget
        # Most calls have none of these, and their modules are imported if one is needed.
        if self.settings.chooser is not None:
            self.selection = self._begin_selection(self.settings.chooser)
        if self.inputs.stages:
            self.stages = self._begin_stages()
        return self._plan()

    def _begin_selection(self, selection: BaseSelection) -> SelectionState:
        """Begin a selection; refuse impossible settings, and log useless ones."""
        from mellea_like.limits.fallback import check_judge_budget  # noqa: PLC0415
        from mellea_like.selections.base import SelectionFacts  # noqa: PLC0415

        settings, inputs, name = self.settings, self.inputs, type(selection).__name__
        turns = self.loop_budget * settings.concurrency_budget
        state = selection.begin(SelectionFacts(turns, inputs.judge))
        if (judge := state.judge) is not None:
            for budget in inputs.budgets:
                check_judge_budget(budget, judge, settings.judge_options, name)
        n = state.asked
        if n is not None and n > turns and not state.at_most:
            msg = (
                f"{name} wants {n} passing draws, but the call makes at most {turns}"
                " (loop_budget * concurrency_budget): raise one of the two, or ask for fewer"
            )
            raise ValueError(msg)
        if turns > 1 and n != 1 and inputs.temperature == 0:
            alike = f"{name} chooses among draws, but at temperature 0 they are all alike"
            settings.warn_once(alike)
        return state

    def _begin_stages(self) -> Stages:
        from mellea_like.plans.stages import Stages, StageTurns  # noqa: PLC0415

        settings, inputs = self.settings, self.inputs
        turns = [
            StageTurns(spec, partial(stage.repair, spec), stage.turns, stage.carry != "nothing")
            for spec, stage in zip(inputs.stages, settings.stages, strict=True)
        ]
        facts = self._facts()
        costs = None if settings.after is None else settings.after.begin(facts, facts.stages)
        recorded = () if self.rounds is None else frozenset(self.rounds.recorded)
        return Stages(turns, costs, type(self.strategy).__name__, recorded)

    def _facts(self) -> CallFacts:
        from mellea_like.schedules import CallFacts  # noqa: PLC0415

        inputs, lanes = self.inputs, self.settings.concurrency_budget
        models = tuple(spec.model for spec in inputs.stages)
        asked = inputs.action, inputs.requirements
        return CallFacts(*asked, lanes, self.loop_budget, inputs.model, models)

    def _plan(self) -> Plan:
        strategy, lanes = self.strategy, self.settings.concurrency_budget
        selection, several = self.selection, self.selection is not None
        few = selection is not None and selection.wanted() < lanes * self.loop_budget
        repairs = self.stages or Repairs(
            (self.inputs, strategy.repair),
            strategy=type(strategy).__name__,
            several=several,
        )
        schedule = self.settings.schedule
        # In rounds, one chain draws again and again, so it never makes more draws than are wanted.
        in_parts = self.rounds is not None and self.rounds.in_parts
        if schedule is None and few and not in_parts:
            # Only a plan with a schedule starts no more draws than the selection still needs.
            from mellea_like.schedules import Eager  # noqa: PLC0415

            schedule = Eager(pool=True)
        self.schedule_plan = None if schedule is None else schedule.begin(self._facts())
        if schedule is None or self.schedule_plan is None:
            race = lanes > 1 and (several or self.can_fail())
            return Lanes(repairs, lanes, self.loop_budget, race=race)
        from mellea_like.plans.scheduled import Scheduled, TurnPool  # noqa: PLC0415

        plan = Scheduled(
            self.schedule_plan,
            repairs,
            # If several have to pass, any chain may take the turns that another doesn't use.
            TurnPool(lanes, self.loop_budget, pooled=schedule.pooled or several),
            loop_budget=self.loop_budget,
            most=lanes,
            extra=schedule.extra,
            wanted=None if selection is None else selection.wanted,
        )
        self.running = plan.running
        return plan

    def restarts(self) -> bool:
        """Return whether the schedule limits how long a draw may wait for its reply."""
        return self._overrides("patience")

    def learns(self) -> Callable[[Slice], None] | None:
        """Return what learns from each draw for later calls: the stages' rule or the schedule."""
        if self.settings.after is not None and self.stages is not None:
            return self.stages.learn
        plan = self.schedule_plan
        return plan.observe if plan is not None and self._overrides("observe") else None

    def _overrides(self, method: str) -> bool:
        """Return whether the schedule has a method of its own instead of the default one."""
        from mellea_like.schedules import SchedulePlan  # noqa: PLC0415

        own = getattr(type(self.schedule_plan), method, None)
        return own not in {None, getattr(SchedulePlan, method)}

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
        return self.hooks is not None and any(map(self.hooks.decides, CHECK_HOOKS))

    def _may_show(self) -> bool:
        """Return whether a draw of this call may be certain to pass before it has ended.

        It can't if a format, a parser, a judge or a plugin needs the whole reply, if the winner
        also depends on other draws, or if a draw runs tools or must call one.
        """
        settings, inputs = self.settings, self.inputs
        return (
            settings.selection == "first"
            and settings.schedule is None
            and not inputs.stages
            and inputs.format is None
            and (inputs.tools is None or inputs.tools.leaves_texts)
            and getattr(type(inputs.action), "parse", None) in ANY_TEXT
            and all(r.streams and not r.judged for r in inputs.requirements)
            and not self.decides()
        )
