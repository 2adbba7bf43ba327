"""Ten thousand calls at once, what a batch's item costs, and what grows with depth and length.

    python benchmarks/load.py                 print the tables
    python benchmarks/load.py --only items    print one of them: calls, items, growth
    python benchmarks/load.py --check         and exit 1 where a number misses its target

Of the calls at once: memory, what is left, and the collector's share. Each call draws up to 3 times
in 4 subsamples, from a simulated backend of which half the replies pass, through one
`ConcurrencyLimiter` of 500. Time is virtual, so what is measured is the work of this process and
its event loop. Each row is a process of its own; memory is the peak of the resident set over what
it was before the first call. CPU seconds with Python's collector as it is are compared with those
inside `relaxed_gc`, the lowest of some runs each, taken in turn.

Of the items: microseconds of CPU of one, by workers that one would write by hand, by `sample_many`,
with a journal, and by a bare SQLite writer of the same rows; see `_batch_rows.py`.

Of growth: bytes of conversations, CPU of both orders, plans and resumes; see `_growth_rows.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import anyio
from _batch_rows import costs
from _growth_rows import orders, records, runs

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.simulated import SimulatedBackend
from mellea_like.limits import AdaptiveLimiter, ConcurrencyLimiter, LimitedBackend
from mellea_like.runtime.garbage_collector import relaxed_gc
from mellea_like.testing import run_virtual

LOOPS = ("asyncio", "trio")
LIMITERS: dict[str, Any] = {
    "concurrency": lambda: ConcurrencyLimiter(500),
    "adaptive": AdaptiveLimiter,
}
CALLS, WIDTH, DEPTH = 10_000, 4, 3
MAX_MEBIBYTES = 512.0
"""The limit for `CALLS` calls. A quarter of them, or fewer, may take a quarter of it."""
MAX_LEFT = 1000
"""The number of objects that `CALLS` calls may leave; for fewer calls, it is in proportion."""
MADE_ONCE = 100
"""The lowest limit, for objects that are made only once. One call alone has over 200 objects."""
MIN_RATIO = 1.1
MAX_DRAW = 1300
"""Bytes of JSON that a draw of a conversation may take, however long that is."""
MAX_BYTES = 800.0
"""Bytes that a journal of texts of 100 characters may take for an item."""


class Off(AbstractContextManager[None]):
    """No collection at all: what the collector costs is the difference to this."""

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *exc: object) -> None:
        gc.enable()


class Frozen(AbstractContextManager[None]):
    """What is there before the calls is no longer looked at."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()

    def __exit__(self, *exc: object) -> None:
        gc.unfreeze()


COLLECTORS: dict[str, Any] = {
    "default": nullcontext,
    "relaxed": relaxed_gc,
    "off": Off,
    "frozen": Frozen,
}


def resident() -> float:
    """Return the resident set of this process in MiB."""
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        return peak()
    line = next(line for line in status.read_text("ascii").splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024


def peak() -> float:
    """Return the largest resident set there was, in MiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 1024)


def measure(loop: Any, limiter: str, collector: str, calls: int) -> dict[str, Any]:
    """Run all calls, and tell what they took and what they left."""
    backend = SimulatedBackend(pass_rate=0.5, median=0.2, sigma=0.6)
    limit = LIMITERS[limiter]()
    strategy = RejectionSamplingStrategy(
        LimitedBackend(backend, limit), loop_budget=DEPTH, concurrency_budget=WIDTH
    )
    endings: Counter[str] = Counter()

    async def call() -> None:
        result = await strategy.sample("Say something.", [backend.requirement])
        endings[result.stop_reason.value] += 1

    async def all_at_once(number: int) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(number):
                tasks.start_soon(call)

    async def run() -> dict[str, Any]:
        await all_at_once(20)  # Imports and makes what is made once.
        endings.clear()
        gc.collect()
        objects, before = len(gc.get_objects()), resident()
        tasks = len(anyio.get_running_tasks())
        begun = time.process_time()
        with COLLECTORS[collector]():
            await all_at_once(calls)
        seconds = time.process_time() - begun
        gc.collect()
        statistics = limit.statistics()
        return {
            "seconds": seconds,
            "mebibytes": peak() - before,
            "objects": len(gc.get_objects()) - objects,
            "tasks": len(anyio.get_running_tasks()) - tasks,
            "in_flight": backend.statistics().in_flight + statistics.in_flight,
            "waiting": statistics.waiting,
            "endings": dict(endings),
        }

    return run_virtual(run, backend=loop)


def in_a_process(*arguments: object) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return cast("dict[str, Any]", json.loads(done.stdout))


def faults(ran: dict[str, Any], calls: int) -> list[str]:
    """Return what is wrong with one run."""
    wrong: list[str] = []
    if sum(ran["endings"].values()) != calls or not set(ran["endings"]) <= {"passed", "exhausted"}:
        wrong.append(f"not every call ended as it should: {ran['endings']}")
    most = MAX_MEBIBYTES * max(calls / CALLS, 1 / 4)
    if ran["mebibytes"] > most:
        wrong.append(f"{ran['mebibytes']:.0f} MiB, above {most:.0f}")
    if ran["tasks"] or ran["in_flight"] or ran["waiting"]:
        wrong.append("tasks or requests are left")
    if ran["objects"] > max(MAX_LEFT * calls / CALLS, MADE_ONCE):
        wrong.append(f"{ran['objects']} objects are left")
    return wrong


def calls_table(arguments: argparse.Namespace) -> list[str]:
    """Print what calls at once take; return what misses its target."""
    missed: list[str] = []
    print("| loop | limiter | collector | CPU s | times the default's speed | MiB | objects left |")
    print("|---|---|---|---|---|---|---|")
    for loop in arguments.loops:
        for limiter in arguments.limiters:
            best: dict[str, dict[str, Any]] = {}
            for _ in range(arguments.rounds):
                for kind in ("default", *arguments.collectors):
                    ran = in_a_process(loop, limiter, kind, "--calls", arguments.calls)
                    missed += [f"{loop}, {kind}: {fault}" for fault in faults(ran, arguments.calls)]
                    if kind not in best or ran["seconds"] < best[kind]["seconds"]:
                        best[kind] = ran
            for kind, ran in best.items():
                ratio = best["default"]["seconds"] / ran["seconds"]
                row = (loop, limiter, kind, f"{ran['seconds']:.1f}", f"{ratio:.2f}")
                print("|", " | ".join([*row, f"{ran['mebibytes']:.0f}", str(ran["objects"])]), "|")
                if kind == "relaxed" and ratio < MIN_RATIO:
                    missed.append(f"{loop}: relaxed_gc is only {ratio:.2f} times as fast")
    return missed


def items_table(items: int, rounds: int) -> list[str]:
    """Print what an item of a batch costs; return what misses its target."""
    best = costs(items, rounds)
    cost = {kind: microseconds for kind, (microseconds, _) in best.items()}
    size = best["journal, all text"][1]
    beside = {"sample_many": "by hand", "journal, all text": "sample_many"}
    beside["journal, best text"] = "sample_many"
    print("| an item of a batch | CPU, µs | more than | by, µs | bytes |")
    print("|---|--:|---|--:|--:|")
    for kind, microseconds in cost.items():
        base = beside.get(kind, "")
        more = f"{microseconds - cost[base]:.0f}" if base else ""
        on_disk = f"{best[kind][1]:.0f}" if best[kind][1] else ""
        print(f"| {kind} | {microseconds:.0f} | {base} | {more} | {on_disk} |")
    return [f"a journal: {size:.0f} bytes an item"] if size > MAX_BYTES else []


def growth_tables(items: int, rounds: int, sizes: list[int]) -> list[str]:
    """Print what grows with depth, draws and length; return what misses its target."""
    by_depth = anyio.run(records)
    print("| draws of a conversation | JSON, bytes a draw | journal | page |\n|---|--:|--:|--:|")
    for depth, found in by_depth.items():
        print("|", " | ".join([str(depth), *(f"{size:,.0f}" for size in found)]), "|")
    print("\n| draws of an item | journal | depth, µs | breadth, µs | ratio |")
    print("|---|---|--:|--:|--:|")
    for (draws, kept), took in orders(items, rounds).items():
        depth, breadth = took["depth"], took["breadth"]
        figures = f"{depth:.0f} | {breadth:.0f} | {breadth / depth:.2f}"
        print(f"| {draws} | {'yes' if kept else 'no'} | {figures} |")
    print("\n| a finished run | items | CPU s | memory, MB |\n|---|--:|--:|--:|")
    for (kind, size), (seconds, megabytes) in runs(sizes).items():
        print(f"| {kind} | {size:,} | {seconds:.1f} | {megabytes:.0f} |")
    largest = max(size for size, _, _ in by_depth.values())
    return [f"a draw: {largest:.0f} bytes"] if largest > MAX_DRAW else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a number misses")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls at once (default 10,000)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind (default 2)")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--limiters", nargs="+", choices=LIMITERS, default=["concurrency"])
    parser.add_argument("--collectors", nargs="*", choices=COLLECTORS, default=["relaxed"])
    parser.add_argument("--only", choices=("calls", "items", "growth"), help="print one part")
    parser.add_argument("--sizes", nargs="+", type=int, default=[75_000, 300_000])
    parser.add_argument("--items", type=int, default=1000, help="items of a batch (default 1,000)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.calls)))
        return 0
    missed: list[str] = []
    if arguments.only in {None, "calls"}:
        missed += calls_table(arguments)
    if arguments.only in {None, "items"}:
        missed += items_table(arguments.items, 10 * arguments.rounds)
    if arguments.only in {None, "growth"}:
        missed += growth_tables(arguments.items, 5 * arguments.rounds, arguments.sizes)
    for miss in missed:
        print("missed:", miss)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
