"""What one request for four choices costs beside four requests.

    python benchmarks/choices.py              on a real llama.cpp server: print the table
    python benchmarks/choices.py --tokens 300 with a shorter prompt
    python benchmarks/choices.py --counting   on a server of our own that counts, in virtual time

On the counting server, a reply takes 10 ms a token, and is counted until its request ends or is
closed. Its length is drawn from a log-normal distribution with a median of 150 tokens (sigma 0.5).

On llama.cpp's:
Four subsamples of one turn each ask the same long prompt, which no call before had, so that the
server's prompt cache has nothing of it. Counted are the requests, the prompt's tokens as the server
bills them, and the processor time of the server's process. The model is as small as can be, so that
nearly all of the time is the prompt's. It needs the extra ``llama`` and Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))

from tiny_gguf import build_bigram_gguf

from mellea_like import BestOf, Generation, Message, RejectionSamplingStrategy, Request, Requirement
from mellea_like.backends import LlamaCppBackend
from mellea_like.coalescing import ChoicesBackend
from mellea_like.core import Options, Usage
from mellea_like.core.backend import Backend
from mellea_like.core.generation import Meter
from mellea_like.testing import run_virtual

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


class CountingServer:
    """A server that counts what it reads and says, also of requests that are closed."""

    def __init__(self, pass_rate: float, seed: int) -> None:
        self.requests = self.said = 0
        self._chance = random.Random(seed)
        self._pass_rate = pass_rate

    async def generate(self, request: Request) -> Generation:
        async with self.stream(request) as pieces:
            return [piece async for piece in pieces][-1]

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self.stream_choices(request, 1) as choices:
            yield (piece async for _, piece in choices)

    @contextlib.asynccontextmanager
    async def stream_choices(
        self, request: Request, n: int
    ) -> AsyncGenerator[AsyncIterator[tuple[int, Any]]]:
        self.requests += 1
        pieces = self._pieces(request, n)
        try:
            yield pieces
        finally:
            await pieces.aclose()

    async def _pieces(self, request: Request, n: int) -> AsyncGenerator[tuple[int, Any]]:
        meter, tokens = request.meter.start(), 0
        lengths = [round(self._chance.lognormvariate(math.log(150), 0.5)) for _ in range(n)]
        ends = sorted(range(n), key=lambda i: lengths[i])
        for token in range(1, max(lengths) + 1):
            await anyio.sleep(0.01)
            going_on = sum(length >= token for length in lengths)
            self.said += going_on
            tokens += going_on
            meter.update(output_tokens=tokens)
            while ends and lengths[ends[0]] == token:
                index = ends.pop(0)
                if not ends:
                    meter.settle(input_tokens=0, output_tokens=tokens)
                text = "yes" if self._chance.random() < self._pass_rate else "no"
                yield index, Generation(text, usage=meter.usage)


async def count(pass_rate: float, *, best: bool, joint: bool) -> tuple[float, float, float]:
    """Return requests, tokens of replies and seconds of a call, over many calls."""
    server, calls = CountingServer(pass_rate, 1), 400
    passes = Requirement("passes", lambda candidate: candidate.text == "yes", inline=True)
    async with contextlib.AsyncExitStack() as stack:
        backend: Any = server
        if joint:
            backend = await stack.enter_async_context(ChoicesBackend(server, WIDTH))
        strategy = RejectionSamplingStrategy(
            backend,
            concurrency_budget=WIDTH,
            loop_budget=1 if best else 4,
            requirements=() if best else [passes],
            selection=BestOf(lambda candidate: float(candidate.text == "yes")) if best else "first",
        )
        began = anyio.current_time()
        for number in range(calls):
            await strategy.sample(f"Question {number}.")
        took = anyio.current_time() - began
    return server.requests / calls, server.said / calls, took / calls


def print_counted() -> None:
    """Count and print."""
    print("| | | requests | tokens of replies | seconds |\n|---|---|--:|--:|--:|")
    cases = [*((f"first that passes, {rate:.0%} do", rate, False) for rate in (0.2, 0.5, 0.8))]
    for name, rate, best in [*cases, ("the best of four", 0.5, True)]:
        for way, joint in (("single requests", False), ("`n=4`", True)):
            requests, said, seconds = run_virtual(partial(count, rate, best=best, joint=joint))
            print(f"| {name} | {way} | {requests:.2f} | {said:.0f} | {seconds:.2f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=2900, help="words of the prompt")
    parser.add_argument("--counting", action="store_true", help="on a server that counts")
    options = parser.parse_args()
    if options.counting:
        print_counted()
        return
    costs = anyio.run(measure, options.tokens)
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
