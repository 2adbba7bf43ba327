"""Sample from any OpenAI-compatible server: OpenAI, vLLM, llama.cpp, Ollama and others.

The server is named by ``--base-url`` or the variable ``OPENAI_BASE_URL``, the key by
``OPENAI_API_KEY``; local servers need none. Without ``--model``, the server's first model is used.

Several replies are drawn at a time. When one passes, the requests of the others are closed, so that
the server stops generating them.

Needs the extra `openai`: ``pip install '.[openai]'``
Run it: ``python examples/openai_server.py --base-url http://localhost:8080/v1``
"""

# needs: an OpenAI-compatible server

from __future__ import annotations

import argparse
import sys

import anyio

from mellea_like import MelleaError, RepairTemplateStrategy, Slice
from mellea_like.backends import OpenAIBackend
from mellea_like.requirements.checks import sentence_count, word_count


def report(slice_: Slice) -> None:
    """Say how a draw ended, as soon as it has."""
    name = f"attempt {slice_.attempt}, lane {slice_.lane}"
    print(f"{name}: {slice_.outcome}", *slice_.problems, sep="\n    ")


async def run(arguments: argparse.Namespace) -> None:
    backend = OpenAIBackend(arguments.model, base_url=arguments.base_url)
    strategy = RepairTemplateStrategy(
        backend,
        loop_budget=3,
        concurrency_budget=arguments.concurrency,
        options={"max_tokens": 200},
        timeout=120,
    )
    try:
        result = await strategy.sample(
            arguments.instruction,
            [word_count(at_most=arguments.words), sentence_count(at_least=1)],
            on_slice=report,
        )
    finally:
        await backend.aclose()
    print(f"{backend.model}: {result.unwrap()}")
    print(f"{result.usage}, {result.elapsed:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Sample from an OpenAI-compatible server.")
    parser.add_argument("instruction", nargs="?", default="Say in one sentence what the sea is.")
    parser.add_argument("--base-url", help="where the server is; by default OPENAI_BASE_URL")
    parser.add_argument("--model", help="the model's name; by default the server's first one")
    parser.add_argument("--concurrency", type=int, default=3, help="replies drawn at a time")
    parser.add_argument("--words", type=int, default=30, help="words of the reply, at most")
    try:
        anyio.run(run, parser.parse_args())
    except (MelleaError, ValueError) as exc:
        print(f"No text: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the requests are closed.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
