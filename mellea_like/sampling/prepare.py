"""Make a call's inputs from the user's arguments; find mistakes before the first request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mellea_like.core.argument_checks import check_type, yields
from mellea_like.core.backend import Backend, Options, innermost
from mellea_like.core.conversation import (
    Action,
    Asked,
    Context,
    Conversation,
    Instruction,
    MessageLike,
    as_action,
    as_context,
)
from mellea_like.core.format import check_format
from mellea_like.core.requirement import Requirement
from mellea_like.core.spec import DECIDES, Rules, Spec
from mellea_like.core.tools import TOOL_ROUNDS
from mellea_like.requirements.merging import (
    as_backend,
    check_judge,
    check_requirements,
    merge_requirements,
)
from mellea_like.runtime.logs import warn
from mellea_like.sampling.exclusions import check_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from mellea_like.core.tools import ToolSource
    from mellea_like.hooks.plugins import Handler
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.retry import Retry
    from mellea_like.sampling.arguments import OfEachItem
    from mellea_like.sampling.escalate import ExpectedCost, Stage
    from mellea_like.schedules.base import BaseSchedule
    from mellea_like.schedules.giving_up import PerRequirement
    from mellea_like.selections.base import BaseSelection, First, Ordered
    from mellea_like.telemetry import Telemetry

__all__ = [
    "CallInputs",
    "CheckedSelection",
    "Selection",
    "Settings",
    "backends_of",
    "check_budget",
    "check_schedule",
    "check_selection",
    "check_type",
    "judges_of",
    "prepare_call",
]

NO_CONTEXT = Context()
"""The empty conversation, for a call that gets no ``context``."""

CheckedSelection: TypeAlias = "Literal['first', 'ordered'] | BaseSelection"
"""Which passing draw wins: the first recorded, the one of lowest rank, or an object's choice."""

Selection: TypeAlias = "CheckedSelection | First | Ordered"
"""A selection as users may write it."""


@dataclass(frozen=True, slots=True)
class Settings(Rules):
    """A strategy's configuration, checked; see `BaseSamplingStrategy` for most fields.

    ``handlers`` come from ``plugins``, and ``stages`` and ``after`` from `Escalate`. The schedule
    is None if it has nothing to decide.
    """

    backend: Backend | None
    judge: Backend | None
    requirements: tuple[Requirement | str, ...]
    loop_budget: int = field(metadata=DECIDES)
    concurrency_budget: int = field(metadata=DECIDES)
    max_iterations: int
    selection: CheckedSelection = field(metadata=DECIDES)
    options: Options
    judge_options: Options
    iteration_timeout: float | None
    timeout: float | None
    validate_all: bool | None = field(metadata=DECIDES)
    handlers: tuple[Handler, ...]
    retry: Retry | None
    schedule: BaseSchedule | None = field(metadata=DECIDES)
    budget: Budget | None
    give_up: PerRequirement | None = field(metadata=DECIDES)
    telemetry: Telemetry
    warned: set[str] = field(default_factory=set[str], repr=False, compare=False)
    """The warnings that were logged about this strategy, which aren't logged again."""
    stages: tuple[Stage, ...] = ()
    after: ExpectedCost | None = None
    chooser: BaseSelection | None = None
    """The selection if it is an object, which chooses among several draws that pass."""

    @property
    def backends(self) -> list[Any]:
        """All backends and judges that calls may use, perhaps with None among them."""
        judges = judges_of(self.requirements)
        for stage in self.stages:
            judges += [stage.backend, stage.judge, *judges_of(stage.requirements)]
        return [self.backend, self.judge, *judges]

    def at(self, stage: Stage) -> Settings:
        """Return the settings for a stage of an escalation."""
        return replace(
            self,
            backend=stage.backend,
            judge=self.judge if stage.judge is None else stage.judge,
            requirements=(*self.requirements, *stage.requirements),
            options=Options.of(stage.options, self.options),
            stages=(),
            after=None,
        )

    def warn_once(self, message: str) -> None:
        """Log a warning about this strategy only once, however many calls there are."""
        if message not in self.warned:
            self.warned.add(message)
            warn(message)  # The gateway hides texts that are arguments.

    def check_loop_budget(self, loop_budget: object, what: str) -> None:
        """Make sure that a loop budget is an int of at least 1, and within ``max_iterations``."""
        if isinstance(loop_budget, bool) or not isinstance(loop_budget, int) or loop_budget < 1:
            msg = f"{what} to {loop_budget!r}: it is an int of at least 1"
            raise ValueError(msg)
        if loop_budget * self.concurrency_budget > self.max_iterations:
            msg = (
                f"{what} to {loop_budget}: with concurrency_budget {self.concurrency_budget} that"
                f" is more than max_iterations, {self.max_iterations}"
            )
            raise ValueError(msg)


def check_selection(selection: Selection) -> CheckedSelection:
    """Make sure that an argument is a selection, and normalize it."""
    if isinstance(selection, str) and selection in ("first", "ordered"):
        return selection
    # Imported lazily: most programs don't need it.
    from mellea_like.selections import BaseSelection, First, Ordered  # noqa: PLC0415

    if isinstance(selection, First | Ordered):
        return "first" if isinstance(selection, First) else "ordered"
    if not isinstance(selection, BaseSelection):
        msg = (
            "selection must be 'first', 'ordered' or an object such as BestOf(score) or Vote(), not"
            f" {selection!r}"
        )
        raise (ValueError if isinstance(selection, str) else TypeError)(msg)
    return selection


def check_schedule(
    schedule: BaseSchedule | None, give_up: PerRequirement | None
) -> BaseSchedule | None:
    """Check both arguments, and return the schedule, or None if it has nothing to decide."""
    if schedule is None and give_up is None:
        return None
    # Imported lazily: most programs don't need it.
    from mellea_like.schedules import BaseSchedule, Eager, PerRequirement  # noqa: PLC0415

    kinds = BaseSchedule | None
    check_type("schedule", schedule, kinds, "a BaseSchedule, such as Staggered(0.5)")
    allowed = "a PerRequirement, such as PerRequirement()"
    check_type("give_up", give_up, PerRequirement | None, allowed)
    return None if isinstance(schedule, Eager) and not schedule.pooled else schedule


@dataclass(slots=True)
class CallInputs(Spec):
    """The inputs of one call, checked and complete; the fields are the arguments of `sample`."""

    budgets: tuple[Budget, ...] = ()
    stages: tuple[CallInputs, ...] = ()

    @property
    def temperature(self) -> float | None:
        """The temperature of the draws; None if neither the options nor the backend name one."""
        defaults = getattr(innermost(self.backend), "defaults", None)
        if self.options.temperature is None and isinstance(defaults, Options):
            return defaults.temperature
        return self.options.temperature


def prepare_call(
    settings: Settings,
    action: Asked[Any],
    requirements: Sequence[Requirement | str],
    *,
    context: Context | Sequence[MessageLike] | None = None,
    format: Any = None,
    validation_context: Context | Sequence[MessageLike] | None = None,
    on_slice: object = None,
    **arguments: Unpack[OfEachItem],
) -> CallInputs:
    """Check the arguments of a call, and fill in the rest from the strategy."""
    if on_slice is not None:
        _check_on_slice(on_slice)
    asked = as_action(action)
    before = NO_CONTEXT if context is None else as_context(context)
    seen = validation_context
    if seen is not None:
        seen = as_context(seen, "validation_context")
    wanted = check_requirements(requirements, "requirements")
    if isinstance(asked, Conversation):
        wanted = (*asked.requirements, *wanted)
        before, asked = before.add(*asked.messages[:-1]), asked.messages[-1]
    prepare = partial(_prepare, asked, wanted, before, seen, format=format, **arguments)
    if not settings.stages:
        return prepare(settings)
    if arguments.get("backend") is not None:
        check_together({"stages": "a call of Escalate", "backend": "backend=..."})
    stages: list[CallInputs] = []
    for stage in settings.stages:
        inputs = prepare(settings.at(stage))
        if stage.budget is not None:
            _check_spending(stage.budget, inputs, settings)
        stages.append(inputs)
    return replace(stages[0], stages=tuple(stages))


def _prepare(
    asked: Action[Any],
    requirements: tuple[Requirement | str, ...],
    context: Context,
    validation_context: Context | None,
    settings: Settings,
    *,
    format: Any,
    backend: Backend | None = None,
    options: Options | Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    tools: Sequence[ToolSource] = (),
    tool_choice: str | None = None,
    tool_rounds: int = TOOL_ROUNDS,
) -> CallInputs:
    own: Sequence[Requirement | str] = getattr(asked, "requirements", ())
    if isinstance(own, Iterator):
        msg = "the action's requirements must be a sequence: an iterator can be read only once"
        raise TypeError(msg)
    merged = merge_requirements(
        settings.requirements,
        check_requirements(own, "the action's requirements"),
        requirements,
    )
    if isinstance(asked, Instruction) and asked.requirements != merged:
        asked = replace(asked, requirements=merged)
    if budget is not None:
        check_budget(budget)
    if format is not None:
        check_format(format)
    generator = settings.backend
    if backend is not None or generator is None:
        generator = as_backend(backend, "backend")
    judge = generator if settings.judge is None else settings.judge
    for requirement in merged:
        if requirement.judged:
            check_judge(requirement, judge)
    toolbox = None
    if tools or tool_choice is not None or tool_rounds != TOOL_ROUNDS:
        # Imported lazily: most calls have no tools.
        from mellea_like.sampling.tools import toolbox_of  # noqa: PLC0415

        toolbox = toolbox_of(tools, tool_choice, tool_rounds, settings.telemetry)
    inputs = CallInputs(
        action=asked,
        context=context,
        requirements=merged,
        backend=generator,
        judge=judge,
        format=format,
        options=settings.options if options is None else Options.of(options, settings.options),
        validation_context=validation_context,
        budgets=tuple(b for b in (settings.budget, budget) if b is not None),
        tools=toolbox,
    )
    for spent in inputs.budgets:
        _check_spending(spent, inputs, settings)
    return inputs


def _check_on_slice(on_slice: Any) -> None:
    check_type("on_slice", on_slice, Callable, "a function of one slice")
    if yields(on_slice):
        msg = f"on_slice is a generator function, which would never run: {on_slice!r}"
        raise TypeError(msg)


def check_budget(budget: object) -> None:
    """Make sure that an argument is a budget or None."""
    if budget is not None:
        # Imported lazily: most programs don't need it.
        from mellea_like.limits.budget import Budget  # noqa: PLC0415

        check_type("budget", budget, Budget, "a Budget, such as Budget(requests=100)")


def _check_spending(budget: Budget, inputs: CallInputs, settings: Settings) -> None:
    """Make sure that a budget can tell what the requests of draws and judges may cost."""
    # Imported lazily: most programs don't need it.
    from mellea_like.limits.fallback import check_judge_budget, models_of  # noqa: PLC0415

    if getattr(inputs.backend, "generates", True):  # A check's backend doesn't.
        for model in models_of(inputs.backend):
            budget.check(inputs.options, model)
    for requirement in _judged(inputs.requirements):
        judge = inputs.judge if requirement.judge is None else requirement.judge
        whose = f"requirement {requirement.name!r}"
        check_judge_budget(budget, judge, settings.judge_options, whose)


def _judged(requirements: Sequence[Requirement]) -> Iterator[Requirement]:
    """Yield the requirements, or parts of requirements, that a judge decides."""
    for requirement in requirements:
        if requirement.parts:
            yield from _judged(requirement.parts)
        elif requirement.judged:
            yield requirement


def backends_of(
    settings: Settings,
    action: object,
    requirements: Iterable[Requirement | str],
    backend: Backend | None,
) -> list[Any]:
    """Return all backends and judges that a call may use, perhaps with None among them."""
    judges = [*judges_of(getattr(action, "requirements", ())), *judges_of(requirements)]
    return [*settings.backends, backend, *judges]


def judges_of(requirements: Iterable[Requirement | str]) -> list[Any]:
    """Return each requirement's judge, where None means the call's judge."""
    judges: list[Any] = []
    for requirement in requirements:
        if isinstance(requirement, Requirement):
            judges += [requirement.judge, *judges_of(requirement.parts)]
    return judges
