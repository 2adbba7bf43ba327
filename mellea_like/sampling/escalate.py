"""Escalation: a small model has some turns, and where they don't do, a bigger one has the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, get_args

from mellea_like.core.argument_checks import whole_number
from mellea_like.core.backend import Options
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.best_failure import best_failure, deepest_failure
from mellea_like.sampling.prepare import as_backend, check_requirements
from mellea_like.sampling.strategies import followed_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Action, Context, Message
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.hooks.plugins import Pluggable
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.retry import Retry
    from mellea_like.sampling.prepare import Plan
    from mellea_like.sampling.schedules.base import BaseSchedule
    from mellea_like.telemetry import Telemetry

__all__ = ["Carry", "Escalate", "Stage"]

T = TypeVar("T")

Carry = Literal["nothing", "best", "chat"]
"""What a stage's model sees of the failures before its turn."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The turns of one model in an escalation.

    Args:
        backend: what generates.
        turns: how many turns each subsample has with it, at least 1.
        carry: what its model sees of the failures before its turn, of this stage's or of those
            before: ``"nothing"``, the request alone; ``"best"``, below the request the failure that
            came nearest, with what was wrong with it; ``"chat"``, the conversation of the last
            failure, and a message with what was wrong.
        options: how to generate, where a call leaves it open; before the strategy's options.
        requirements: what its slices must meet besides.
        judge: decides its requirements without a validator; by default the strategy's judge, or
            else the stage's own backend.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    backend: Backend
    turns: int = 1
    carry: Carry = "nothing"
    options: Options | Mapping[str, Any] | None = None
    requirements: Sequence[Requirement | str] = ()
    judge: Backend | None = None

    def __post_init__(self) -> None:
        as_backend(self.backend, "backend")
        if self.judge is not None:
            as_backend(self.judge, "judge")
        whole_number("a stage's turns", self.turns)
        if self.carry not in get_args(Carry):
            msg = f"a stage's carry is 'nothing', 'best' or 'chat', not {self.carry!r}"
            raise ValueError(msg)
        Options.of(self.options)
        checked = check_requirements(self.requirements, "a stage's requirements")
        object.__setattr__(self, "requirements", checked)

    def repair(self, plan: Plan, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Choose what this stage's model is asked after some failures. Pure.

        Args:
            plan: what the stage does.
            history: the failed slices of the subsample, oldest first, at least one.

        Returns:
            The action to ask, and the conversation to ask it in.
        """
        if self.carry == "nothing":
            return plan.action, plan.context
        if self.carry == "best":
            best = history[best_failure(history)]
            return _Retold(plan.action, best.text, best.problems), plan.context
        told = [r if isinstance(r, str) else r.description for r in self.requirements]
        return followed_up(plan.action, history[-1], told)


class _Arguments(TypedDict, total=False):
    concurrency_budget: int
    requirements: Sequence[Requirement | str]
    judge: Backend | None
    plugins: Iterable[Pluggable]
    selection: Literal["first", "ordered"]
    options: Options | Mapping[str, Any] | None
    judge_options: Options | Mapping[str, Any] | None
    iteration_timeout: float | None
    timeout: float | None
    validate_all: bool | None
    max_iterations: int
    cancel_grace: float
    retry: Retry | None
    schedule: BaseSchedule | None
    budget: Budget | None
    accept_incomplete: bool
    telemetry: Telemetry | None


class Escalate(BaseSamplingStrategy):
    """Draws from a small model first, and goes on with bigger ones where its draws fail.

    Each subsample goes through the stages one after the other: it goes on with the next when the
    turns of this one are spent, or when its backend has a permanent error (a `FallbackBackend` is
    for outages). The depth of a slice's turn says its stage, and its ``generation.model`` who
    answered.

    Args:
        stages: the stages in order, at least one; each has its own backend.
        **arguments: as `BaseSamplingStrategy` takes them, but for ``backend``, ``loop_budget``
            (which is the sum of the stages' turns) and ``give_up``. All reasons of a failure are
            found where a stage's ``carry`` hands them on, unless ``validate_all`` is False.

    Raises:
        TypeError: an argument is of the wrong type; or the selection is an object: it would choose
            among draws of different models.
        ValueError: an argument is out of its range, or ``give_up`` is given.
    """

    def __init__(self, stages: Sequence[Stage], **arguments: Unpack[_Arguments]) -> None:
        self._stages = tuple(stages)
        if not self._stages or not all(isinstance(stage, Stage) for stage in self._stages):
            msg = f"Escalate takes a list of stages, as in [Stage(small, turns=3)], not {stages!r}"
            raise TypeError(msg)
        given: Mapping[str, Any] = arguments
        if given.get("give_up") is not None:
            msg = "give_up would end a call before the bigger model's turns: leave it out"
            raise ValueError(msg)
        if not isinstance(given.get("selection", "first"), str):
            msg = (
                "Escalate takes selection='first' or 'ordered': an object such as BestOf(score)"
                " would choose among draws of different models"
            )
            raise TypeError(msg)
        if arguments.get("validate_all") is None:
            arguments["validate_all"] = any(stage.carry != "nothing" for stage in self._stages)
        turns = sum(stage.turns for stage in self._stages)
        super().__init__(self._stages[0].backend, loop_budget=turns, **arguments)

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Choose the first slice's action and conversation again; stages choose for themselves."""
        return history[0].action, history[0].context

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        """Choose the deepest of the slices that came nearest: the biggest model's."""
        return deepest_failure(slices)


@dataclass(frozen=True, slots=True)
class _Retold(Generic[T]):
    """An action with an attempt, and what was wrong with that, below its last message."""

    action: Action[T]
    attempt: str
    problems: tuple[str, ...]

    def render(self, context: Context) -> tuple[Message, ...]:
        *earlier, last = self.action.render(context)
        wrong = "\n".join(f"- {problem}" for problem in self.problems)
        told = f"An earlier attempt:\n{self.attempt}\n\nIt was rejected. Put this right:\n{wrong}"
        return (*earlier, replace(last, content=f"{last.content}\n\n{told}"))

    def parse(self, text: str) -> T:
        return self.action.parse(text)
