"""What grows with the depth of a conversation, with the draws of an item, and with a finished run.

`records` counts bytes a draw of conversations of several lengths: the call's JSON, its journal and
its page. `orders` counts microseconds of CPU of an item that passes at its first, second or fourth
draw, in depth and in breadth, in turn, the least of some rounds. `runs` makes a finished journal of
so many items, all different, and measures a plan of it and resuming it, each in a process of its
own: CPU seconds, and MB of the resident set's peak over what it was before.
"""

from __future__ import annotations

import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from typing import Any, cast

import anyio
from _batch_rows import hundred, prompt

from mellea_like import MultiTurnStrategy, RejectionSamplingStrategy, Requirement
from mellea_like.backends import FunctionBackend
from mellea_like.batch import sample_many
from mellea_like.batch.journal.identity import digest_of
from mellea_like.core.conversation import as_action
from mellea_like.estimate import plan
from mellea_like.report import call_report

DEPTHS = (10, 40, 100)
DRAWS = (1, 2, 4)
SOME = 1000
"""Items that are really sampled; a longer journal repeats the rows of the first of them."""

never = Requirement("is never met", lambda c: (False, "it is too short"), inline=True)
right = Requirement("is right", lambda c: c.text == "yes", inline=True, check_only=True)


async def _sampled(strategy: Any, items: Any, **given: Any) -> int:
    passed = 0
    async with sample_many(strategy, items, **{"concurrency": 64, **given}) as results:
        async for item in results:
            passed += item.success
    return passed


async def records() -> dict[int, tuple[float, float, float]]:
    """Measure conversations of each depth.

    Returns:
        Of each the bytes a draw of its JSON, of a journal of 20 of them, and of its page.
    """
    found: dict[int, tuple[float, float, float]] = {}
    for depth in DEPTHS:
        talk = MultiTurnStrategy(
            FunctionBackend(hundred), loop_budget=depth, concurrency_budget=1, requirements=[never]
        )
        written = (await talk.sample(prompt(0))).to_dict()
        with tempfile.TemporaryDirectory() as folder:
            path = anyio.Path(folder, "run.db")
            await _sampled(talk, [prompt(n) for n in range(20)], journal=pathlib.Path(path))
            size = (await path.stat()).st_size
        page = len(call_report(written).encode())
        found[depth] = len(json.dumps(written)) / depth, size / 20 / depth, page / depth
    return found


async def _order(order: str, draws: int, items: int, journal: pathlib.Path | None) -> float:
    drawn: dict[str, int] = {}

    async def answer(request: Any) -> str:
        asked = request.messages[-1].content
        drawn[asked] = drawn.get(asked, 0) + 1
        return "yes" if drawn[asked] == draws else "no"

    tries = RejectionSamplingStrategy(FunctionBackend(answer), loop_budget=4, requirements=[right])
    names = [prompt(n) for n in range(items)]
    begun = time.process_time()
    if await _sampled(tries, names, breadth_first=order == "breadth", journal=journal) != items:
        sys.exit(f"{order}: not every item has passed")
    return (time.process_time() - begun) / items * 1e6


def orders(items: int, rounds: int) -> dict[tuple[int, bool], dict[str, float]]:
    """Measure both orders.

    Returns:
        Of each number of draws, without and with a journal, the microseconds of either order.
    """
    best: dict[tuple[int, bool], dict[str, float]] = {}
    for number in range(rounds + 1):
        for draws in DRAWS:
            for kept in (False, True):
                for order in ("depth", "breadth"):
                    with tempfile.TemporaryDirectory() as folder:
                        path = pathlib.Path(folder, "run.db") if kept else None
                        took = anyio.run(_order, order, draws, items, path)
                    row = best.setdefault((draws, kept), {})
                    if number:  # The first round warms up.
                        row[order] = min(took, row.get(order, took))
    return best


def _strategy() -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(FunctionBackend(hundred), loop_budget=1)


def _finished(path: pathlib.Path, items: int) -> None:
    """Make the journal of a finished run."""

    async def some() -> None:
        await _sampled(_strategy(), [prompt(n) for n in range(SOME)], journal=path)

    anyio.run(some)
    with closing(sqlite3.connect(path)) as journal:
        for table, key in (("attempts", "item"), ("slices", "item"), ("results", "item")):
            [first] = journal.execute(f"SELECT * FROM {table} WHERE {key} = 0")
            marks = ", ".join("?" * len(first))
            rows = ((n, *first[1:]) for n in range(SOME, items))
            journal.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        texts = ((n, prompt(n)) for n in range(SOME, items))
        rows = ((n, digest_of(text, as_action(text)), "", json.dumps(text)) for n, text in texts)
        journal.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        journal.commit()


def _one(kind: str, path: str, items: int) -> tuple[float, float]:
    """Plan or resume a run."""
    plan([anyio.run(_strategy().sample, "Say hello.")])  # Imports belong to no run.
    before = _peak()
    begun = time.process_time()
    if kind == "plan":
        found = plan(path).items
    else:
        names = (prompt(n) for n in range(items))

        async def resume() -> int:
            return await _sampled(_strategy(), names, journal=path)

        found = anyio.run(resume)
    if found != items:
        sys.exit(f"{kind}: {found} items of {items}")
    return time.process_time() - begun, _peak() - before


def _peak() -> float:
    """Return the largest resident set of this process so far in MB (Linux)."""
    status = pathlib.Path("/proc/self/status").read_text("ascii")
    line = next(line for line in status.splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1000


def runs(sizes: list[int]) -> dict[tuple[str, int], tuple[float, float]]:
    """Measure finished runs of some sizes.

    Returns:
        Of each kind and size the CPU seconds and the MB of memory.
    """
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=pathlib.Path.cwd()) as folder:
            path = pathlib.Path(folder, "run.db")
            _finished(path, size)
            for kind in ("plan", "resume"):
                command = [sys.executable, __file__, kind, str(path), str(size)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
                found[kind, size] = cast("tuple[float, float]", tuple(json.loads(done.stdout)))
    return found


if __name__ == "__main__":
    print(json.dumps(_one(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
