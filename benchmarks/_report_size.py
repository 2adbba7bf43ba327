"""How large a report is, and how long it takes to make.

A thousand items of a simulated model are sampled into a journal; the report is made of that. Then
it is made of a hundred times as many items, the same ones again and again, to see that neither the
page nor the memory grows with them.
"""

from __future__ import annotations

import itertools
import logging
import pathlib
import tempfile
import time
import tracemalloc

import anyio

from mellea_like import RepairTemplateStrategy
from mellea_like.backends import SimulatedBackend
from mellea_like.backends.simulated import passes
from mellea_like.batch import Journal, read_items, read_run, sample_many
from mellea_like.core.prices import Price
from mellea_like.report import figures_of, run_report

ITEMS = 1000
TIMES = 100


async def run(path: pathlib.Path, items: int) -> None:
    backend = SimulatedBackend(
        seed=5, median=0.001, pass_rate=0.6, error_rate=0.05, output_tokens=60, model="simulated"
    )
    strategy = RepairTemplateStrategy(backend, loop_budget=3, concurrency_budget=3, retry=None)
    prompts = (f"Say something about number {number}." for number in range(items))
    journal = Journal(path, prices={"simulated": Price(0.4, 1.6)})
    async with sample_many(
        strategy, prompts, requirements=[passes], concurrency=32, journal=journal
    ) as results:
        async for _ in results:
            pass


def measure(items: int = ITEMS, times: int = TIMES) -> dict[str, float]:
    """Make reports.

    Returns:
        ``kilobytes`` and ``seconds`` of the report on so many items, reading the journal included;
        ``kilobytes of 100 times`` as many, and the ``megabytes of memory`` that its figures take.
    """
    logging.getLogger("mellea_like").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place, "run.db")
        anyio.run(run, path, items)
        run_report(read_run(path), itertools.islice(read_items(path), 10))  # Imports take time.
        begun = time.perf_counter()
        page = run_report(read_run(path), read_items(path))
        took = time.perf_counter() - begun
        facts, some = read_run(path), list(read_items(path))
        again = itertools.chain.from_iterable(itertools.repeat(some, times))
        numbered = ({**item, "id": number} for number, item in enumerate(again))
        large = run_report(facts, numbered)
        tracemalloc.start()
        figures_of(facts, read_items(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return {
        "kilobytes": len(page.encode()) / 1000,
        "seconds": took,
        f"kilobytes of {times} times": len(large.encode()) / 1000,
        "megabytes of memory": peak / 1e6,
    }


if __name__ == "__main__":
    print(measure())
