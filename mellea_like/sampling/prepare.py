"""From what a user passes to what a call needs; mistakes are found before the first request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import Backend, can_judge, is_backend
from mellea_like.core.conversation import Action, Context, Instruction, as_action
from mellea_like.core.format import check_format
from mellea_like.core.options import Options
from mellea_like.core.requirement import Requirement
from mellea_like.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.limits.budget import Budget

__all__ = [
    "Plan",
    "as_backend",
    "check_budget",
    "check_judge",
    "check_requirements",
    "merge_requirements",
    "plan_call",
]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call does, checked and complete; the fields are the arguments of `sample`."""

    action: Action[Any]
    context: Context
    requirements: tuple[Requirement, ...]
    backend: Backend
    judge: Backend
    format: Any
    options: Options
    validation_context: Context | None
    budgets: tuple[Budget, ...] = ()

    @property
    def model(self) -> str | None:
        """The model that generates, as far as the options or the backend say."""
        return self.options.model or getattr(self.backend, "model", None)


def plan_call(
    action: str | Action[Any],
    requirements: Sequence[Requirement | str],
    *,
    standing: Sequence[Requirement | str],
    context: Context | None,
    backend: Backend | None,
    judge: Backend | None,
    format: Any,
    options: Options | Mapping[str, Any] | None,
    validation_context: Context | None,
    budgets: Sequence[Budget | None],
    judge_options: Options,
) -> Plan:
    """Check the arguments of a call and complete them."""
    asked = as_action(action)
    merged = merge_requirements(
        standing,
        check_requirements(getattr(asked, "requirements", ()), "the action's requirements"),
        check_requirements(requirements, "requirements"),
    )
    if isinstance(asked, Instruction) and asked.requirements != merged:
        asked = replace(asked, requirements=merged)
    for name, given in (("context", context), ("validation_context", validation_context)):
        if given is not None and not isinstance(given, Context):
            msg = f"{name} is a Context, not {type(given).__name__}: Context([Message(...), ...])"
            raise TypeError(msg)
    if format is not None:
        check_format(format)
    generator = as_backend(backend, "backend")
    decider = generator if judge is None else as_backend(judge, "judge")
    for requirement in merged:
        check_judge(requirement, decider)
    plan = Plan(
        action=asked,
        context=Context() if context is None else context,
        requirements=merged,
        backend=generator,
        judge=decider,
        format=format,
        options=Options.of(options),
        validation_context=validation_context,
        budgets=tuple(check_budget(b) for b in budgets if b is not None),
    )
    for budget in plan.budgets:
        budget.check(plan.options, plan.model)
        for requirement in merged:
            _check_judges_budget(budget, requirement, decider, judge_options)
    return plan


def check_budget(budget: object) -> Budget:
    """Make sure that something is a budget."""
    from mellea_like.limits.budget import Budget  # noqa: PLC0415

    if not isinstance(budget, Budget):
        msg = f"budget is a Budget, as in Budget(requests=100), not {budget!r}"
        raise TypeError(msg)
    return budget


def _check_judges_budget(
    budget: Budget, requirement: Requirement, default: Backend, options: Options
) -> None:
    for part in requirement.parts:
        _check_judges_budget(budget, part, default, options)
    if requirement.parts or not requirement.judged:
        return
    judge = default if requirement.judge is None else requirement.judge
    try:
        budget.check(options, options.model or getattr(judge, "model", None))
    except ValueError as exc:
        what = f"this is about the judge of requirement {requirement.name!r}"
        exc.add_note(f"{what}: its options are the strategy's judge_options")
        raise


def as_backend(backend: object, name: str) -> Backend:
    """Make sure that something is a backend."""
    if backend is None:
        msg = f"there is no {name}: give one to the strategy, or to the call as {name}=..."
        raise ValueError(msg)
    if not is_backend(backend):
        hint = ""
        if isinstance(backend, type):
            hint = ": make an instance of it"
        elif callable(backend):
            hint = ": wrap it in FunctionBackend(...)"
        msg = f"{name} isn't a backend, for it has no generate(request): {backend!r}{hint}"
        raise TypeError(msg)
    return backend


def check_requirements(
    requirements: Sequence[Requirement | str], name: str
) -> tuple[Requirement | str, ...]:
    """Make sure that something is a sequence of requirements and texts, called by a name."""
    if isinstance(requirements, str | Requirement):
        msg = f"{name} takes a list, not a lone {type(requirements).__name__}: put it into a list"
        raise TypeError(msg)
    try:
        items = tuple(requirements)
    except TypeError:
        msg = f"{name} takes a list of Requirement objects and texts, not {requirements!r}"
        raise TypeError(msg) from None
    for item in items:
        if not isinstance(item, str | Requirement):
            hint = (
                ": wrap it, as in Requirement('what must hold', function)" if callable(item) else ""
            )
            msg = f"{name} holds Requirement objects and texts, not {item!r}{hint}"
            raise TypeError(msg)
        if isinstance(item, str) and not item.strip():
            msg = f"{name} holds an empty text: say in words what must hold"
            raise ValueError(msg)
        if isinstance(item, Requirement) and item.inline and item.validator is None:
            msg = f"requirement {item.name!r} is inline, but has no validator to run"
            raise ValueError(msg)
    return items


def merge_requirements(*sources: Iterable[Requirement | str]) -> tuple[Requirement, ...]:
    """Join requirements in order, each object and each text once; a text is left to a judge."""
    merged: dict[object, Requirement] = {}
    for source in sources:
        for item in source:
            if isinstance(item, Requirement):
                merged.setdefault(id(item), item)
            elif item not in merged:
                merged[item] = Requirement(item)
    return tuple(merged.values())


def check_judge(requirement: Requirement, default: Backend) -> None:
    """Make sure that what decides a requirement, or a part of it, can."""
    for part in requirement.parts:
        check_judge(part, default)
    if requirement.parts or requirement.validator is not None:
        return
    judge = default if requirement.judge is None else as_backend(requirement.judge, "judge")
    if not can_judge(judge):
        msg = (
            f"requirement {requirement.description!r} needs a judge, and {type(judge).__name__}"
            " can't judge: give judge=... a backend that can, or the requirement a validator"
        )
        raise RequirementError(msg, requirement=requirement.name)
