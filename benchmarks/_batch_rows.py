"""Items a second of a batch: by hand, with `sample_many`, and with a journal.

The backend answers after one checkpoint, so that what is measured is the work around it; with 1,000
at a time it takes 50 ms, so that so many are pending, as they are with a model. Each kind is a
process of its own, for the first one would pay for the imports.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from typing import Any, cast

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch import Journal, sample_many
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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory(dir=pathlib.Path.cwd()) as place:
            print(anyio.run(run, sys.argv[1], int(sys.argv[2]), place))
    else:
        print(measure())
