"""Upstreams: the servers and models that generate, their prices and their limits."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mellea_like.backends.server_address import OFFICIAL_URL, split_url
from mellea_like.core.backend import Backend, is_backend
from mellea_like.core.display import error_text
from mellea_like.core.prices import Price
from mellea_like.limits.concurrency import ConcurrencyLimiter
from mellea_like.limits.rate import RateLimiter
from mellea_like.runtime.threads import run_in_thread
from mellea_like.specification.section import Name, Positive, Seconds, Section, Text, Whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from mellea_like.limits.base import Limit
    from mellea_like.limits.store import Store

__all__ = [
    "MOST_MONEY",
    "OFFICIAL_URL",
    "LlamaUpstream",
    "MarkovUpstream",
    "OpenAIUpstream",
    "ProviderUpstream",
    "PythonUpstream",
    "Upstream",
]


MOST_MONEY = 1e12
"""The highest accepted price: far above any real price, but low enough to calculate with."""


def beside(path: str | Path, info: ValidationInfo) -> Path:
    """Resolve the path of a file, which must exist.

    A relative path starts at the configuration file's folder, or else at the current folder.
    """
    context: dict[str, Any] = info.context or {}
    found = Path(context.get("directory", ".")) / path
    if not (found.is_file() or found.is_fifo()):
        msg = f"there is no file {found}"
        raise ValueError(msg)
    return found


def read_price(given: object) -> object:
    """Parse a price: two or three amounts, perhaps a currency, as a list or separated by commas."""
    as_texts = isinstance(given, str)
    if given is None or isinstance(given, Price):
        return given
    if isinstance(given, str):
        given = given.split(",")
    parts = list(cast("Sequence[Any]", given)) if isinstance(given, (list, tuple)) else []
    try:
        sent, received, *rest = parts
        cached = None
        if rest and not (isinstance(rest[0], str) and rest[0].strip().isalpha()):
            cached = float(rest.pop(0))
        if len(rest) > 1 or max(float(sent), float(received), cached or 0.0) > MOST_MONEY:
            raise ValueError
        currency = (c.strip().upper() for c in rest)
        return Price(float(sent), float(received), *currency, cached_input=cached)
    except (AttributeError, TypeError, ValueError):
        written = ("0.15, 0.60", "0.15, 0.60, 0.075", "0.15, 0.60, EUR")
        shown = (one.replace(" ", "") if as_texts else f"[{one}]" for one in written)
        msg = (
            "must be two amounts of at least 0, the prices of a million input and output tokens,"
            " optionally followed by the price of cached input and by a currency code, such as"
            f" {' or '.join(shown)}"
        )
        raise ValueError(msg) from None


class Upstream(Section):
    """The fields that all kinds of upstreams share.

    Args:
        concurrency: the most requests in flight, including those of judges; None for no limit.
        requests_per_minute: the most requests per minute; None for no limit.
        tokens_per_minute: the most tokens per minute, of prompts and replies; None for no limit.
        price: the prices of a million input tokens and of a million output tokens, for budgets of
            money. The price of a million cached input tokens and a currency's code may follow.
    """

    concurrency: Whole | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    price: Annotated[Price | None, BeforeValidator(read_price)] = None

    @property
    def judges(self) -> bool:
        """Whether the upstream can judge requirements that are written in words."""
        return bool(getattr(self, "can_judge", False))

    def make_limits(self, store: Store | None = None, name: str | None = None) -> list[Limit]:
        """Make the limits of the upstream's requests. Processes share rates through ``store``."""
        limits: list[Limit] = []
        if self.requests_per_minute is not None or self.tokens_per_minute is not None:
            limits.append(
                RateLimiter(
                    requests_per_minute=self.requests_per_minute,
                    tokens_per_minute=self.tokens_per_minute,
                    store=store,
                    name=name,
                )
            )
        if self.concurrency is not None:
            limits.append(ConcurrencyLimiter(self.concurrency))
        return limits


class OpenAIUpstream(Upstream):
    """A server that speaks OpenAI's chat protocol.

    Args:
        kind: ``openai``.
        model: the model's name; None for the first model that the server lists.
        base_url: the server's URL; the default is OpenAI's server.
        api_key: the key, written as ``${NAME}`` for an environment variable.
        api_key_env: the name of the environment variable with the key, in place of ``api_key``.
        timeout: how long the server may send nothing, in seconds.
        can_judge: whether the upstream may be used as a judge.
        trust_env: whether to use the environment's proxy settings.
        keep_alive: whether connections stay open between requests. By default they do, except to
            servers on this machine.
    """

    kind: Literal["openai"]
    model: Name | None = None
    base_url: Text | None = None
    api_key: SecretStr | None = None
    api_key_env: Text | None = None
    timeout: Seconds = 600.0
    can_judge: bool = True
    trust_env: bool = False
    keep_alive: bool | None = None

    @property
    def key(self) -> str:
        """The API key; empty if none is configured."""
        if self.api_key_env is not None:
            return os.environ.get(self.api_key_env, "").strip()
        return "" if self.api_key is None else self.api_key.get_secret_value().strip()

    @property
    def official(self) -> bool:
        """Whether it is a server of OpenAI's own, which needs a key and a model's name."""
        host = split_url(self.base_url or OFFICIAL_URL, "base_url").hostname
        return f".{host}".endswith(".api.openai.com")

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> OpenAIUpstream:
        if self.api_key is not None and self.api_key_env is not None:
            msg = "api_key and api_key_env both set the key: remove one of them"
            raise ValueError(msg)
        if self.base_url is None and self.model is None:
            msg = "model is missing: write model: gpt-4.1-mini (OpenAI's own server needs a name)"
            raise ValueError(msg)
        if self.base_url is not None:
            split_url(self.base_url, self.written("base_url"))
        from_file = "directory" in (info.context or {})
        if from_file and self.api_key_env is not None and not self.key:
            msg = f"api_key_env: the environment variable {self.api_key_env} is not set"
            raise ValueError(msg)
        return self


class LlamaUpstream(Upstream):
    """A llama.cpp server that is started for one GGUF file.

    Args:
        kind: ``llama``.
        gguf: the model's file, relative to the configuration file.
        context_size: the most tokens of one request, prompt and reply together.
        parallel: the number of requests that the server works on at a time.
        threads: the number of processor threads; with None, llama.cpp chooses it.
        timeout: how long the server may send nothing, in seconds.
        can_judge: whether the upstream may be used as a judge.
    """

    kind: Literal["llama"]
    gguf: Annotated[Path, Field(examples=["model.gguf"]), AfterValidator(beside)]
    context_size: Whole = 4096
    parallel: Whole = 4
    threads: Whole | None = None
    timeout: Seconds = 600.0
    can_judge: bool = True


class MarkovUpstream(Upstream):
    """A small text generator (a Markov chain) in this process, to try things out; it can't judge.

    Args:
        kind: ``markov``.
        corpus: the files to learn from, relative to the configuration file.
    """

    kind: Literal["markov"]
    corpus: tuple[Path, ...] = ()

    @field_validator("corpus", mode="after")
    @classmethod
    def _find(cls, given: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        return tuple(beside(path, info) for path in given)


class ProviderUpstream(Upstream):
    """A model of a provider that Pydantic AI knows: Anthropic, Google, Bedrock, Mistral and others.

    Args:
        kind: ``pydantic-ai``.
        model: the provider and the model, as in ``anthropic:claude-sonnet-5-5``. The API key is in
            the environment variable that the provider's own client reads, such as
            ``ANTHROPIC_API_KEY``.
        timeout: how long the server may send nothing, in seconds.
        can_judge: whether the upstream may be used as a judge.
    """

    kind: Literal["pydantic-ai"]
    model: Annotated[Name, Field(examples=["anthropic:claude-sonnet-5-5"])]
    timeout: Seconds = 600.0
    can_judge: bool = True

    def make(self, place: str) -> Backend:
        """Make the backend. Error messages begin with ``place``, the path of this section."""
        try:
            from mellea_like.backends.pydantic_ai import PydanticAIBackend  # noqa: PLC0415 (extra)

            return PydanticAIBackend(self.model, timeout=self.timeout, can_judge=self.can_judge)
        except (ImportError, ValueError) as exc:
            msg = f"{place}model: {exc}"
            raise ValueError(msg) from None


class PythonUpstream(Upstream):
    """Any backend that is written in Python.

    Args:
        kind: ``python``.
        backend: the name of a backend, or of a function without arguments that makes a backend,
            as ``package.module:name``. It is not needed if the program that embeds the gateway
            passes the backend.
        can_judge: whether the upstream may be used as a judge.
    """

    kind: Literal["python"]
    backend: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    can_judge: bool = True

    def find(self, place: str) -> Any:
        """Import the backend or the function that makes it. Error messages begin with ``place``."""
        if self.backend is None:
            msg = f"{place}backend is missing: write backend: package.module:name"
            raise ValueError(msg)
        module, _, path = self.backend.partition(":")
        try:
            found: Any = attrgetter(path)(import_module(module))
        except (ImportError, AttributeError) as exc:
            msg = (
                f"{place}backend: {self.backend} can't be imported ({exc}): is its directory in"
                " PYTHONPATH?"
            )
            raise ValueError(msg) from exc
        except Exception as exc:
            msg = f"{place}backend: importing {module} raised {_told(exc)}"
            raise ValueError(msg) from exc
        if not is_backend(found) and not callable(found):
            raise self._wrong(place)
        return found

    def make(self, place: str) -> Backend:
        """Import the backend. If it is a function, call it to make the backend."""
        found = self.find(place)
        try:
            made = found if is_backend(found) else found()
        except Exception as exc:
            msg = f"{place}backend: {self.backend} raised {_told(exc)}"
            raise ValueError(msg) from exc
        if not is_backend(made):
            raise self._wrong(place)
        return made

    def _wrong(self, place: str) -> ValueError:
        msg = f"{place}backend: {self.backend} is neither a backend nor a function that makes one"
        return ValueError(msg)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error_text(error)}"


UpstreamSpec: TypeAlias = Annotated[
    OpenAIUpstream | LlamaUpstream | MarkovUpstream | ProviderUpstream | PythonUpstream,
    Field(discriminator="kind"),
]
"""The specification of an upstream; the field ``kind`` selects its class."""


@asynccontextmanager
async def open_upstream(
    spec: Upstream, place: str = "", *, follow_redirects: bool = False
) -> AsyncGenerator[Backend]:
    """Open an upstream's backend, without applying the limits, and close it after the block."""
    made: Any = await run_in_thread(_make, spec, place, follow_redirects)
    match spec:
        case LlamaUpstream():
            async with made:
                yield made
        case MarkovUpstream() | PythonUpstream():
            yield made
        case _:
            try:
                yield made
            finally:
                await made.aclose()


def _make(spec: Any, place: str, follow_redirects: bool) -> Any:  # noqa: FBT001 (for a thread)
    match spec:
        case OpenAIUpstream():
            from mellea_like.backends.openai import OpenAIBackend  # noqa: PLC0415 (an extra)

            # Everything is passed explicitly, so that no environment variable overrides it.
            return OpenAIBackend(
                spec.model,
                base_url=spec.base_url or OFFICIAL_URL,
                api_key=spec.key,
                timeout=spec.timeout,
                can_judge=spec.can_judge,
                trust_env=spec.trust_env,
                keep_alive=spec.keep_alive,
                follow_redirects=follow_redirects,
            )
        case LlamaUpstream():
            from mellea_like.backends.llama import LlamaCppBackend  # noqa: PLC0415 (an extra)

            return LlamaCppBackend(
                spec.gguf,
                context_size=spec.context_size,
                concurrency=spec.parallel,
                threads=spec.threads,
                timeout=spec.timeout,
                can_judge=spec.can_judge,
            )
        case MarkovUpstream():
            from mellea_like.backends.markov import MarkovBackend  # noqa: PLC0415 (builds its model)

            return MarkovBackend(spec.corpus) if spec.corpus else MarkovBackend()
        case _:
            return spec.make(place)
