"""What it costs to run a program that a model wrote: a forked process beside a new interpreter.

    python benchmarks/sandbox.py            print the table
    python benchmarks/sandbox.py --check    and exit 1 where a ratio misses its target

Two run at a time. The new interpreter is ``python -I -S -c``, the barest there is, and has no
limits, no namespaces and no fresh directory. The ways take turns. Judged is the ratio of their
processor times, the median over the rounds, which other work on the machine changes least; the runs
a second are those of the fastest turn.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio

from mellea_like.requirements.code import CodeJob, Sandbox

TURNS = 30
RUNS = 10
ROUNDS = 5
"""Rounds in which processor time is counted, over all turns."""
AT_ONCE = 2

ADD = "def add(a, b):\n    return a + b\n"
PROGRAM = CodeJob(program=f"{ADD}print(add(1, 2))")
TESTED = CodeJob(program=ADD, tests=("assert add(1, 2) == 3\nassert add(2, 2) == 4",))

Way = Callable[[], Awaitable[object]]


async def fresh() -> None:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM.program]
    done = await anyio.run_process(command, env={})
    assert done.stdout == b"3\n"


def forked(sandbox: Sandbox, job: CodeJob) -> Way:
    async def run() -> None:
        report = await sandbox.run(job)
        assert not report.failure, report
        assert report.passed == report.total

    return run


async def seconds(way: Way) -> float:
    async def some() -> None:
        for _ in range(RUNS // AT_ONCE):
            await way()

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(some)
    return time.perf_counter() - began


def processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def processor_of(
    make: Callable[[Sandbox], Way], isolation: Literal["auto", "limits"]
) -> float:
    """Return the processor time of a run: it is known when the server has ended."""
    async with Sandbox(isolation=isolation, concurrency=AT_ONCE) as sandbox:
        way = make(sandbox)
        for _ in range(AT_ONCE):
            await way()
        before = processor()
        await sandbox.aclose()
        overhead = processor() - before
    before = processor()
    async with Sandbox(isolation=isolation, concurrency=AT_ONCE) as sandbox:
        for _ in range(TURNS // ROUNDS):
            await seconds(make(sandbox))
    return (processor() - before - overhead) / RUNS / (TURNS // ROUNDS)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="exit 1 where a ratio misses its target"
    )
    check = parser.parse_args().check
    kinds: dict[str, tuple[Literal["auto", "limits"], CodeJob]] = {
        "forked, namespaces": ("auto", PROGRAM),
        "forked, namespaces, two tests": ("auto", TESTED),
    }
    boxes = {way: Sandbox(isolation=kind, concurrency=AT_ONCE) for way, (kind, _) in kinds.items()}
    ways: dict[str, Way] = {"a new interpreter": fresh}
    ways |= {name: forked(boxes[name], job) for name, (_, job) in kinds.items()}
    for box in boxes.values():
        print(await box.describe()) if box is next(iter(boxes.values())) else await box.describe()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            taken[name].append(await seconds(way))
    for box in boxes.values():
        await box.aclose()
    used: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        before = processor()
        for _ in range(TURNS // ROUNDS):
            await seconds(fresh)
        used["a new interpreter"].append((processor() - before) / RUNS / (TURNS // ROUNDS))
        for name, (kind, job) in kinds.items():
            make = functools.partial(forked, job=job)
            used[name].append(await processor_of(make, kind))
    print(f"\n{os.cpu_count()} processors, {AT_ONCE} at a time\n")
    print("| way | runs a second | processor time a run, ms | times as cheap |\n|---|--:|--:|--:|")
    cheap: dict[str, float] = {}
    for name, times in taken.items():
        pairs = zip(used["a new interpreter"], used[name], strict=True)
        cheap[name] = statistics.median(base / own for base, own in pairs)
        rate, cost = RUNS / min(times), 1e3 * statistics.median(used[name])
        print(f"| {name} | {rate:.0f} | {cost:.1f} | {cheap[name]:.2f} |")
    missed = cheap["forked, namespaces"] < 1.25 or cheap["forked, namespaces, two tests"] < 0.9
    if missed:
        print("\nmissed: 1.25 times as cheap as a new interpreter, and 0.9 times with tests")
    return int(check and missed)


if __name__ == "__main__":
    sys.exit(anyio.run(main))
