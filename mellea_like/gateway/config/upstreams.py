"""The upstreams of a configuration: opened once, shared by all models, closed at the end."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from mellea_like.core.backend import can_judge, is_backend
from mellea_like.core.prices import Price
from mellea_like.gateway.chat.redaction import Discreet
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.concurrency import ConcurrencyLimiter
from mellea_like.limits.rate import RateLimiter
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from mellea_like.core.backend import Backend
    from mellea_like.gateway.config.models import (
        LlamaUpstream,
        MarkovUpstream,
        OpenAIUpstream,
        PythonUpstream,
        UpstreamConfig,
    )
    from mellea_like.limits.base import Limit

__all__ = ["Upstream", "check_upstreams", "open_upstreams"]

OPENAI = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One upstream, ready to be asked.

    Args:
        name: its name in the configuration.
        backend: what generates, within its limits.
        judges: whether it can decide requirements in words.
        constrains: whether it is told a reply's JSON Schema by ``response_format``.
        price: what its tokens cost, or None.
    """

    name: str
    backend: Backend
    judges: bool
    constrains: bool
    price: Price | None


def check_upstreams(configs: Mapping[str, UpstreamConfig]) -> None:
    """Look whether upstreams could be opened, as far as that shows without opening any.

    Args:
        configs: the configuration's, by name.

    Raises:
        ValueError: a backend can't be imported, or the key of OpenAI's own server is missing.
    """
    for name, config in configs.items():
        if config.kind == "python":
            _import(name, config)
        elif config.kind == "openai":
            _check_key(name, config)


@asynccontextmanager
async def open_upstreams(
    configs: Mapping[str, UpstreamConfig], backends: Mapping[str, Backend] | None = None
) -> AsyncGenerator[dict[str, Upstream]]:
    """Open all upstreams.

    Args:
        configs: the configuration's, by name.
        backends: backends to use in place of some of them, by name; they stay open.

    Yields:
        The upstreams, by name.

    Raises:
        ImportError: an upstream's extra is not installed.
        OSError: a file of an upstream can't be read.
        ValueError: an upstream's backend is none, or was not handed over.
        BackendError: a llama.cpp server did not start.
    """
    given = backends or {}
    async with AsyncExitStack() as stack:
        opened: dict[str, Upstream] = {}
        for name, config in configs.items():
            backend = given[name] if name in given else await _open(name, config, stack)
            limits = _limits(config)
            discreet: Backend = Discreet(backend, name)
            opened[name] = Upstream(
                name,
                LimitedBackend(discreet, *limits) if limits else discreet,
                config.judges and can_judge(backend),
                config.kind in {"openai", "llama"},
                None if config.price is None else Price(*config.price),
            )
        yield opened


async def _open(name: str, config: UpstreamConfig, stack: AsyncExitStack) -> Backend:
    match config.kind:
        case "openai":
            backend = await run_in_thread(_openai, config)
            stack.push_async_callback(backend.aclose)
            return cast("Backend", backend)
        case "llama":
            return cast(
                "Backend", await stack.enter_async_context(await run_in_thread(_llama, config))
            )
        case "markov":
            return await run_in_thread(_markov, config)
        case _:
            return await run_in_thread(_python, name, config)


def _limits(config: UpstreamConfig) -> list[Limit]:
    limits: list[Limit] = []
    if config.requests_per_minute is not None or config.tokens_per_minute is not None:
        rate = RateLimiter(
            requests_per_minute=config.requests_per_minute,
            tokens_per_minute=config.tokens_per_minute,
        )
        limits.append(rate)
    if config.max_concurrency is not None:
        limits.append(ConcurrencyLimiter(config.max_concurrency))
    return limits


def _key(config: OpenAIUpstream) -> str:
    if config.api_key_env is not None:
        return os.environ.get(config.api_key_env, "")
    return "" if config.api_key is None else config.api_key.get_secret_value()


def _check_key(name: str, config: OpenAIUpstream) -> None:
    host = urlsplit(config.base_url or OPENAI).hostname
    if host == urlsplit(OPENAI).hostname and not _key(config).strip():
        msg = (
            f"upstreams.{name}.api_key is missing, and OpenAI's own server wants one: write"
            ' api_key: "${OPENAI_API_KEY}"'
        )
        raise ValueError(msg)


def _openai(config: OpenAIUpstream) -> Any:
    from mellea_like.backends.openai import OpenAIBackend  # noqa: PLC0415 (an extra)

    # All is said here, so that no variable of the environment says anything else.
    return OpenAIBackend(
        config.model,
        base_url=config.base_url or OPENAI,
        api_key=_key(config),
        timeout=config.timeout,
        can_judge=config.can_judge,
        trust_env=config.trust_env,
        keep_alive=config.keep_alive,
        follow_redirects=False,
    )


def _llama(config: LlamaUpstream) -> Any:
    from mellea_like.backends.llama import LlamaCppBackend  # noqa: PLC0415 (an extra)

    return LlamaCppBackend(
        config.gguf,
        context_size=config.context_size,
        parallel=config.parallel,
        threads=config.threads,
        timeout=config.timeout,
        can_judge=config.can_judge,
    )


def _markov(config: MarkovUpstream) -> Backend:
    from mellea_like.backends.markov import MarkovBackend  # noqa: PLC0415 (builds its model)

    return MarkovBackend(config.corpus) if config.corpus else MarkovBackend()


def _import(name: str, config: PythonUpstream) -> Any:
    if config.backend is None:
        msg = f"upstreams.{name}.backend is missing: write backend: package.module:name"
        raise ValueError(msg)
    module, _, path = config.backend.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        msg = (
            f"upstreams.{name}.backend: {config.backend} can't be imported ({exc}): is its"
            " directory in PYTHONPATH?"
        )
        raise ValueError(msg) from exc
    if not is_backend(found) and not callable(found):
        raise _no_backend(name, config)
    return found


def _no_backend(name: str, config: PythonUpstream) -> ValueError:
    return ValueError(
        f"upstreams.{name}.backend: {config.backend} is no backend, nor a function making one"
    )


def _python(name: str, config: PythonUpstream) -> Backend:
    found = _import(name, config)
    made = found if is_backend(found) else found()
    if not is_backend(made):
        raise _no_backend(name, config)
    return made
