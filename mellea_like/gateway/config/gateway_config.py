"""The sections of the gateway's configuration file, which are also checked against each other."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from mellea_like.gateway.config.cross_checks import problems_between
from mellea_like.gateway.fields import FieldUse, why_not
from mellea_like.specification.section import (
    Digits,
    Positive,
    Seconds,
    Section,
    Text,
    Whole,
)
from mellea_like.specification.strategy import CallBudgetSpec, StageSpec, StrategySpec
from mellea_like.specification.upstream import UpstreamSpec

__all__ = [
    "ANONYMOUS",
    "GatewayConfig",
    "KeyBudget",
    "KeyConfig",
    "KeyLimits",
    "ModelConfig",
    "Overrides",
    "ServerConfig",
    "StageConfig",
    "StreamingConfig",
    "TokenSource",
]

ANONYMOUS = "anonymous"
"""The name under which all callers are counted and logged if no keys are configured."""

KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""The name of a key in metrics and logs."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")]
"""The name of a model or an upstream."""

Natural = Annotated[int, Field(ge=0, strict=True), Digits]
"""A whole number, at least 0."""

Period: TypeAlias = Literal["hour", "day", "week", "month"]
"""The period after which a key's budget starts again."""

FieldName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""The name of a request's field."""


class Overrides(Section):
    """Limits on what a request may ask for beyond its model's settings.

    Args:
        requirements: the most requirements in words that a request may add.
        checks: the most checks that a request may add.
        check_seconds: the processor time, in seconds, that a request's checks and schema may take
            for all of its draws together.
        attempts: the most draws in a row that a request may ask for; None for the model's own
            number.
        lanes: the most draws at a time that a request may ask for; None for the model's own number.
        fields: exceptions to the gateway's table of request fields, by name. ``forward`` sends the
            field to the upstream unchanged, ``drop`` ignores it, and ``refuse`` answers 400.
        unknown_fields: what to do with fields that are not in the table, including those inside
            messages, parts, tool calls and tools. None forwards them to upstreams of kind
            ``openai`` and ``llama``. For other kinds, None refuses them at the top level of a
            request, and drops them inside messages, parts, tool calls and tools. If unknown fields
            of a request are forwarded, those of its reply are returned, too. ``/v1/responses``
            never forwards unknown fields: it drops them, unless this is ``refuse``.
        media_urls: whether a web URL may be given for an image. The upstream fetches it; the
            gateway never does. None allows it only for OpenAI's own servers.
        hosted_tools: what to do with tools that OpenAI's servers run, such as ``web_search``, in a
            request to ``/v1/responses``. ``drop`` leaves out the tools and the items about them,
            and ``refuse`` answers 400.
    """

    requirements: Natural = 8
    checks: Natural = 16
    check_seconds: Seconds = 2.0
    attempts: Whole | None = None
    lanes: Whole | None = None
    fields: dict[FieldName, FieldUse] = Field(default_factory=dict[str, FieldUse])
    unknown_fields: FieldUse | None = None
    media_urls: Literal["forward", "refuse"] | None = None
    hosted_tools: Literal["drop", "refuse"] = "refuse"

    @field_validator("fields", mode="after")
    @classmethod
    def _can_be_so(cls, fields: dict[str, FieldUse]) -> dict[str, FieldUse]:
        for name, use in fields.items():
            if why := why_not(name, use):
                msg = f"{name} can't be set to {use}: {why}"
                raise ValueError(msg)
        return fields


class StageConfig(StageSpec):
    """A further stage of a model: a bigger model, and how it is used.

    Args:
        upstream: the name of the upstream that generates.
        upstream_model: the model to request from it; the default is the upstream's own model.
        judge: the name of the upstream that judges ``requirements``. The default is the model's
            judge, or else this stage's upstream.
    """

    upstream: Text = Field(examples=["big"])
    upstream_model: Text | None = None
    judge: Text | None = None


class ModelConfig(StrategySpec):
    """A model that callers may ask for: a strategy, the requirements for replies, and an upstream.

    Args:
        upstream: the name of the upstream that generates.
        upstream_model: the model to request from it; the default is the upstream's own model.
        judge: the name of the upstream that judges ``requirements``; the default is ``upstream``.
        escalate: the bigger models that continue when draws fail, each with its ``upstream``.
        tell: whether to append the requirements to the user's last message. A conversation that
            ends with a system message is never changed.
        timeout: how long a call may take, in seconds.
        when_nothing_passed: ``error`` answers 422 with the reasons and the best failure; ``best``
            answers with the best failure and a header that says so.
        overrides: limits on what a request may ask for beyond these settings.
    """

    upstream: Text = Field(examples=["main"])
    upstream_model: Text | None = None
    judge: Text | None = None
    escalate: tuple[StageConfig, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    tell: bool = True
    timeout: Seconds = 120.0  # pyright: ignore[reportIncompatibleVariableOverride] (frozen)
    when_nothing_passed: Literal["error", "best"] = "error"
    overrides: Overrides = Overrides()

    @property
    def places(self) -> list[tuple[tuple[str | int, ...], ModelConfig | StageConfig]]:
        """This model and its further stages, each as a pair of its path and its configuration."""
        further = [(("escalate", n), stage) for n, stage in enumerate(self.escalate)]
        return [((), self), *further]

    def judge_of(self, place: ModelConfig | StageConfig) -> str:
        """Return the name of the upstream that judges the requirements of a model or a stage."""
        return place.judge or self.judge or place.upstream

    def _most(self) -> tuple[int, int]:
        most = self.overrides
        return max(self.attempts, most.attempts or 0), max(self.lanes, most.lanes or 0)


class StreamingConfig(Section):
    """How streamed replies are sent.

    Args:
        keep_alive: the seconds of silence after which the gateway sends a comment to show that it
            is still working.
        release: when to send text. ``passed`` waits until the whole reply has passed. ``prefix``
            sends each part as soon as it is certain to pass, if every check can judge the
            beginning of a reply.
    """

    keep_alive: Seconds = 5.0
    release: Literal["passed", "prefix"] = "passed"


class KeyBudget(CallBudgetSpec):
    """The budget of a key. Judges and losing draws count, too. At least one limit is required.

    The amount spent is kept in the gateway's store under the key's name and the period, so it
    survives a restart.

    Args:
        requests: the most requests to upstreams.
        caller_requests: the most requests from callers, no matter how many requests to upstreams
            each of them needs.
        input_tokens: the most tokens of prompts.
        output_tokens: the most tokens of replies.
        money: the most money, in the currency of the upstreams' prices.
        cancelled: how to charge a cancelled request: an ``estimate``, the amount ``reserved`` for
            it, or the amount ``received``; see `Budget`.
        per: the period after which the budget starts again: ``hour``, ``day``, ``week`` or
            ``month`` (in UTC; weeks begin on Mondays). None for a budget that never starts
            again.
    """

    caller_requests: Whole | None = None
    per: Period | None = None

    @property
    def of_upstreams(self) -> bool:
        """Whether the budget has a limit other than ``caller_requests``."""
        return super()._limited()

    def _limited(self) -> bool:
        return super()._limited() or self.caller_requests is not None


class KeyLimits(Section):
    """The limits of one key.

    Args:
        max_n: the highest ``n`` of a request.
        max_tokens: the highest ``max_tokens`` of a request, and the default if it has none. None
            sets no limit, and ``max_tokens`` is then sent only if the request or the model has
            one. A budget of output tokens or money needs this limit, or one for each model.
        concurrency: the most requests of the key that are worked on at a time.
        queue: how many more requests may wait for their turn; 0 for none.
        queue_seconds: how long a request may wait for its turn, in seconds.
        requests_per_minute: the most requests per minute, which may all come at the same moment;
            None for no limit.
        tokens_per_minute: the most tokens per minute, for prompts and replies of all draws and
            judges; None for no limit. A request is first charged its ``max_tokens``. When the
            request ends, its real cost replaces this amount. While the limit is exceeded, requests
            are refused.
        budget: the most that the key may spend, in total or per period; None for no limit.
        models: the models that the key may use and see; None for all.
    """

    max_n: Whole = 4
    max_tokens: Whole | None = None
    concurrency: Whole = 128
    queue: Natural = 384
    queue_seconds: Seconds = 60.0
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    budget: KeyBudget | None = None
    models: tuple[Name, ...] | None = Field(default=None, min_length=1)

    def allows(self, model: str) -> bool:
        """Return whether the key may use a model."""
        return self.models is None or model in self.models


class TokenSource(Section):
    """The source of a token: either ``env`` or ``sha256``.

    Args:
        env: the environment variable that holds the token.
        sha256: the token's SHA-256 in hexadecimal digits, so that the file contains no secret.
    """

    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.env is None) == (self.sha256 is None):
            msg = "a key needs either env (the name of a variable) or sha256 (of its token)"
            raise ValueError(msg)
        return self


class KeyConfig(TokenSource, KeyLimits):
    """A token for access to the gateway, and its limits. ``env`` or ``sha256`` is required."""


class ServerConfig(Section):
    """The address that the gateway listens on, and its limits.

    Args:
        host: the address to listen on. Any address other than the loopback needs a key.
        port: the port; 0 chooses a free one.
        allowed_hosts: further values of the ``Host`` header, without a port, that are accepted if
            no keys are configured. The loopback's names and ``host`` are always accepted.
        max_body: the longest body, in bytes.
        max_bodies: the most bytes that the bodies of all requests under way may take together in
            each worker, at least ``max_body``. Beyond it, requests are answered with 503.
        max_depth: how deep JSON may be nested.
        max_header_bytes: the longest request line with its headers, in bytes.
        max_connections: the most open connections. When there are this many, or when half of this
            limit is taken by connections that have shown no key, a new connection replaces the
            oldest one without a key. If there is no such connection, the new one is closed.
        header_seconds: how long the request line and the headers may take to arrive, in seconds.
        body_seconds: how long the body may take to arrive, in seconds.
        keep_alive_seconds: how long a connection stays open between two requests, in seconds.
        stop_seconds: how long running requests may take to finish when the server stops, in
            seconds.
        limits: the limits of callers if no keys are configured.
        metrics_key: a token that gives access to ``/metrics`` and nothing else. If there is one,
            no other key gives access to ``/metrics``.
        log_upstream_errors: whether to log upstreams' errors in their own words. They may repeat
            parts of prompts and replies, so use this only while looking for a fault.
    """

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: Annotated[int, Field(ge=0, le=65_535, strict=True), Digits] = 8080
    allowed_hosts: tuple[str, ...] = ()
    max_body: Whole = 32 * 2**20
    max_bodies: Whole = 256 * 2**20
    max_depth: Annotated[int, Field(ge=4, le=200, strict=True), Digits] = 32
    max_header_bytes: Annotated[int, Field(ge=1024, le=2**20, strict=True), Digits] = 16 * 2**10
    max_connections: Whole = 512
    header_seconds: Seconds = 10.0
    body_seconds: Seconds = 30.0
    keep_alive_seconds: Seconds = 5.0
    stop_seconds: Seconds = 10.0
    limits: KeyLimits = KeyLimits()
    metrics_key: TokenSource | None = None
    log_upstream_errors: bool = False

    @model_validator(mode="after")
    def _room_for_one(self) -> Self:
        if self.max_bodies < self.max_body:
            msg = (
                f"max_bodies is smaller than max_body, so a body of {self.max_body:,} bytes would"
                " never be accepted: write a larger max_bodies, or a smaller max_body"
            )
            raise ValueError(msg)
        return self


class GatewayConfig(Section):
    """A gateway's whole configuration, made by `read_config` or in Python.

    Args:
        upstreams: the servers and libraries that generate, by name.
        models: the models that callers may ask for, by name.
        streaming: how streamed replies are sent.
        server: the address that the gateway listens on, and its limits.
        keys: the keys of callers, by name. Without keys, the host must be the loopback, and no
            caller needs a token.
        store: ``memory``, or the SQLite file in which ``mellea-like serve`` records the spending of
            keys, as a path relative to the configuration file. The default is a file in the same
            directory as the configuration file, with the same name but the ending ``.spent.db``.
            The SQLite file is created when it is needed.
    """

    upstreams: dict[Name, UpstreamSpec] = Field(
        min_length=1, examples=["{main: {kind: openai, model: gpt-4.1-mini}}"]
    )
    models: dict[Name, ModelConfig] = Field(min_length=1, examples=["{mine: {upstream: main}}"])
    streaming: StreamingConfig = StreamingConfig()
    server: ServerConfig = ServerConfig()
    keys: dict[KeyName, KeyConfig] = Field(default_factory=dict[str, KeyConfig])
    store: Text | None = None

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> GatewayConfig:
        # With a context, `read_config` does this, and names lines.
        if info.context is None and (problems := problems_between(self)):
            told = "\n".join(f"{'.'.join(map(str, place))}: {what}" for place, what in problems)
            # With a ValueError, pydantic would report the whole input, and so API keys.
            error = PydanticCustomError("misplaced", "{told}", {"told": told})
            found: InitErrorDetails = {"type": error, "input": None}
            raise ValidationError.from_exception_data(type(self).__name__, [found], hide_input=True)
        return self
