"""What one request for four choices costs beside four requests, on a real llama.cpp server.

    python benchmarks/choices.py              print the table
    python benchmarks/choices.py --tokens 300 with a shorter prompt

Four subsamples of one turn each ask the same long prompt, which no call before had, so that the
server's prompt cache has nothing of it. Counted are the requests, the prompt's tokens as the server
bills them, and the processor time of the server's process. The model is as small as can be, so that
nearly all of the time is the prompt's. It needs the extra ``llama`` and Linux.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))

from tiny_gguf import build_bigram_gguf

from mellea_like import (
    Message,
    Options,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    Usage,
)
from mellea_like.backends import LlamaCppBackend
from mellea_like.coalescing import ChoicesBackend
from mellea_like.core.backend import Backend
from mellea_like.core.generation import Meter

WORDS = "one two three four five six seven eight nine ten"
WIDTH = 4
CALLS = 5

never = Requirement("never passes", lambda candidate: False, inline=True)


class Cost(NamedTuple):
    """What a call cost.

    Attributes:
        cpu: seconds of processor time of the server.
        seconds: how long it took.
        usage: what the server bills.
    """

    cpu: float
    seconds: float
    usage: Usage


def cpu_seconds(pid: int) -> float:
    """Return how much processor time a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def call(server: LlamaCppBackend, backend: Backend, prompt: str) -> Cost:
    """Sample once, four subsamples wide, and see what it costs the server."""
    strategy = RejectionSamplingStrategy(
        backend,
        loop_budget=1,
        concurrency_budget=WIDTH,
        options={"max_tokens": 16},
        accept_incomplete=True,
    )
    before, began = cpu_seconds(server.pid), time.perf_counter()
    result = await strategy.sample(prompt, [never])
    cpu, seconds = cpu_seconds(server.pid) - before, time.perf_counter() - began
    return Cost(cpu, seconds, result.usage)


async def call_with_the_prompt_read(server: LlamaCppBackend, prompt: str) -> Cost:
    """Ask four times, three of which start when the first reply begins."""
    request = Request((Message("user", prompt),), options=Options(max_tokens=16))
    usages: list[Usage] = []

    async def ask(begun: anyio.Event) -> None:
        meter = Meter()
        async with server.stream(replace(request, meter=meter)) as pieces:
            async for _ in pieces:
                begun.set()
        usages.append(meter.usage)

    before, began, begun = cpu_seconds(server.pid), time.perf_counter(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, begun)
        await begun.wait()
        for _ in range(WIDTH - 1):
            tasks.start_soon(ask, begun)
    cpu, seconds = cpu_seconds(server.pid) - before, time.perf_counter() - began
    return Cost(cpu, seconds, sum(usages, Usage()))


async def measure(tokens: int) -> dict[str, list[Cost]]:
    """Measure both ways in turn."""
    ways = ("four requests", "three at the first one's first token", "one request, `n=4`")
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    filler = " ".join(WORDS.split()[number % 10] for number in range(tokens))
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory, "model.gguf")
        build_bigram_gguf(WORDS, model)
        context = 2 * tokens + 512
        async with LlamaCppBackend(model, context_size=context, concurrency=WIDTH) as server:
            for number in range(CALLS):
                prompts = [f"{3 * number + way} {filler}" for way in range(3)]
                costs[ways[0]].append(await call(server, server, prompts[0]))
                costs[ways[1]].append(await call_with_the_prompt_read(server, prompts[1]))
                async with ChoicesBackend(server, WIDTH) as backend:
                    costs[ways[2]].append(await call(server, backend, prompts[2]))
    return costs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=2900, help="words of the prompt")
    costs = anyio.run(measure, parser.parse_args().tokens)
    print(f"Medians of {CALLS} calls.\n")
    print("| | requests | prompt tokens | of them cached | server's CPU s | seconds |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, calls in costs.items():
        usage = calls[0].usage
        cpu = statistics.median(cost.cpu for cost in calls)
        seconds = statistics.median(cost.seconds for cost in calls)
        print(
            f"| {name} | {usage.requests} | {usage.input_tokens:,} | {usage.cached_input_tokens:,}"
            f" | {cpu:.2f} | {seconds:.2f} |"
        )


if __name__ == "__main__":
    main()
