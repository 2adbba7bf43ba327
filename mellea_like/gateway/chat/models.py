"""What a model's name stands for, and how a request becomes a call of its strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.core.action import Instruction
from mellea_like.core.context import Context
from mellea_like.core.generation import Generation
from mellea_like.core.options import Options
from mellea_like.core.validation import Candidate
from mellea_like.gateway.refusal import refuse
from mellea_like.requirements.checks import json_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.core.action import Action
    from mellea_like.core.message import Message
    from mellea_like.core.prices import Price
    from mellea_like.core.requirement import Requirement
    from mellea_like.gateway.chat.caller_checks import CallersChecks
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.config.models import ModelConfig
    from mellea_like.gateway.config.upstreams import Upstream
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.base import BaseSamplingStrategy

__all__ = ["CALL", "Plan", "ServedModel", "warm_up"]

CALL = "this call"
"""The name of a call's own budget, in errors."""

LONGEST_TEXT = 4000
"""Characters of a check or a requirement that comes with a request."""

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, ready to be sampled.

    ``requirements`` must hold besides those of the strategy; with ``best``, the best failure is an
    answer where nothing passed; ``retried`` says whether a request that fails is sent again, by
    retries or as another draw.
    """

    strategy: BaseSamplingStrategy
    action: Action[Any]
    context: Context
    requirements: tuple[Requirement | str, ...]
    options: Options
    budget: Budget | None
    n: int
    best: bool
    retried: bool


def warm_up() -> None:
    """Load what the first JSON Schema would load from the disk, and hold everybody up for."""
    requirement = json_schema({"$ref": "#/$defs/any", "$defs": {"any": {"pattern": "."}}})
    assert requirement.validator is not None  # noqa: S101 (a ready-made check has one)
    requirement.validator(Candidate("{}", "{}", Generation("{}"), Context(), Instruction("{}")))


@dataclass(frozen=True, slots=True)
class _Told(Instruction):
    """A caller's last message, with what must hold below it."""

    name: str | None = None

    def render(self, context: Context) -> tuple[Message, ...]:
        *before, last = Instruction.render(self, context)
        return (*before, replace(last, name=self.name))


class ServedModel:
    """One model of the configuration."""

    def __init__(self, name: str, config: ModelConfig, upstream: Upstream, judge: Upstream) -> None:
        self.name = name
        self.config = config
        self._upstream = upstream
        self._judge = judge
        # Shared by all calls: a schedule learns from one call for the next.
        self._schedule = config.make_schedule()
        self._requirements = config.make_requirements(check_only=upstream.constrains)
        self._strategy = self._make(config.loop, config.concurrency, config.timeout)

    async def plan(
        self,
        request: ChatRequest,
        callers: CallersChecks,
        *,
        max_tokens: int | None = None,
        budget: Budget | None = None,
    ) -> Plan:
        """Make a request ready to be sampled, within what its sender may have."""
        *before, last = request.conversation
        told = self.config.tell and last.role == "user"
        asked = request.mellea_like
        best = asked.when_nothing_passed or self.config.when_nothing_passed
        requirements = await self._further(request, callers)
        loop = self._within("loop", asked.loop)
        concurrency = self._within("concurrency", asked.concurrency)
        bare = not self._requirements and not requirements
        return Plan(
            strategy=self._strategy_for(loop, concurrency, asked.timeout, bare=bare),
            action=_Told(last.content, name=last.name) if told else last,
            context=Context(before),
            requirements=requirements,
            options=self._options(request, max_tokens),
            budget=self.config.make_budget(self._prices(), name=CALL, within=budget),
            n=request.n,
            best=best == "best",
            retried=loop * concurrency * (self.config.retries + 1) > 1,
        )

    # --- what draws ----------------------------------------------------------------------------

    def _strategy_for(
        self, loop: int, concurrency: int, wanted: float | None, *, bare: bool
    ) -> BaseSamplingStrategy:
        config = self.config
        timeout = config.timeout if wanted is None else wanted
        if timeout > config.timeout:
            what = f"{config.timeout:g} seconds are the most for this model"
            refuse("mellea_like.timeout", what)
        own = (config.loop, config.concurrency, config.timeout)
        if not bare and (loop, concurrency, timeout) == own:
            return self._strategy
        return self._make(loop, concurrency, timeout, bare=bare)

    def _within(self, name: Literal["loop", "concurrency"], wanted: int | None) -> int:
        own: int = getattr(self.config, name)
        most: int = getattr(self.config.overrides, name) or own
        if wanted is None:
            return own
        if wanted > most:
            refuse(f"mellea_like.{name}", f"{most} is the most for this model")
        return wanted

    def _make(
        self, loop: int, concurrency: int, timeout: float, *, bare: bool = False
    ) -> BaseSamplingStrategy:
        config = self.config.model_copy(
            update={"loop": loop, "concurrency": concurrency, "timeout": timeout}
        )
        # Where nothing must hold, a reply that was cut off is one, as with any other server.
        incomplete = bare if config.accept_incomplete is None else config.accept_incomplete
        return config.make_strategy(
            self._upstream.backend,
            judge=self._judge.backend,
            requirements=self._requirements,
            schedule=self._schedule,
            accept_incomplete=incomplete,
        )

    # --- what must hold ------------------------------------------------------------------------

    async def _further(
        self, request: ChatRequest, callers: CallersChecks
    ) -> tuple[Requirement | str, ...]:
        asked, may = request.mellea_like, self.config.overrides
        for name, given, most in (
            ("checks", asked.checks, may.checks),
            ("requirements", asked.requirements, may.requirements),
        ):
            if len(given) > most:
                what = f"{most} are the most for this model, not {len(given)}"
                refuse(f"mellea_like.{name}", what)
            for position, text in enumerate(given):
                if len(text) > LONGEST_TEXT:
                    what = f"{LONGEST_TEXT} characters are the most here"
                    refuse(f"mellea_like.{name}.{position}", what)
        if asked.requirements and not self._judge.judges:
            what = "this model's upstream can't judge; say it as checks"
            refuse("mellea_like.requirements", what)
        given_checks: dict[str, str | Mapping[str, Any]] = {
            f"mellea_like.checks.{position}": text for position, text in enumerate(asked.checks)
        }
        format = request.format
        if format is not None and format.json_schema is not None:
            given_checks["response_format.json_schema.schema"] = format.json_schema.schema_
        checks = await callers.make(
            given_checks,
            seconds=may.check_seconds,
            early=self.config.early,
            # An upstream that is told the schema by a field need not read it in the prompt.
            check_only=self._upstream.constrains,
        )
        if format is not None and format.json_schema is None:
            checks.append(self._of_schema(ANY_OBJECT))
        return (*checks, *asked.requirements)

    def _of_schema(self, schema: Mapping[str, Any]) -> Requirement:
        return json_schema(schema, early=self.config.early, check_only=self._upstream.constrains)

    # --- how to generate -----------------------------------------------------------------------

    def _options(self, request: ChatRequest, most: int | None) -> Options:
        defaults = self.config.options
        own = request.max_tokens or request.max_completion_tokens
        bounds = [limit for limit in (defaults.max_tokens, most) if limit is not None]
        given = Options(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=min(bounds, default=None) if own is None else own,
            stop=tuple(request.stop),
            seed=request.seed,
            extra={**request.passed_on, **self._told_format(request)},
        )
        return given.over(
            Options(
                model=self.config.upstream_model,
                temperature=defaults.temperature,
                top_p=defaults.top_p,
                stop=defaults.stop,
                seed=defaults.seed,
                extra=defaults.extra,
            )
        )

    def _told_format(self, request: ChatRequest) -> dict[str, Any]:
        if not self._upstream.constrains:
            return {}
        if request.format is not None:
            return {"response_format": request.format.sent}
        if self.config.json_schema is None:
            return {}
        described = {"name": "reply", "schema": self.config.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": described}}

    def _prices(self) -> dict[str, Price] | None:
        names = ((self._judge, None), (self._upstream, self.config.upstream_model))
        found = {
            model: upstream.price
            for upstream, named in names
            if upstream.price is not None
            and (model := named or getattr(upstream.backend, "model", None)) is not None
        }
        return found or None
