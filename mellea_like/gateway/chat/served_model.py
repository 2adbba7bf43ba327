"""Convert requests for a model of the configuration to calls of the model's strategy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mellea_like.core.backend import Options
from mellea_like.core.conversation import Context, Instruction, Message
from mellea_like.core.extra import NO_EXTRA
from mellea_like.core.generation import Generation
from mellea_like.core.parts import Text
from mellea_like.core.slice import Outcome
from mellea_like.core.validation import Candidate
from mellea_like.errors import HookError, LimitExceeded, SamplingFailed
from mellea_like.gateway.chat.caller_checks import CallersChecks
from mellea_like.gateway.chat.request import ChatRequest
from mellea_like.gateway.chat.tools import check_calls, tools_of
from mellea_like.gateway.config.upstreams import LastTry
from mellea_like.gateway.fields import FieldRules
from mellea_like.gateway.refusal import refuse
from mellea_like.requirements.checks import json_schema, unless_it_calls
from mellea_like.runtime.gather import gather
from mellea_like.sampling.escalate import ExpectedCost
from mellea_like.selections import Collect
from mellea_like.specification.strategy import MAX_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mellea_like.core.conversation import Action
    from mellea_like.core.prices import Price
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.caller_checks import Workers
    from mellea_like.gateway.config.gateway_config import ModelConfig, StageConfig
    from mellea_like.gateway.config.upstreams import Upstream
    from mellea_like.gateway.current_request import CurrentRequest
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.escalate import Stage

CALL = "this call"
"""The name that error messages use for the budget of a single call."""

LENGTHS = {"max_tokens", "max_completion_tokens"}
"""The two names of one field."""

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class Choice(NamedTuple):
    """A reply to show, and the result of the sampling call that produced this reply."""

    result: SamplingResult[Any]
    reply: Slice


@dataclass(frozen=True, slots=True)
class ReplyOutcome:
    """How a sampling call ended: with a result, or with an error and perhaps the result so far."""

    result: SamplingResult[Any] | None
    error: Exception | None = None

    @property
    def passed(self) -> bool:
        """Whether the call ended without an error, and enough replies passed."""
        return self.error is None and self.result is not None and self.result.success

    @property
    def status(self) -> str:
        """The outcome in one word: ``passed``, ``failed`` or ``errored``."""
        return "errored" if self.error is not None else "passed" if self.passed else "failed"

    def choices(self, most: int, *, failures: bool) -> list[Choice]:
        """Return the winners, and with ``failures`` the best failed replies, up to ``most``."""
        result = self.result
        if self.error is not None or result is None:
            return []
        chosen: list[Slice] = [result.best] if result.success else []
        if result.decision is not None:
            passed = {slice_.iteration: slice_ for slice_ in result.slices}
            chosen = [passed[winner] for winner in result.decision.winners]
        if failures and len(chosen) < most:
            failed = [s for s in result.slices if s.outcome is Outcome.FAILED]
            # The strategy's choice comes first.
            failed.sort(key=lambda s: (s is result.best, *s.merit), reverse=True)
            chosen += failed[: most - len(chosen)]
        return [Choice(result, slice_) for slice_ in chosen]


def _failed(error: Exception) -> ReplyOutcome:
    if isinstance(error, HookError | LimitExceeded | SamplingFailed):
        return ReplyOutcome(error.result, error)
    return ReplyOutcome(None, error)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request with everything that its sampling calls need."""

    strategy: BaseSamplingStrategy
    arguments: dict[str, Any]
    """The arguments of the strategy's ``sample``, except for the options."""
    options: Options
    n: int
    collects: bool
    """Whether one call collects all ``n`` replies. If not, there is one call for each reply."""
    best: bool
    """Whether to answer with the best failed reply if no reply passes."""
    retried: bool
    """Whether the gateway itself repeats a failed request to an upstream, as a retry or a draw."""
    carries: bool
    """Whether the upstream's extra fields in a reply are passed on to the caller."""
    configured: Mapping[str, str]
    """The path of the setting for each field that only the configuration sets, by field name."""

    async def stream(self, show: Callable[[str], Awaitable[object]]) -> ReplyOutcome:
        """Sample one reply, and show each piece of its text as soon as it is certain to pass."""
        async with self.strategy.stream(
            **self.arguments, options=self.options, release="prefix"
        ) as reply:
            while True:
                try:
                    piece = await anext(reply, "")
                    if not piece:
                        return ReplyOutcome(reply.result)
                except Exception as exc:  # noqa: BLE001 (whatever it is, the caller gets an answer)
                    return _failed(exc)
                if piece == reply.released:
                    with suppress(Exception):  # Raised if the reply hasn't ended, or is broken.
                        return ReplyOutcome(reply.result)  # It came in one piece after it passed.
                await show(piece)

    async def sample(self) -> list[ReplyOutcome]:
        """Sample the requested number of replies, all at the same time."""
        if self.n == 1 or self.collects:
            return [await self._sample_reply(0)]
        return await gather(range(self.n), self.n, self._sample_reply)

    async def _sample_reply(self, index: int) -> ReplyOutcome:
        seed = self.options.seed
        options = self.options.with_seed(None if seed is None else seed + index)
        try:
            return ReplyOutcome(await self.strategy.sample(**self.arguments, options=options))
        except Exception as exc:  # noqa: BLE001 (whatever it is, the caller gets an answer)
            return _failed(exc)


def warm_up() -> None:
    """Load the files that the first JSON Schema check needs, so that no request waits for them."""
    requirement = json_schema({"$ref": "#/$defs/any", "$defs": {"any": {"pattern": "."}}})
    assert requirement.validator is not None  # noqa: S101 (a ready-made check has one)
    requirement.validator(Candidate("{}", "{}", Generation("{}"), Context(), Instruction("{}")))


@dataclass(frozen=True, slots=True)
class _InformedMessages(Instruction):
    """The user's last message, with the requirements appended, and the messages after it."""

    messages: tuple[Message, ...] = ()

    def render(self, context: Context) -> tuple[Message, ...]:
        asked, *after = self.messages
        told = self.prompt.removeprefix(self.description)
        if told and isinstance(asked.content, str):
            asked = replace(asked, content=asked.content + told)
        elif told:
            asked = replace(asked, content=(*asked.content, Text(told)))
        return (*context.messages, asked, *after)


class ServedModel:
    """Turns requests for one model of the configuration into sampling calls."""

    def __init__(self, config: ModelConfig, upstreams: Mapping[str, Upstream]) -> None:
        self.config = config
        self._upstreams = [upstreams[place.upstream] for _, place in config.places]
        self._judges = [upstreams[config.judge_of(place)] for _, place in config.places]
        self._backends, self._judge_backends = (
            [LastTry(upstream.backend, config.retries) for upstream in each]
            for each in (self._upstreams, self._judges)
        )
        self._constrains = all(upstream.constrains for upstream in self._upstreams)
        # All calls share it, because a schedule learns from each call for later ones.
        self._schedule = config.make_schedule()
        self.prices = self._find_prices()
        cheaper = config.escalate_when == "cheaper"
        self._after = ExpectedCost(self.prices or {}) if cheaper else None
        self._requirements = config.make_requirements(check_only=self._constrains)
        self._strategy = lru_cache(maxsize=32)(self._make_strategy)
        may, urls = config.overrides, config.overrides.media_urls
        official = all(upstream.official for upstream in self._upstreams)
        self.rules = FieldRules(
            may.unknown_fields,
            may.fields,
            forwards=self._constrains,
            media_urls=official if urls is None else urls == "forward",
            hosted_tools=may.hosted_tools,
        )
        """The rules by which fields of requests for this model are used, forwarded or refused."""

    async def prepare(
        self, request: ChatRequest, caller: CurrentRequest, workers: Workers
    ) -> PreparedRequest:
        """Prepare a request for sampling; refuse it if it exceeds a limit of the model or key."""
        config, asked, limits = self.config, request.mellea_like, caller.limits
        for name, given, most in (
            ("n", request.n, limits.max_n),
            ("max_tokens", request.max_tokens, limits.max_tokens),
            ("max_completion_tokens", request.max_completion_tokens, limits.max_tokens),
        ):
            if given is not None and most is not None and given > most:
                refuse(name, f"must be at most {most} for this key, not {given}")
        tools = tools_of(request, early=config.early)
        context, action = self._asked(request)
        callers = CallersChecks(workers, caller.key, config.overrides.check_seconds)
        requirements = await self._further_requirements(request, callers)
        may = config.overrides
        attempts = _within("attempts", asked.attempts, config.attempts, may.attempts)
        lanes = _within("lanes", asked.lanes, config.lanes, may.lanes)
        timeout = _within("timeout", asked.timeout, config.timeout)
        bare = not self._requirements and not requirements
        if tools:
            requirements = (*requirements, await check_calls(request, callers))
        collects = request.n > 1 and config.selection.kind == "first" and not config.escalate
        strategy = self._strategy(
            attempts,
            lanes,
            timeout,
            bare=bare,
            collected=request.n if collects else None,
            most=limits.max_tokens if config.escalate else None,
            tools=bool(tools),
        )
        arguments: dict[str, Any] = {
            "action": action,
            "context": context,
            "requirements": requirements,
            "budget": config.make_budget(self.prices, name=CALL, within=caller.budget),
        }
        if tools:
            arguments |= {"tools": tools, "tool_choice": request.wanted_call}
        return PreparedRequest(
            strategy=strategy,
            arguments=arguments,
            options=self._options(request, limits.max_tokens),
            n=request.n,
            collects=collects,
            best=(asked.when_nothing_passed or config.when_nothing_passed) == "best",
            retried=attempts * lanes * (config.retries + 1) > 1 or bool(config.escalate),
            carries=self.rules.inside == "forward",
            configured=self._configured(request),
        )

    def _asked(self, request: ChatRequest) -> tuple[Context, Action[Any]]:
        """Split a conversation into the context and the action.

        With ``tell``, the requirements are appended to the user's last message.
        """
        messages = request.conversation
        at = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
        # Only tools' messages may follow. A system message at the end is sent unchanged.
        if not self.config.tell or at < 0 or messages[-1].role == "system":
            return Context(messages[:-1]), messages[-1]
        return Context(messages[:at]), _InformedMessages(messages[at].text, messages=messages[at:])

    def _make_strategy(
        self,
        attempts: int,
        lanes: int,
        timeout: float,
        *,
        bare: bool,
        collected: int | None,
        most: int | None,
        tools: bool,
    ) -> BaseSamplingStrategy:
        """Make the strategy of a call that collects ``collected`` replies, or ends with the first.

        ``bare``: there are no requirements. ``most`` limits a reply's tokens in an escalation.
        """
        config = self.config.model_copy(
            update={"attempts": attempts, "lanes": lanes, "timeout": timeout}
        )
        # Without requirements, a truncated reply is accepted, as on any other server.
        incomplete = bare if config.accept_incomplete is None else config.accept_incomplete
        # One call has the attempts of all n, and ends when n have passed.
        several: dict[str, Any] = {}
        if collected is not None:
            several = {
                "concurrency_budget": collected * lanes,
                "max_iterations": collected * MAX_ITERATIONS,
                "selection": Collect(collected, ahead=lanes),
            }
        elif config.escalate:
            several = {"after": self._after}
        return config.make_strategy(
            self._backends[0],
            self._stages(most, tools=tools),
            first=self._own_options(config, most) if config.escalate else None,
            judge=self._judge_backends[0],
            requirements=_for_texts(self._requirements, tools=tools),
            schedule=self._schedule,
            accept_incomplete=incomplete,
            **several,
        )

    def _stages(self, most: int | None, *, tools: bool) -> list[Stage]:
        """Make the stages of an escalation after the first; ``most`` limits a reply's tokens."""
        backends, judges = self._backends[1:], self._judge_backends[1:]
        stages: list[Stage] = []
        for stage, upstream, judge in zip(self.config.escalate, backends, judges, strict=True):
            made = stage.make(
                upstream,
                judge=judge,
                options=self._own_options(stage, most),
                early=self.config.early,
            )
            requirements = _for_texts(made.requirements, tools=tools)
            stages.append(replace(made, requirements=requirements))
        return stages

    def _own_options(self, place: ModelConfig | StageConfig, most: int | None) -> Options:
        """Return the default options of a model or a stage; ``most`` limits ``max_tokens``."""
        options = Options(model=place.upstream_model, **place.options.model_dump())
        options = options.over(Options(**self.config.options.model_dump()))
        return replace(options, max_tokens=_least(options.max_tokens, most))

    async def _further_requirements(
        self, request: ChatRequest, callers: CallersChecks
    ) -> tuple[Requirement | str, ...]:
        asked, may, format = request.mellea_like, self.config.overrides, request.format
        _check_texts("checks", asked.checks, may.checks)
        _check_texts("requirements", asked.requirements, may.requirements)
        if asked.requirements and not all(judge.judges for judge in self._judges):
            what = "this model's upstream can't judge: send checks instead"
            refuse("mellea_like.requirements", what)
        given: dict[str, str | Mapping[str, Any]] = {
            f"mellea_like.checks.{position}": text for position, text in enumerate(asked.checks)
        }
        schema = None if format is None else format.get("json_schema")
        if schema is not None:
            given["response_format.json_schema.schema"] = schema["schema"]
        # An upstream that gets the schema in a field doesn't need it in the prompt.
        early, check_only = self.config.early, self._constrains
        checks: list[Requirement] = []
        if given:
            checks = await callers.make(given, early=early, check_only=check_only)
        if format is not None and schema is None:
            checks.append(json_schema(ANY_OBJECT, early=early, check_only=check_only))
        return _for_texts((*checks, *asked.requirements), tools=bool(request.tools))

    def _options(self, request: ChatRequest, most: int | None) -> Options:
        given = Options(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=_least(request.max_tokens, request.max_completion_tokens),
            stop=tuple(request.stop),
            seed=request.seed,
            extra={**request.passed_on, **self._told_format(request)},
        )
        # In an escalation, each stage has its own defaults.
        return given if self.config.escalate else given.over(self._own_options(self.config, most))

    def _configured(self, request: ChatRequest) -> dict[str, str]:
        config = self.config
        options = config.options.model_dump(exclude_unset=True, exclude={"extra"})
        found = {name: f"options.{name}" for name in options}
        if "max_tokens" in found:
            found["max_completion_tokens"] = found["max_tokens"]
        found |= {name: f"options.extra.{name}" for name in config.options.extra}
        if config.json_schema is not None:
            found["response_format"] = "json_schema"
        # Fields that only requests for responses have aren't sent under their names.
        sent = {*(request.model_fields_set & ChatRequest.model_fields.keys()), *request.passed_on}
        if request.format is None or self._has_own_schema_for(request):
            sent.discard("response_format")
        else:
            sent.add("response_format")
        if sent & LENGTHS:
            sent |= LENGTHS
        return {name: place for name, place in found.items() if name not in sent}

    def _told_format(self, request: ChatRequest) -> dict[str, Any]:
        if not self._constrains:
            return {}
        if request.format is not None and not self._has_own_schema_for(request):
            return {"response_format": request.format}
        if self.config.json_schema is None:
            return {}
        described = {"name": "reply", "schema": self.config.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": described}}

    def _has_own_schema_for(self, request: ChatRequest) -> bool:
        """Return whether a request asks for any JSON object, and the model has a schema for it."""
        asked = request.format or NO_EXTRA
        return asked.get("type") == "json_object" and self.config.json_schema is not None

    def _find_prices(self) -> dict[str, Price] | None:
        places = [place for _, place in self.config.places]
        names = [
            *((judge, None) for judge in self._judges),
            *zip(self._upstreams, (place.upstream_model for place in places), strict=True),
        ]
        budget = self.config.budget
        found: dict[str, Price] = {}
        for upstream, named in names:
            model = named or getattr(upstream.backend, "model", None)
            if upstream.spec.price is not None and model is not None:
                found[model] = upstream.spec.price
            elif budget is not None and budget.money is not None:
                msg = (
                    f"upstreams.{upstream.name}: its backend doesn't name its model, so a budget of"
                    " money can't know what it costs: give it a model"
                )
                raise ValueError(msg)
        return found or None


def _least(*bounds: int | None) -> int | None:
    """Return the lowest bound, or None if all of them are None."""
    return min((bound for bound in bounds if bound is not None), default=None)


def _for_texts(
    requirements: Sequence[Requirement | str], *, tools: bool
) -> tuple[Requirement | str, ...]:
    """Return the requirements. With ``tools``, replies that call a tool are exempt from them."""
    return tuple(map(unless_it_calls, requirements) if tools else requirements)


N = TypeVar("N", int, float)


def _within(name: str, asked: N | None, own: N, most: N | None = None) -> N:
    """Return the requested value, or else the model's own; refuse a value over the limit."""
    most = most or own
    if asked is not None and asked > most:
        refuse(f"mellea_like.{name}", f"must be at most {most:g} for this model")
    return own if asked is None else asked


def _check_texts(name: str, texts: list[str], most: int) -> None:
    if len(texts) > most:
        refuse(f"mellea_like.{name}", f"must be at most {most} for this model, not {len(texts)}")
