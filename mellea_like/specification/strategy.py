"""Strategies: how replies are drawn, what they must meet, and what a call may cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from mellea_like.limits.budget import Budget, BudgetLimits, Cancelled
from mellea_like.limits.retry import Retry
from mellea_like.requirements.checks import json_schema
from mellea_like.requirements.expressions import parse_check
from mellea_like.sampling import check_together
from mellea_like.sampling.escalate import Carry, Escalate, Stage
from mellea_like.sampling.strategies import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)
from mellea_like.schedules.built_in import Eager
from mellea_like.schedules.expressions import parse_schedule
from mellea_like.schedules.giving_up import PerRequirement
from mellea_like.specification.section import Digits, Name, Positive, Section, Text, Whole
from mellea_like.specification.selection_expressions import SelectionSpec, parse_selection
from mellea_like.specification.upstream import beside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.prices import Price
    from mellea_like.core.requirement import Requirement
    from mellea_like.limits.store import Store
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.schedules.base import BaseSchedule

__all__ = [
    "MAX_ITERATIONS",
    "STRATEGIES",
    "BudgetSpec",
    "CallBudgetSpec",
    "OptionsSpec",
    "StageSpec",
    "StrategyName",
    "StrategySpec",
]

MAX_ITERATIONS = 1000
"""The most draws of one call, ``attempts * lanes``. Strategies have the same limit by default."""

VERDICT_TOKENS = 512
"""The number of tokens that a budget assumes for a reply without a limit, such as a judge's."""

T = TypeVar("T")

StrategyName: TypeAlias = Literal["rejection", "repair", "multi-turn"]

STRATEGIES: Mapping[StrategyName, type[BaseSamplingStrategy]] = {
    "rejection": RejectionSamplingStrategy,
    "repair": RepairTemplateStrategy,
    "multi-turn": MultiTurnStrategy,
}


CARRIES: Mapping[StrategyName, Carry] = {
    "rejection": "nothing",
    "repair": "best",
    "multi-turn": "chat",
}
"""Maps a strategy to the failures that an escalation's first model sees, as in ``carry``."""


def _checked_by(read: Callable[[Any], object]) -> AfterValidator:
    """Make a validator that leaves a value as it is, but passes on the errors of ``read``."""

    def check(given: T) -> T:
        read(given)
        return given

    return AfterValidator(check)


Check: TypeAlias = Annotated[Text, _checked_by(parse_check)]
"""A check in the grammar of the command line, such as ``words<=20``."""

JSONSchema: TypeAlias = Annotated[dict[str, Any], _checked_by(json_schema)]


class OptionsSpec(Section):
    """Default options for generating, which a request may override.

    Args:
        temperature: 0 for the most likely text, higher for more variety.
        top_p: nucleus sampling.
        max_tokens: the longest reply, in tokens.
        stop: texts that end a reply.
        seed: makes draws repeatable, if the upstream supports it.
        extra: further fields, which are sent to the upstream unchanged.
    """

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Whole | None = None
    stop: tuple[Text, ...] = ()
    seed: Annotated[int, Field(strict=True), Digits] | None = None
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])


class BudgetSpec(Section):
    """A budget. At least one limit is required.

    Args:
        requests: the most requests to the upstream.
        input_tokens: the most tokens of all prompts.
        output_tokens: the most tokens of all replies.
        cancelled: how to charge a cancelled request: an ``estimate``, the amount ``reserved`` for
            it, or the amount ``received``; see `Budget`.
    """

    requests: Whole | None = None
    input_tokens: Whole | None = None
    output_tokens: Whole | None = None
    cancelled: Cancelled | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> BudgetSpec:
        if not self._limited():
            *names, last = (
                name for name in BudgetLimits._fields if name in type(self).model_fields
            )
            msg = f"a budget needs a limit: {', '.join(names)} or {last}"
            raise ValueError(msg)
        return self

    def _limited(self) -> bool:
        return bool(self._limits())

    def _limits(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, include=set(BudgetLimits._fields))

    def make(
        self,
        *,
        name: str,
        prices: Mapping[str, Price] | None = None,
        within: Budget | None = None,
        store: Store | None = None,
    ) -> Budget:
        """Make the budget. Errors show its ``name``. The budget ``within`` is charged, too."""
        return Budget(
            **self._limits(),
            prices=prices,
            assume_output_tokens=VERDICT_TOKENS,
            cancelled=self.cancelled,
            within=within,
            name=name,
            store=store,
        )


class CallBudgetSpec(BudgetSpec):
    """The budget of one call, including judges and losing draws. At least one limit is required.

    Args:
        requests: the most requests to the upstream.
        input_tokens: the most tokens of all prompts.
        output_tokens: the most tokens of all replies.
        money: the most money, in the currency of the upstream's ``price``.
        cancelled: how to charge a cancelled request: an ``estimate``, the amount ``reserved`` for
            it, or the amount ``received``; see `Budget`.
    """

    money: Positive | None = None


class StageSpec(Section):
    """A further stage of an escalation: a bigger model, used when the model before has failed.

    Args:
        attempts: the most draws in a row.
        carry: which failures the model sees: ``nothing``, ``best`` (the best failure and its
            problems) or ``chat`` (the whole conversation).
        checks: further checks, as in a strategy.
        requirements: further requirements, in words.
        options: options for generating, unless a request sets them. They override the strategy's.
    """

    attempts: Whole = 1
    carry: Carry = "nothing"
    checks: tuple[Check, ...] = ()
    requirements: tuple[Name, ...] = ()
    options: OptionsSpec = OptionsSpec()

    def make(
        self, backend: Backend, *, judge: Backend | None, options: Options, early: bool
    ) -> Stage:
        """Make the stage. ``options`` are complete, and replace the section's own options."""
        checks = [parse_check(expression, early=early) for expression in self.checks]
        return Stage(
            backend,
            self.attempts,
            self.carry,
            options=options,
            requirements=(*checks, *self.requirements),
            judge=judge,
        )


class StrategySpec(Section):
    """How replies are drawn, their requirements, and the budget of a call.

    Args:
        strategy: what to do after a failure: ``rejection`` asks the same again, ``repair`` writes
            the failed requirements into the prompt, and ``multi-turn`` continues the conversation.
        attempts: the most draws in a row.
        lanes: the number of draws at a time.
        schedule: when draws start, as on the command line: ``eager``, ``staggered:0.5``, ...
        select: which of the passing replies wins, as on the command line: ``first``, ``ordered``,
            ``best:SCORE``, ``vote``, ``vote:KEY``, ``collect:K``, ``collect:K:KEY``, ``consensus``
            or ``tournament``. A score is ``length``, ``words`` or ``json:PATH`` (a number in the
            reply's JSON, as in ``json:offer.price``); with a ``-`` in front, the lowest wins. The
            scores ``judge`` and ``judge:RUBRIC`` are the judge's, from 1 to 10. A key is ``text``,
            ``lower`` or ``json:PATH``. Without a key, a vote counts the reply's value, and collect
            also keeps equal replies.
        n: the number of replies that must pass before ``best``, ``vote``, ``consensus`` or
            ``tournament`` decides. The default is the number of draws, but at most 16 for a vote,
            and 8 for ``consensus`` and ``tournament``.
        checks: the checks, as on the command line: ``words<=20``, ``contains:TEXT``, ...
        requirements: requirements in words, which a model judges.
        json_schema: the JSON Schema of replies, or the path of its file.
        early: whether to reject replies while they arrive, if the checks can judge the beginning
            of a reply.
        give_up: whether to stop when a requirement fails so often that more draws won't help.
        accept_incomplete: whether to accept a reply that was cut off, refused, withheld by a
            content filter, or is empty. If not, such a draw fails. By default, only the gateway
            accepts such replies, and only if there are no requirements.
        retries: the most times that a request is sent again after transient errors.
        timeout: how long a call may take, in seconds.
        iteration_timeout: how long one draw may take, in seconds; None for no limit.
        budget: the limits of one call; None for no limit.
        options: options for generating, unless a request sets them.
        judge_options: options for judges. The default is temperature 0, unless the judge's model
            refuses that. ``temperature: null`` uses the server's default.
        escalate: bigger models, each of which takes over if the draws of the model before have
            failed. ``attempts`` is then the number of draws of the first model. With ``repair``,
            the first model sees the best failure.
        escalate_when: when the next model takes over. With ``spent``, it waits until the model
            before it has used up its draws. With ``cheaper``, it takes over as soon as a passing
            reply is expected to cost less with the next model; for this, the models need prices.
    """

    strategy: StrategyName = "rejection"
    attempts: Whole = 3
    lanes: Whole = 1
    schedule: Annotated[Text, _checked_by(parse_schedule)] = "eager"
    select: Annotated[Text, _checked_by(parse_selection)] = "first"
    n: Whole | None = None
    checks: tuple[Check, ...] = ()
    requirements: tuple[Name, ...] = ()
    json_schema: JSONSchema | None = None
    early: bool = False
    give_up: bool = False
    accept_incomplete: bool | None = None
    retries: Annotated[int, Field(ge=0, le=100, strict=True), Digits] = 2
    timeout: Positive | None = None
    iteration_timeout: Positive | None = None
    budget: CallBudgetSpec | None = None
    options: OptionsSpec = OptionsSpec()
    judge_options: OptionsSpec = OptionsSpec()
    escalate: tuple[StageSpec, ...] = ()
    escalate_when: Literal["spent", "cheaper"] = "spent"

    @field_validator("n", mode="after")
    @classmethod
    def _check_n(cls, given: int | None, info: ValidationInfo) -> int | None:
        if "select" in info.data:
            parse_selection(info.data["select"], given)
        return given

    @field_validator("json_schema", mode="before")
    @classmethod
    def _read_schema(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, str):
            return given
        path = beside(given, info)
        try:
            schema: object = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as exc:
            msg = f"{path} isn't JSON: {exc}"
            raise ValueError(msg) from exc
        if not isinstance(schema, dict):
            msg = f"{path} isn't a JSON Schema: it isn't a JSON object"
            raise ValueError(msg)  # noqa: TRY004 (of a file, not of an argument)
        return cast("dict[str, Any]", schema)

    @model_validator(mode="after")
    def _check_product(self) -> StrategySpec:
        attempts, lanes = self._most()
        further = sum(stage.attempts for stage in self.escalate)
        if (attempts + further) * lanes > MAX_ITERATIONS:
            more = f" and {further} more attempts" if further else ""
            msg = (
                f"{self.written('attempts')} {attempts}{more} times {self.written('lanes')} {lanes}"
                f" is more than {MAX_ITERATIONS} draws, the most that one call may make: use"
                " smaller numbers"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_selection(self) -> StrategySpec:
        wanted, draws = self.selection.n, self.attempts * self.lanes
        if wanted is not None and wanted > draws:
            msg = (
                f"{self.select!r} needs {wanted} replies that pass, but"
                f" {self.written('attempts')} {self.attempts} times"
                f" {self.written('lanes')} {self.lanes} makes only {draws}: use larger"
                f" numbers, or a smaller {'K' if self.n is None else self.written('n')}"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_together(self) -> StrategySpec:
        if not self.escalate and self.escalate_when != "spent":
            msg = (
                f"{self.written('escalate_when')} says when a bigger model takes over: name the"
                f" model with {self.written('escalate')}"
            )
            raise ValueError(msg)
        check_together(self.features)
        return self

    @property
    def features(self) -> dict[str, str]:
        """Maps each feature in use, as named in `EXCLUSIONS`, to the setting that uses it."""
        schedule = self.make_schedule()
        found = dict.fromkeys(self.selection.features, self.written("select", self.select))
        scheduled = self.written("schedule", self.schedule)
        for feature, used, written in (
            ("schedule", not isinstance(schedule, Eager) or schedule.pooled, scheduled),
            ("timed", schedule.timing_dependent, scheduled),
            ("pooled", schedule.pooled, scheduled),
            ("give_up", self.give_up, self.written("give_up")),
            ("lanes", self.lanes > 1, self.written("lanes", self.lanes)),
            ("stages", self.escalate, self.written("escalate")),
            ("cheaper", self.escalate_when == "cheaper", self.written("escalate_when", "cheaper")),
        ):
            if used:
                found[feature] = written
        return found

    @property
    def all_attempts(self) -> int:
        """The most draws in a row, over all models."""
        return self.attempts + sum(stage.attempts for stage in self.escalate)

    @property
    def selection(self) -> SelectionSpec:
        """The selection that chooses the winner."""
        return parse_selection(self.select, self.n)

    def _most(self) -> tuple[int, int]:
        return self.attempts, self.lanes

    def make_schedule(self) -> BaseSchedule:
        """Make the schedule, which learns from all calls in which it is used."""
        return parse_schedule(self.schedule)

    def make_requirements(
        self, *, check_only: bool = False, schema_name: str = "json_schema"
    ) -> tuple[Requirement | str, ...]:
        """Make the requirements: the checks, the JSON Schema, and the requirements in words."""
        made = [parse_check(expression, early=self.early) for expression in self.checks]
        if (schema := self.json_schema) is not None:
            made.append(
                json_schema(schema, name=schema_name, early=self.early, check_only=check_only)
            )
        return (*made, *self.requirements)

    def make_budget(
        self,
        prices: Mapping[str, Price] | None,
        *,
        name: str,
        within: Budget | None = None,
        store: Store | None = None,
    ) -> Budget | None:
        """Make the budget of a call. Whatever is charged to it is also charged to ``within``.

        If the section has no ``budget``, return ``within`` itself.
        """
        if self.budget is None:
            return within
        return self.budget.make(name=name, prices=prices, within=within, store=store)

    def make_strategy(
        self,
        backend: Backend,
        stages: Sequence[Stage] = (),
        *,
        first: Options | None = None,
        **settings: Any,
    ) -> BaseSamplingStrategy:
        """Make the strategy; ``settings`` are further arguments of its class.

        ``stages`` are the stages made from ``escalate``. The first model's stage comes before
        them, and ``first`` has its options.
        """
        # Refusals with a 429 are counted separately.
        refusals = max(self.retries + 1, Retry().rate_limit_attempts)
        retry = Retry(self.retries + 1, rate_limit_attempts=refusals) if self.retries else None
        given: dict[str, Any] = {
            "loop_budget": self.attempts,
            "concurrency_budget": self.lanes,
            "timeout": self.timeout,
            "iteration_timeout": self.iteration_timeout,
            "retry": retry,
            "schedule": self.make_schedule(),
            "selection": self.selection.make(
                settings.get("judge") or backend, self.attempts * self.lanes
            ),
            "give_up": PerRequirement() if self.give_up else None,
            "accept_incomplete": bool(self.accept_incomplete),
            "judge_options": self.judge_options.model_dump(exclude_unset=True),
        }
        given |= settings
        if not stages:
            return STRATEGIES[self.strategy](backend, **given)
        given.pop("give_up")
        own = Stage(backend, given.pop("loop_budget"), CARRIES[self.strategy], first)
        return Escalate([own, *stages], **given)
