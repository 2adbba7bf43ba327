"""A batch run for the tests to kill: it writes down each call it starts and each result it has.

``python kill_run.py FOLDER ITEMS CONCURRENCY LOOP ORDER`` resumes the run in a folder.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from pathlib import Path

import anyio

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends import FunctionBackend
from mellea_like.batch import sample_many

LOOP_BUDGET = 3


def fate(item: int) -> int:
    """How many calls an item takes until it passes; 0 if it never does, -1 if its call raises."""
    drawn = zlib.crc32(b"%d" % item) % 50
    return -1 if drawn == 0 else 0 if drawn < 4 else 1 + drawn % LOOP_BUDGET


def calls_of(item: int) -> int:
    """How many calls an item takes if nobody is killed."""
    return {-1: 1, 0: LOOP_BUDGET}.get(fate(item), fate(item))


def outcome_of(item: int) -> tuple[str, str]:
    """The status and the value that an item comes to."""
    found = fate(item)
    return ("errored", "") if found < 0 else ("passed", f"good {item}") if found else ("failed", "")


def appended(path: Path) -> int:
    """Open a file so that each write is one line at its end, whoever is killed."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


async def run(folder: Path, items: int, concurrency: int, order: str) -> None:
    calls, results = appended(folder / "calls"), appended(folder / "results")

    async def answer(request) -> str:
        item, draw = int(request.messages[-1].content.split()[1]), request.meta.iteration
        os.write(calls, b"%d %d\n" % (item, draw))
        await anyio.sleep(random.random() * 0.008)
        if fate(item) < 0:
            msg = f"item {item} can't be had"
            raise LookupError(msg)
        return f"{'good' if draw == fate(item) else 'bad'} {item}"

    good = Requirement("good", lambda c: c.text.startswith("good"), inline=True, check_only=True)
    strategy = RejectionSamplingStrategy(
        FunctionBackend(answer), loop_budget=LOOP_BUDGET, concurrency_budget=1
    )
    async with sample_many(
        strategy,
        [f"item {n}" for n in range(items)],
        concurrency=concurrency,
        requirements=[good],
        breadth_first=order == "breadth",
        journal=folder / "run.db",
    ) as handed_on:
        async for result in handed_on:
            line = f"{result.id} {result.status} {int(result.replayed)} {result.value or ''}\n"
            os.write(results, line.encode())


if __name__ == "__main__":
    where, how_many, at_a_time, loop, in_which_order = sys.argv[1:]
    anyio.run(run, Path(where), int(how_many), int(at_a_time), in_which_order, backend=loop)
