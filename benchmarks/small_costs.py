"""Costs that have no page of their own: importing, near-duplicates, a consensus, JSON of a type.

python benchmarks/small_costs.py            print the tables
python benchmarks/small_costs.py --check    and exit 1 where one misses its target
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
import timeit
import tracemalloc
from typing import Any

import anyio
from pydantic import BaseModel

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.function import FunctionBackend
from mellea_like.batch.unique import UniqueReplies
from mellea_like.core.format import format_of, parse_reply
from mellea_like.selections import Consensus

STRATEGY = "from mellea_like import RejectionSamplingStrategy"
DEPENDENCIES = "import anyio, pydantic, tenacity, opentelemetry.trace, opentelemetry.metrics"
PROCESS = """
import os, time
began = time.process_time()
{}
seconds = time.process_time() - began
with open("/proc/self/statm") as file:
    print(seconds, int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
"""


def importing(rounds: int = 15) -> float:
    """Fresh processes, in turn; the interpreter's own share is taken away."""
    found: dict[str, list[tuple[float, float]]] = {"": [], DEPENDENCIES: [], STRATEGY: []}
    for _ in range(rounds):
        for code, taken in found.items():
            command = [sys.executable, "-c", PROCESS.format(code)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds, megabytes = map(float, printed.split())
            taken.append((seconds, megabytes))
    median = {
        code: [statistics.median(column) for column in zip(*taken, strict=True)]
        for code, taken in found.items()
    }
    bare = median.pop("")
    print("| imported | CPU, ms | memory, MB |\n|---|--:|--:|")
    names = {DEPENDENCIES: "the dependencies", STRATEGY: "a strategy"}
    for code, (seconds, megabytes) in median.items():
        print(f"| {names[code]} | {1e3 * (seconds - bare[0]):.0f} | {megabytes - bare[1]:.1f} |")
    return median[STRATEGY][0] / median[DEPENDENCIES][0]


def near_duplicates(count: int = 20_000) -> float:
    """Texts of 100 words, and some that differ from one of them in one, or in two."""
    chance = random.Random(1)
    texts = [[f"word{chance.randrange(5000)}" for _ in range(100)] for _ in range(count)]
    index = UniqueReplies(0.8)
    tracemalloc.start()
    for item, words in enumerate(texts):
        index.claim(item, 1, " ".join(words))
        index.settle(item)
    kept = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    index = UniqueReplies(0.8)
    began = time.process_time()
    for item, words in enumerate(texts):
        index.claim(item, 1, " ".join(words))
        index.settle(item)
    each = (time.process_time() - began) / count
    found = {1: 0, 2: 0}
    for changed in found:
        for item, words in enumerate(texts[:1000]):
            other = words.copy()
            for at in range(changed):
                other[30 + 30 * at] = "another"
            found[changed] += index.claim(count, 1, " ".join(other)) == item
            index.settle(count)
    print(f"\n`unique=0.8`: {kept:.0f} bytes a reply, {1e6 * each:.0f} µs a check;")
    print(f"of 1,000 with a word changed {found[1]} are found, with two {found[2]}")
    return kept


async def consensus(count: int = 64) -> float:
    """The longest that a task waits for its turn while the texts are compared."""
    chance, longest, over = random.Random(1), 0.0, False

    async def write(_: Any) -> str:
        return " ".join(f"word{chance.randrange(400)}" for _ in range(200))

    async def tick() -> None:
        nonlocal longest
        while not over:
            began = time.perf_counter()
            await anyio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    strategy = RejectionSamplingStrategy(
        FunctionBackend(write),
        loop_budget=1,
        concurrency_budget=count,
        selection=Consensus(n=count),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        began = time.perf_counter()
        await strategy.sample("Write.")
        took = time.perf_counter() - began
        over = True
    print(f"\n`Consensus(n={count})`: {1e3 * took:.0f} ms, the event loop {1e3 * longest:.0f} ms")
    return longest


class Line(BaseModel):
    name: str
    amount: float


class Invoice(BaseModel):
    number: str
    lines: list[Line]


def reading() -> None:
    """`format=`: reading a reply, beside pydantic's own reading of its JSON."""
    print("\n| reply | pydantic, µs | `format=`, µs |\n|---|--:|--:|")
    for lines in (2, 20):
        made = {"number": "7", "lines": [{"name": f"n{n}", "amount": 1.5} for n in range(lines)]}
        text = json.dumps(made)
        took = [
            1e3 * min(timeit.repeat(read, number=1000, repeat=9))
            for read in (
                lambda text=text: format_of(Invoice).adapter.validate_json(text),
                lambda text=text: parse_reply(Invoice, text),
            )
        ]
        print(f"| {len(text)} characters | {took[0]:.1f} | {took[1]:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where one misses its target")
    check = parser.parse_args().check
    missed = importing() > 1, near_duplicates() > 1600, anyio.run(consensus) > 0.1
    reading()
    if any(missed):
        print("\nmissed: less than the dependencies, 1.6 KB a reply, or 0.1 s of the event loop")
    return int(check and any(missed))


if __name__ == "__main__":
    sys.exit(main())
