"""What the engine adds to a loop that one would write by hand.

    python benchmarks/overhead.py            print the table
    python benchmarks/overhead.py --check    and exit 1 where a ratio misses its target

Both loops make K * 8 draws from the same backend, and check each with one inline check that always
fails, so that every turn is spent. The backend is a bare one, which answers after one checkpoint,
or a `FunctionBackend` around an async function. The hand-written loop is the leanest correct one: a
request for each draw, a task group, a memory object stream, a consumer that keeps what comes and
would cancel the rest at the first success. It keeps (id, text, passed) of each draw; the engine
keeps the whole record. The two run in turn, and what counts is the median of the ratios of
neighbouring runs: no absolute time is judged.

Memory is what a process grows by (resident set) for 10,000 calls that wait for their backend.
"""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from mellea_like import (
    Backend,
    Candidate,
    Generation,
    Message,
    RejectionSamplingStrategy,
    Request,
    requirement,
)
from mellea_like.backends import FunctionBackend
from mellea_like.core import Usage
from mellea_like.hooks import HookMode, HookType, Plugin, SamplingIterationPayload, hook

DEPTH = 8
WIDTHS = (1, 10, 100, 1000)
JUDGED_WIDTHS = (1, 10, 100)
FUNCTION_WIDTHS = (1, 10)
LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}
MAX_RATIOS = {"asyncio": 1.3, "uvloop": 1.4, "trio": 1.3}
MAX_BYTES_PER_CALL = 12 * 1024
PENDING_CALLS = 10_000

REPLY = Generation("x", usage=Usage(requests=1, input_tokens=1, output_tokens=1))


class OneCheckpoint:
    """A backend that answers after one checkpoint."""

    async def generate(self, request: Request) -> Generation:
        await checkpoint()
        return REPLY


async def function(request: Request) -> str:
    """Answer at once; what calls it passes a checkpoint."""
    return "x"


BACKENDS: dict[str, Backend] = {
    "bare": OneCheckpoint(),
    "FunctionBackend": FunctionBackend(function),
}


class Never:
    """A backend that does not answer before it is told to."""

    def __init__(self) -> None:
        self.waiting = 0
        self.release = anyio.Event()

    async def generate(self, request: Request) -> Generation:
        self.waiting += 1
        await self.release.wait()
        return REPLY


class Observer(Plugin):
    """A plugin that looks at each slice and does nothing."""

    @hook(HookType.SAMPLING_ITERATION, mode=HookMode.OBSERVE)
    async def look(self, payload: SamplingIterationPayload) -> None:
        """Look."""


@requirement("never", inline=True)
def never(candidate: Candidate) -> bool:
    """Fail, by the same check as the hand-written loop's."""
    return len(candidate.text) > 1


async def by_hand(width: int, backend: Backend) -> list[tuple[int, str, bool]]:
    """Run the hand-written loop once."""
    messages = (Message("user", "x"),)
    done: list[tuple[int, str, bool]] = []
    send, receive = anyio.create_memory_object_stream[tuple[int, str, bool]](width * DEPTH)

    async def produce(subsample: int, queue: Any) -> None:
        async with queue:
            for depth in range(DEPTH):
                text = (await backend.generate(Request(messages))).text
                passed = len(text) > 1
                await queue.send((subsample * DEPTH + depth + 1, text, passed))
                if passed:
                    return

    async with anyio.create_task_group() as tasks:
        async with send:
            for subsample in range(width):
                tasks.start_soon(produce, subsample, send.clone())
        async with receive:
            async for item in receive:
                done.append(item)
                if item[2]:
                    tasks.cancel_scope.cancel()
                    break
    return done


def strategy(
    width: int, backend: Backend, plugins: tuple[Plugin, ...] = ()
) -> RejectionSamplingStrategy:
    """Make the strategy that does the same."""
    return RejectionSamplingStrategy(
        backend,
        loop_budget=DEPTH,
        concurrency_budget=width,
        max_iterations=width * DEPTH,
        plugins=plugins,
    )


class Row(NamedTuple):
    """The figures of one loop, backend and width; microseconds of CPU time an iteration."""

    loop: str
    backend: str
    width: int
    hand: float
    engine: float
    ratio: float
    plugin: float


async def measure(loop: str, kind: str, width: int, rounds: int) -> Row:
    """Time the loops in turn."""
    backend = BACKENDS[kind]
    plain, watched = strategy(width, backend), strategy(width, backend, (Observer(),))
    runs = max(1, 1600 // (width * DEPTH))

    async def timed(run: Callable[[], Awaitable[object]]) -> float:
        began = time.process_time()
        for _ in range(runs):
            await run()
        return (time.process_time() - began) / (runs * width * DEPTH) * 1e6

    hand, engine, plugin = [], [], []
    for _ in range(rounds + 1):
        hand.append(await timed(lambda: by_hand(width, backend)))
        engine.append(await timed(lambda: plain.sample("x", [never])))
        plugin.append(await timed(lambda: watched.sample("x", [never])))
    # The first round warms up.
    pairs = list(zip(hand, engine, plugin, strict=True))[1:]
    return Row(
        loop,
        kind,
        width,
        statistics.median(h for h, _, _ in pairs),
        statistics.median(e for _, e, _ in pairs),
        statistics.median(e / h for h, e, _ in pairs),
        statistics.median(p - e for _, e, p in pairs),
    )


def resident() -> int:
    """Return the resident set of this process, in bytes; its peak where only that is known."""
    try:
        with pathlib.Path("/proc/self/statm").open(encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


async def pending_bytes(*, engine: bool) -> float:
    """Return what one waiting call costs, in bytes, of the engine or of a bare task."""
    backend = Never()
    plan = RejectionSamplingStrategy(backend, loop_budget=DEPTH)
    await RejectionSamplingStrategy(OneCheckpoint()).sample("x", [never])

    async def bare() -> None:
        await backend.generate(Request(()))

    async def call() -> None:
        await plan.sample("x")

    gc.collect()
    before = resident()
    async with anyio.create_task_group() as tasks:
        for _ in range(PENDING_CALLS):
            tasks.start_soon(call if engine else bare)
        while backend.waiting < PENDING_CALLS:
            await checkpoint()
        grown = resident() - before
        backend.release.set()
    return grown / PENDING_CALLS


def memory_of(loop: str, kind: str) -> float:
    """Measure `pending_bytes` in a process of its own."""
    command = [sys.executable, __file__, "--memory", loop, kind]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def machine() -> str:
    """Describe this machine."""
    model = platform.processor() or platform.machine()
    try:
        with pathlib.Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            model = next(
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({model}), {platform.system()},"
        f" CPython {platform.python_version()}, anyio {version('anyio')}, trio {version('trio')},"
        f" uvloop {version('uvloop')}"
    )


def version(package: str) -> str:
    """Return the version of an installed package."""
    from importlib.metadata import version as installed

    return installed(package)


def main() -> int:
    """Measure, print, and judge if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a ratio misses")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each loop (default 15)")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--memory", nargs=2, metavar=("LOOP", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        loop, kind = arguments.memory
        how = LOOPS[loop]

        async def one() -> float:
            return await pending_bytes(engine=kind == "engine")

        print(anyio.run(one, **how))
        return 0

    missed: list[str] = []
    print(f"Measured {machine()}.\n")
    columns = ("loop", "backend", "K", "by hand, µs", "engine, µs", "ratio", "a plugin adds, µs")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|--:|--:|--:|--:|--:|")
    cases = [("bare", width) for width in WIDTHS]
    cases += [("FunctionBackend", width) for width in FUNCTION_WIDTHS]
    for loop in arguments.loops:
        for kind, width in cases:
            row = anyio.run(measure, loop, kind, width, arguments.rounds, **LOOPS[loop])
            print(
                f"| {row.loop} | {row.backend} | {row.width} | {row.hand:.1f} | {row.engine:.1f}"
                f" | {row.ratio:.2f} | {row.plugin:.1f} |",
                flush=True,
            )
            if width in JUDGED_WIDTHS and row.ratio > MAX_RATIOS[loop]:
                what = f"{loop}, {kind}, K = {width}"
                missed.append(f"{what}: ratio {row.ratio:.2f} over {MAX_RATIOS[loop]}")
    print("\n| loop | a waiting task by hand, KB | a waiting call, KB |")
    print("|---|--:|--:|")
    for loop in arguments.loops:
        bare, engine = memory_of(loop, "bare"), memory_of(loop, "engine")
        print(f"| {loop} | {bare / 1024:.1f} | {engine / 1024:.1f} |", flush=True)
        if engine > MAX_BYTES_PER_CALL:
            missed.append(f"{loop}: {engine / 1024:.1f} KB a waiting call")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
