"""The configuration's ``upstreams`` and ``models``: what generates, and what a name stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mellea_like.backends.openai_address import split_url
from mellea_like.gateway.config.base import Seconds, Section, Text, Whole
from mellea_like.requirements.checks import json_schema
from mellea_like.requirements.expressions import parse_check
from mellea_like.sampling.schedules.expressions import parse_schedule

__all__ = [
    "CallBudgetConfig",
    "CallersMay",
    "LlamaUpstream",
    "MarkovUpstream",
    "ModelConfig",
    "OpenAIUpstream",
    "OptionsConfig",
    "PythonUpstream",
    "StreamingConfig",
    "UpstreamConfig",
]

MAX_ITERATIONS = 1000
"""``loop * concurrency`` at most, as in a strategy."""

OURS = (
    "api_base",
    "api_key",
    "base_url",
    "extra_body",
    "extra_headers",
    "extra_query",
    "messages",
    "model",
    "mellea_like",
    "n",
    "stream",
    "stream_options",
    "tools",
)
"""Fields that no caller's request passes on as they are, whatever the configuration says."""

PerMinute = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _at(directory_of: ValidationInfo, path: str) -> Path:
    """Find a file: relative paths start where the configuration's file is."""
    context: dict[str, Any] = directory_of.context or {}
    return Path(context.get("directory", ".")) / path


class _Upstream(Section):
    """What all upstreams have.

    Args:
        max_concurrency: requests in flight at most, those of judges included; None for no limit.
        requests_per_minute: requests a minute at most; None for no limit.
        tokens_per_minute: tokens a minute at most, prompts and replies; None for no limit.
        price: money for a million tokens of prompts, and of replies, for budgets of money.
    """

    max_concurrency: Whole | None = None
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    price: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] | None = None


class OpenAIUpstream(_Upstream):
    """A server that speaks OpenAI's chat protocol.

    Args:
        kind: ``openai``.
        model: the model's name; None for the server's first.
        base_url: where the server is; by default OpenAI's own.
        api_key: the key, as ``${NAME}`` of an environment variable.
        api_key_env: the environment variable that holds the key, instead.
        timeout: the longest silence, in seconds.
        can_judge: whether its verdicts are wanted.
        trust_env: whether the environment's proxy settings count.
        keep_alive: whether connections stay open between requests; by default but for servers on
            this machine.
    """

    kind: Literal["openai"]
    model: Text | None = None
    base_url: Text | None = None
    api_key: SecretStr | None = None
    api_key_env: Text | None = None
    timeout: Seconds = 600.0
    can_judge: bool = True
    trust_env: bool = False
    keep_alive: bool | None = None

    @property
    def judges(self) -> bool:
        """Whether it can decide requirements in words."""
        return self.can_judge

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> OpenAIUpstream:
        if self.api_key is not None and self.api_key_env is not None:
            msg = "api_key and api_key_env are two ways to say one thing: keep one of them"
            raise ValueError(msg)
        if self.base_url is None and self.model is None:
            msg = "model is missing: write model: gpt-4.1-mini (OpenAI's own server needs a name)"
            raise ValueError(msg)
        if self.base_url is not None:
            split_url(self.base_url, "base_url")
        context: dict[str, Any] = info.context or {}
        name = self.api_key_env
        if name is not None and not context.get("environ", {name: "unknown"}).get(name, "").strip():
            msg = f"api_key_env: the environment variable {name} is not set"
            raise ValueError(msg)
        return self


class LlamaUpstream(_Upstream):
    """A llama.cpp server of the gateway's own, for one GGUF file.

    Args:
        kind: ``llama``.
        gguf: the model's file, from where the configuration's file is.
        context_size: tokens of one request, prompt and reply together.
        parallel: requests that it works on at a time.
        threads: processor threads; None leaves it to llama.cpp.
        timeout: the longest silence, in seconds.
        can_judge: whether its verdicts are wanted.
    """

    kind: Literal["llama"]
    gguf: Path = Field(examples=["model.gguf"])
    context_size: Whole = 4096
    parallel: Whole = 4
    threads: Whole | None = None
    timeout: Seconds = 600.0
    can_judge: bool = True

    @property
    def judges(self) -> bool:
        """Whether it can decide requirements in words."""
        return self.can_judge

    @field_validator("gguf", mode="after")
    @classmethod
    def _find(cls, given: Path, info: ValidationInfo) -> Path:
        return _existing(_at(info, str(given)))


class MarkovUpstream(_Upstream):
    """The small Markov chain text generator in the gateway's own process; for trying things out.

    Args:
        kind: ``markov``.
        corpus: files to learn from, from where the configuration's file is.
    """

    kind: Literal["markov"]
    corpus: tuple[Path, ...] = ()

    @property
    def judges(self) -> bool:
        """Whether it can decide requirements in words: never."""
        return False

    @field_validator("corpus", mode="after")
    @classmethod
    def _find(cls, given: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        return tuple(_existing(_at(info, str(path))) for path in given)


class PythonUpstream(_Upstream):
    """Any backend that is written in Python.

    Args:
        kind: ``python``.
        backend: where it is, as ``package.module:name``: a backend, or a function without
            arguments that makes one. None where the program that embeds the gateway hands it over.
        can_judge: whether its verdicts are wanted.
    """

    kind: Literal["python"]
    backend: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    can_judge: bool = True

    @property
    def judges(self) -> bool:
        """Whether it can decide requirements in words."""
        return self.can_judge


def _check_kind(given: object) -> object:
    if not isinstance(given, dict):
        return given
    section = cast("dict[str, Any]", given)
    if "kind" not in section:
        msg = (
            "kind is missing: write kind: openai, llama or python; kind: markov, which understands"
            " nothing, is for trying things out"
        )
        raise ValueError(msg)
    if section["kind"] == "local":
        msg = "kind: local is now called markov"
        raise ValueError(msg)
    return section


UpstreamConfig: TypeAlias = Annotated[
    OpenAIUpstream | LlamaUpstream | MarkovUpstream | PythonUpstream,
    Field(discriminator="kind"),
    BeforeValidator(_check_kind),
]
"""What generates."""


class OptionsConfig(Section):
    """How a model generates where a request does not say.

    Args:
        temperature: 0 for the most likely text, higher for more variety.
        top_p: nucleus sampling.
        max_tokens: the longest reply, in tokens.
        stop: texts that end a reply.
        seed: makes draws repeatable where the upstream can.
        extra: further fields for the upstream, sent as they are.
    """

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Whole | None = None
    stop: tuple[Text, ...] = ()
    seed: Annotated[int, Field(strict=True)] | None = None
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])


class CallBudgetConfig(Section):
    """What one call may spend, judges and losers included; at least one of these.

    Args:
        requests: the most requests to the upstream.
        input_tokens: the most tokens of prompts.
        output_tokens: the most tokens of replies.
        money: the most money, in the currency of the upstream's ``price``.
    """

    requests: Whole | None = None
    input_tokens: Whole | None = None
    output_tokens: Whole | None = None
    money: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> CallBudgetConfig:
        if not self.model_dump(exclude_none=True):
            msg = "a budget needs a limit: requests, input_tokens, output_tokens or money"
            raise ValueError(msg)
        return self


class CallersMay(Section):
    """What a request may ask for besides.

    Args:
        requirements: how many requirements in words a request may add.
        checks: how many checks a request may add.
        check_seconds: processor time that its checks and its schema may take, in seconds: on all of
            its draws together.
        loop: draws in a row that a request may ask for, at most; None for the model's own number.
        concurrency: draws at a time that a request may ask for, at most; None for the model's own.
        pass_on: names of further fields that go to the upstream as they are: ``top_k``, say.
    """

    requirements: Annotated[int, Field(ge=0, strict=True)] = 8
    checks: Annotated[int, Field(ge=0, strict=True)] = 16
    check_seconds: Seconds = 2.0
    loop: Whole | None = None
    concurrency: Whole | None = None
    pass_on: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()

    @field_validator("pass_on", mode="after")
    @classmethod
    def _none_of_ours(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if ours := [name for name in names if name in OURS]:
            msg = f"{ours[0]} can't be passed on: the gateway decides it"
            raise ValueError(msg)
        return names


class ModelConfig(Section):
    """What a model's name stands for: a strategy, what replies must meet, and an upstream.

    Args:
        upstream: the name of the upstream that generates.
        upstream_model: the model to ask it for; by default the upstream's own.
        judge: the name of the upstream that decides ``requirements``; by default the same one.
        strategy: what follows a failure: ``rejection`` asks the same again, ``repair`` writes what
            failed into the prompt, and ``multi-turn`` goes on in the conversation.
        loop: draws in a row, at most.
        concurrency: draws at a time.
        schedule: when draws start, as on the command line: ``eager``, ``staggered:0.5``, ...
        checks: what must hold, as on the command line: ``words<=20``, ``contains:TEXT``, ...
        requirements: what must hold, in words; a model judges it.
        json_schema: the JSON Schema of replies, or the file that it stands in.
        tell: whether what must hold is written below the conversation's last message.
        early: reject a reply while it arrives, by the checks that can.
        give_up: stop when something that must hold fails so often that more draws won't help.
        accept_incomplete: whether a reply is an answer that the model cut off or refused, or that a
            content filter withheld: callers then see its ``finish_reason``. Else such a draw has
            failed, and callers are told why. By default it is one where nothing must hold.
        retries: how often a request is tried again after a passing fault.
        timeout: the longest a call may take, in seconds.
        iteration_timeout: the longest that one draw may take, in seconds; None for no limit.
        budget: what one call may spend; None for no limit.
        when_nothing_passed: ``error`` answers 422 with the reasons and the best failure, ``best``
            answers with the best failure and a header that says so.
        options: how it generates where a request does not say.
        callers_may: what a request may ask for besides.
    """

    upstream: Text = Field(examples=["main"])
    upstream_model: Text | None = None
    judge: Text | None = None
    strategy: Literal["rejection", "repair", "multi-turn"] = "rejection"
    loop: Whole = 3
    concurrency: Whole = 1
    schedule: Text = "eager"
    checks: tuple[Text, ...] = ()
    requirements: tuple[Text, ...] = ()
    json_schema: dict[str, Any] | None = None
    tell: bool = True
    early: bool = False
    give_up: bool = False
    accept_incomplete: bool | None = None
    retries: Annotated[int, Field(ge=0, le=100, strict=True)] = 2
    timeout: Seconds = 120.0
    iteration_timeout: Seconds | None = None
    budget: CallBudgetConfig | None = None
    when_nothing_passed: Literal["error", "best"] = "error"
    options: OptionsConfig = OptionsConfig()
    callers_may: CallersMay = CallersMay()

    @field_validator("schedule", mode="after")
    @classmethod
    def _read_schedule(cls, given: str) -> str:
        parse_schedule(given)
        return given

    @field_validator("checks", mode="after")
    @classmethod
    def _read_checks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for expression in given:
            parse_check(expression)
        return given

    @field_validator("json_schema", mode="before")
    @classmethod
    def _read_schema(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, str):
            return given
        path = _existing(_at(info, given))
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as exc:
            msg = f"{path} is no JSON: {exc}"
            raise ValueError(msg) from exc

    @field_validator("json_schema", mode="after")
    @classmethod
    def _check_schema(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if given is not None:
            json_schema(given)
        return given

    @model_validator(mode="after")
    def _check_product(self) -> ModelConfig:
        most_loop = max(self.loop, self.callers_may.loop or 0)
        most_at_once = max(self.concurrency, self.callers_may.concurrency or 0)
        if most_loop * most_at_once > MAX_ITERATIONS:
            msg = (
                f"loop times concurrency is {most_loop * most_at_once}, and {MAX_ITERATIONS} is"
                " the most: write smaller numbers"
            )
            raise ValueError(msg)
        return self


class StreamingConfig(Section):
    """How streamed replies are sent.

    Args:
        keep_alive: seconds of silence after which a comment shows that the gateway is at work.
    """

    keep_alive: Seconds = 5.0


def _existing(path: Path) -> Path:
    if not path.is_file():
        msg = f"there is no file {path}"
        raise ValueError(msg)
    return path
