"""What a batch costs an item: by hand, with `sample_many`, and with a journal.

`measure` counts items a second. The backend answers after one checkpoint, so that what is measured
is the work around it; with 1,000 at a time it takes 50 ms, so that so many are pending, as they are
with a model. Each kind is a process of its own, for the first one would pay for the imports.

`costs` counts microseconds of CPU an item, and bytes: prompts and replies of 100 characters, the
kinds in turn in one process, the least of some rounds. Beside the journal it has a bare writer: the
same rows by sqlite3 alone, each commit on the disk.
"""

from __future__ import annotations

import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from typing import Any, cast

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch import Journal, sample_many
from mellea_like.batch.journal.database import TABLES, connect, make_durable
from mellea_like.runtime.garbage_collector import relaxed_gc

ITEMS = 10_000
CONCURRENCY = 64
WIDE = {"1,000 at a time": nullcontext, "1,000 at a time, in relaxed_gc": relaxed_gc}
KINDS = ("by hand", "sample_many", "journal, best text", "journal, all text", *WIDE)


async def answer(request: object) -> str:
    await anyio.lowlevel.checkpoint()
    return "Hello there."


async def late_answer(request: object) -> str:
    await anyio.sleep(0.05)
    return "Hello there."


async def by_hand(strategy: RejectionSamplingStrategy, items: int) -> int:
    """Share the items among as many workers, as one would write it."""
    prompts = iter([f"Say hello, {number}." for number in range(items)])
    passed = 0

    async def work() -> None:
        nonlocal passed
        for prompt in prompts:
            result = await strategy.sample(prompt)
            passed += result.success

    async with anyio.create_task_group() as tasks:
        for _ in range(CONCURRENCY):
            tasks.start_soon(work)
    return passed


async def run(kind: str, items: int, directory: str) -> float:
    ask = late_answer if kind in WIDE else answer
    strategy = RejectionSamplingStrategy(FunctionBackend(ask), loop_budget=1)
    texts: Any = {"journal, best text": "best", "journal, all text": "all"}.get(kind)
    journal = None if texts is None else Journal(pathlib.Path(directory, "run.db"), text=texts)
    begun = time.perf_counter()
    if kind == "by hand":
        passed = await by_hand(strategy, items)
    else:
        prompts = (f"Say hello, {number}." for number in range(items))
        passed = 0
        concurrency = 1_000 if kind in WIDE else CONCURRENCY
        with WIDE.get(kind, nullcontext)():
            async with sample_many(
                strategy, prompts, concurrency=concurrency, journal=journal
            ) as results:
                async for item in results:
                    passed += item.success
    if passed != items:
        sys.exit(f"{kind}: {passed} of {items} passed")
    return items / (time.perf_counter() - begun)


def measure(items: int = ITEMS, rounds: int = 3) -> dict[str, float]:
    """Run each kind some times in turn.

    Returns:
        The items a second of each kind's best run.
    """
    best: dict[str, float] = {}
    for _ in range(rounds):
        for kind in KINDS:
            command = [sys.executable, __file__, kind, str(items)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            best[kind] = max(best.get(kind, 0), cast("float", json.loads(done.stdout)))
    return best


# --- CPU of an item -------------------------------------------------------------------------------

COST_KINDS = ("by hand", "sample_many", "journal, all text", "journal, best text", "bare writer")
GROUP = 64
"""How many items the bare writer commits together."""


def prompt(number: int) -> str:
    """Return a text of 100 characters, no two the same."""
    return f"Say hello to number {number}, and mind the words. ".ljust(100, "x")


async def hundred(request: object) -> str:
    return "A reply of one hundred characters. ".ljust(100, "y")


async def cost_of(kind: str, items: int, place: pathlib.Path) -> tuple[float, float]:
    """Return the CPU time of an item in seconds, and its bytes on the disk."""
    strategy = RejectionSamplingStrategy(FunctionBackend(hundred), loop_budget=1)
    prompts = (prompt(number) for number in range(items))
    path = place / "run.db"
    texts: Any = {"journal, best text": "best", "journal, all text": "all"}.get(kind)
    journal = None if texts is None else Journal(path, text=texts)
    passed = 0

    async def work() -> None:
        nonlocal passed
        for text in prompts:
            result = await strategy.sample(text)
            passed += result.success

    begun = time.process_time()
    if kind == "by hand":
        async with anyio.create_task_group() as tasks:
            for _ in range(CONCURRENCY):
                tasks.start_soon(work)
    else:
        async with sample_many(
            strategy, prompts, concurrency=CONCURRENCY, journal=journal
        ) as results:
            async for item in results:
                passed += item.success
    took = time.process_time() - begun
    if passed != items:
        sys.exit(f"{kind}: {passed} of {items} passed")
    size = 0 if journal is None else (await anyio.Path(path).stat()).st_size
    return took / items, size / items


def bare_cost(items: int, journal: pathlib.Path, place: pathlib.Path) -> tuple[float, float]:
    """Write the rows of a journal once more, by nothing but sqlite3."""
    groups: list[dict[str, list[Any]]] = []
    with closing(connect(journal, "ro")) as written:
        for first in range(0, items, GROUP):
            span = (first, first + GROUP - 1)
            groups.append(
                {
                    table: written.execute(
                        f"SELECT * FROM {table} WHERE {key} BETWEEN ? AND ?", span
                    ).fetchall()
                    for table, key in (
                        ("items", "id"),
                        ("attempts", "item"),
                        ("slices", "item"),
                        ("results", "item"),
                    )
                }
            )
    path = place / "bare.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as bare:
        make_durable(bare, path)
        for statement in TABLES.values():
            bare.execute(statement)
        begun = time.process_time()
        for group in groups:
            bare.execute("BEGIN IMMEDIATE")
            for table, rows in group.items():
                marks = ", ".join("?" * len(rows[0]))
                bare.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            bare.execute("COMMIT")
        took = time.process_time() - begun
    return took / items, path.stat().st_size / items


def costs(items: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Measure each kind in turn.

    Returns:
        Of each kind the least microseconds of CPU an item, and the bytes.
    """
    best: dict[str, tuple[float, float]] = {}
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory(dir=pathlib.Path.cwd()) as folder:
            for kind in COST_KINDS:
                place = pathlib.Path(folder, kind)
                place.mkdir()
                if kind == "bare writer":
                    journal = pathlib.Path(folder, "journal, all text", "run.db")
                    seconds, size = bare_cost(items, journal, place)
                else:
                    seconds, size = anyio.run(cost_of, kind, items, place)
                least = min(seconds * 1e6, best.get(kind, (float("inf"),))[0])
                if number:  # The first round warms up.
                    best[kind] = least, size
    return best


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory(dir=pathlib.Path.cwd()) as place:
            print(anyio.run(run, sys.argv[1], int(sys.argv[2]), place))
    else:
        print(measure())
