"""The tables of options, which define the options of a call and their order.

A row makes one option from a call's setup, or returns None if the call doesn't need it. The first
option is the outermost. For example, a draw's span includes its time limit. And since retries are
outside of the hooks of requests, these hooks see each try. The options in `AROUND` are outside of
all those in `OPTIONS`.

The conditions are here, and not in the options' modules, so that a call only imports the modules
of options that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mellea_like.core.given import GivenReply
from mellea_like.core.requirement import CheckStage
from mellea_like.hooks.types import HookType
from mellea_like.options.deliveries import Deliveries
from mellea_like.options.first import First
from mellea_like.options.giving_up import GivingUp
from mellea_like.options.logged_errors import LoggedErrors
from mellea_like.options.ordered import Ordered
from mellea_like.options.retries import Retries
from mellea_like.options.same_bug import SameBug, SameBugInOrder
from mellea_like.options.spans import CheckSpans, DrawSpans, RequestSpans
from mellea_like.options.time_limit import TimeLimit
from mellea_like.options.tool_rounds import ToolRounds
from mellea_like.sampling.setup import CHECK_HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.hooks.dispatch import Hooks
    from mellea_like.kernel.ports import Option
    from mellea_like.sampling.call import RunningCall
    from mellea_like.sampling.setup import Setup
    from mellea_like.selections.base import BaseSelection, SelectionState

_REQUEST_HOOKS = (
    HookType.GENERATION_PRE_CALL,
    HookType.GENERATION_POST_CALL,
    HookType.GENERATION_ERROR,
)


def _lazy(module: str, name: str, *arguments: Any) -> Any:
    """Import the module of an option that few programs need, and make the option."""
    return getattr(import_module(f"mellea_like.{module}"), name)(*arguments)


def _heard(hooks: Hooks, module: str, name: str, *types: HookType) -> Option | None:
    """Make an option that fires hooks, if a plugin listens to one of them."""
    if hooks.types.isdisjoint(types):
        return None
    heard: Option = _lazy(f"hooks.{module}", name, hooks)
    return heard


def _selected(setup: Setup, chooser: BaseSelection, state: SelectionState) -> Option:
    settings, inputs = setup.settings, setup.inputs
    from mellea_like.options.selected import Selected  # noqa: PLC0415

    return Selected(
        chooser,
        state,
        inputs.backend,
        lanes=settings.concurrency_budget,
        seconds=settings.iteration_timeout,
        warn_if_alike=None if inputs.temperature == 0 else settings.warn_once,
        marks=None if setup.rounds is None else setup.rounds.marks,
    )


def _stage_budgets(setup: Setup, over: set[int]) -> Option:
    budgets = [stage.budget for stage in setup.settings.stages]
    limited: Option = _lazy("options.stage_budgets", "StageBudgets", budgets, over)
    return limited


def _deliveries(setup: Setup, call: RunningCall) -> Option:
    if setup.hooks is None:
        return Deliveries(setup.on_slice, call)
    from mellea_like.hooks.call import CallHooks  # noqa: PLC0415

    settings, check = setup.settings, setup.settings.check_loop_budget
    fires = CallHooks(setup.hooks, setup.inputs, settings.concurrency_budget, check, call)
    return Deliveries(setup.on_slice, call, fires)


AROUND: tuple[Callable[[Setup, RunningCall], Option | None], ...] = (
    lambda s, c: (
        _lazy("options.call_span", "CallSpan", s.telemetry, c, s.inputs.budgets)
        if s.telemetry
        else None
    ),
    lambda s, c: _deliveries(s, c) if s.hooks or s.on_slice is not None else None,
)
"""The options around the whole call, which are made before its loop budget is known.

They may use more of the call than the other options: its cost, and how it ended.
"""

OPTIONS: tuple[Callable[[Setup], Option | None], ...] = (
    lambda s: (
        _lazy("options.given", "Given", s.inputs.action.reply)
        if isinstance(s.inputs.action, GivenReply)
        else None
    ),
    lambda s: (
        None
        if isinstance(s.inputs.action, GivenReply)
        else LoggedErrors(0 if s.rounds is None else len(s.rounds.recorded))
    ),
    lambda s: s.rounds,
    lambda s: DrawSpans(s.telemetry) if s.telemetry else None,
    lambda s: (
        _heard(s.hooks, "repair", "RepairHooks", HookType.SAMPLING_REPAIR) if s.hooks else None
    ),
    lambda s: TimeLimit(s.settings.iteration_timeout) if s.settings.iteration_timeout else None,
    lambda s: First() if s.settings.selection == "first" and s.show is None else None,
    lambda s: Ordered(s.settings.concurrency_budget) if s.settings.selection == "ordered" else None,
    lambda s: (
        _lazy("options.judges", "Judges", s.inputs, s.settings.judge_options)
        if s.selection is not None
        or s.inputs.stages
        or s.hooks
        or CheckStage.AWAITED in [r.stage for r in s.inputs.requirements]
        else None
    ),
    lambda s: (
        _selected(s, s.settings.chooser, s.selection)
        if s.settings.chooser is not None and s.selection is not None
        else None
    ),
    lambda s: GivingUp(s.settings.give_up.begin()) if s.settings.give_up else None,
    lambda s: (
        _lazy("options.learned_rates", "LearnedRates", learn)
        if (s.settings.after or s.schedule_plan) and (learn := s.learns())
        else None
    ),
    lambda s: _heard(s.hooks, "check", "CheckHooks", *CHECK_HOOKS) if s.hooks else None,
    lambda s: CheckSpans(s.telemetry) if s.telemetry else None,
    lambda s: _lazy("options.early_rejection", "TakenVerdicts") if s.streams else None,
    lambda s: ToolRounds() if s.inputs.tools is not None else None,
    lambda s: (
        _lazy("options.restarts", "Restarts", s.schedule_plan, s.running)
        if s.schedule_plan is not None and s.restarts()
        else None
    ),
    lambda s: (
        SameBug(s.settings.concurrency_budget, waits=s.schedule_plan is None)
        if s.settings.selection != "ordered"
        else None
    ),
    lambda s: SameBugInOrder() if s.settings.selection == "ordered" else None,
    lambda s: (
        _lazy("options.wrapped", "Wrapped", s.rounds.wrap) if s.rounds and s.rounds.wrap else None
    ),
    lambda s: Retries(s.settings.retry),
    lambda s: _heard(s.hooks, "request", "RequestHooks", *_REQUEST_HOOKS) if s.hooks else None,
    lambda s: RequestSpans(s.telemetry) if s.telemetry else None,
    lambda s: _lazy("options.budgets", "Budgets", s.inputs.budgets) if s.inputs.budgets else None,
    lambda s: _stage_budgets(s, s.stages.over) if s.stages else None,
    lambda s: _lazy("options.early_rejection", "WatchedReplies") if s.streams else None,
    lambda s: _lazy("options.shown", "Shown", s.show) if s.show else None,
)
