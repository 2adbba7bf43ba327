"""From the options to an open backend and judge."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.cli.arguments import BackendName, check_file
from mellea_like.cli.exits import Exit, Problem

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from mellea_like.cli.arguments import SampleArguments
    from mellea_like.core.backend import Backend

__all__ = ["Backends", "check_options", "choose_backend", "named_backend", "open_backends"]

MARKOV = (
    "markov, a small Markov chain text generator that understands nothing;"
    " for a real model see --backend."
)


@dataclass(frozen=True, slots=True)
class Backends:
    """What a run uses."""

    backend: Backend
    judge: Backend | None
    name: str


def named_backend(arguments: SampleArguments) -> BackendName | None:
    """Say which backend the user named."""
    if arguments.backend is not None:
        return arguments.backend
    if arguments.gguf is not None:
        return BackendName.LLAMA
    if arguments.base_url is not None or arguments.model is not None:
        return BackendName.OPENAI
    if arguments.corpus:
        return BackendName.MARKOV
    configured = os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    return BackendName.OPENAI if configured else None


def choose_backend(arguments: SampleArguments) -> BackendName:
    """Return the backend that the user named, or the one for trying things out."""
    return named_backend(arguments) or BackendName.MARKOV


def check_options(arguments: SampleArguments) -> None:
    """Make sure that the options go with the backend, before anything is opened."""
    name = choose_backend(arguments)
    for option, given, only in (
        ("--model", arguments.model, BackendName.OPENAI),
        ("--base-url", arguments.base_url, BackendName.OPENAI),
        ("--gguf", arguments.gguf, BackendName.LLAMA),
        ("--corpus", arguments.corpus, BackendName.MARKOV),
    ):
        if given and name is not only:
            msg = f"{option} goes with --backend {only}, not with --backend {name}"
            raise Problem(msg, Exit.USAGE)
    if name is BackendName.LLAMA and arguments.gguf is None:
        msg = "--backend llama needs a model file: --gguf FILE"
        raise Problem(msg, Exit.USAGE)
    if _has_judge(arguments) and not arguments.require:
        option = "--judge-base-url" if arguments.judge_model is None else "--judge-model"
        msg = f"{option} names a judge that has nothing to decide: add --require TEXT"
        raise Problem(msg, Exit.USAGE)
    if arguments.require and name is BackendName.MARKOV and not _has_judge(arguments):
        msg = (
            "--require needs a model that can judge, and the markov text generator can't: add"
            " --judge-model NAME, use --backend openai or llama, or say it as a --check"
        )
        raise Problem(msg)
    for option, path in [("--gguf", arguments.gguf), *(("--corpus", p) for p in arguments.corpus)]:
        if path is not None:
            check_file(option, path)


@asynccontextmanager
async def open_backends(arguments: SampleArguments) -> AsyncGenerator[Backends]:
    """Open the backend and the judge, and close them at the end."""
    async with AsyncExitStack() as stack:
        try:
            backend, name = await _open(arguments, stack)
            judge = None
            if _has_judge(arguments):
                url = arguments.judge_base_url
                judge = (
                    _openai(arguments.judge_model, arguments.base_url, "--judge-model")
                    if url is None
                    else _openai(arguments.judge_model, url, "--judge-model", "--judge-base-url")
                )
                stack.push_async_callback(judge.aclose)
        except ImportError as exc:
            raise Problem(str(exc)) from exc
        yield Backends(backend, judge, name)


async def _open(arguments: SampleArguments, stack: AsyncExitStack) -> tuple[Backend, str]:
    match choose_backend(arguments):
        case BackendName.MARKOV:
            return _markov(arguments.corpus), MARKOV
        case BackendName.OPENAI:
            backend = _openai(arguments.model, arguments.base_url)
            stack.push_async_callback(backend.aclose)
            model = backend.model or "the server's first model"
            return backend, f"openai, {model} at {backend.base_url}."
        case BackendName.LLAMA:
            from mellea_like.backends.llama import LlamaCppBackend  # noqa: PLC0415 (an extra)

            assert arguments.gguf is not None  # noqa: S101 (checked with the options)
            llama = await stack.enter_async_context(LlamaCppBackend(arguments.gguf))
            return llama, f"llama, {arguments.gguf.name} in a llama.cpp server of its own."


def _markov(corpus: list[Path]) -> Backend:
    from mellea_like.backends.markov import MarkovBackend  # noqa: PLC0415 (builds its model)

    if not corpus:
        return MarkovBackend()
    try:
        return MarkovBackend(corpus=corpus)
    except (OSError, ValueError) as exc:
        msg = f"--corpus: {exc}"
        raise Problem(msg) from exc


def _openai(
    model: str | None, base_url: str | None, named: str = "--model", at: str = "--base-url"
) -> Any:
    from mellea_like.backends.openai import OpenAIBackend  # noqa: PLC0415 (an extra)

    try:
        backend = OpenAIBackend(model, base_url=base_url)
        official = backend.base_url.startswith("https://api.openai.com")
    except ValueError as exc:
        option = at if base_url is not None else "OPENAI_BASE_URL"
        msg = f"{option}: {exc}"
        raise Problem(msg, Exit.USAGE) from exc
    if official and model is None:
        msg = f"the openai backend needs the name of a model at {backend.base_url}: {named} NAME"
        raise Problem(msg, Exit.USAGE)
    if official and not os.environ.get("OPENAI_API_KEY", "").strip():
        msg = f"no API key for {backend.base_url}: set OPENAI_API_KEY"
        raise Problem(msg)
    return backend


def _has_judge(arguments: SampleArguments) -> bool:
    return arguments.judge_model is not None or arguments.judge_base_url is not None
