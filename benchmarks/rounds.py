"""What `breadth_first=True` saves under a budget: recorded draws, replayed through the real engine.

    python benchmarks/rounds.py                print the table
    python benchmarks/rounds.py --check        and exit 1 where a number misses its target
    python benchmarks/rounds.py --orders 100   the mean of so many orders of tasks and draws

The draws are those of `benchmarks/data`: 81 tasks of HumanEval, whose draws passed their tests or
did not. Each task is an item of `sample_many`, whose budget has so many requests for each item on
average; a request takes a second of virtual time, and 8 items are sampled at a time.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from mellea_like import (
    Budget,
    Generation,
    RejectionSamplingStrategy,
    Request,
    Requirement,
)
from mellea_like.batch import sample_many
from mellea_like.errors import LimitExceeded
from mellea_like.testing import run_virtual

DRAWS = Path(__file__).parent / "data" / "humaneval_codegen16b.csv"
CAPS = (4, 6, 16)
TURNS = 16
BUDGETS = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Requests for each item, on average."""


def passes() -> list[list[bool]]:
    """Return which draws of each task passed."""
    with DRAWS.open(encoding="ascii") as file:
        return [[draw == "1" for draw in row["passed"]] for row in csv.DictReader(file)]


def shuffled(order: int) -> list[list[bool]]:
    """Return the tasks in another order, and the draws of each."""
    chance = random.Random(order)
    tasks = [chance.sample(drawn, len(drawn)) for drawn in passes()]
    chance.shuffle(tasks)
    return tasks


class Recorded:
    """Answers for task n with its draws, in their order."""

    def __init__(self, tasks: Sequence[Sequence[bool]]) -> None:
        self._tasks = tasks

    async def generate(self, request: Request) -> Generation:
        task = int(request.messages[-1].content)
        passed = self._tasks[task][(request.meta.iteration or 1) - 1]
        await anyio.sleep(1)
        return Generation("pass" if passed else "")


PASSES = Requirement("passes", lambda c: bool(c.text), inline=True, check_only=True)


def solved(tasks: Sequence[Sequence[bool]], requests: int, cap: int, *, breadth_first: bool) -> int:
    """Return how many tasks a run solves with a budget of requests."""

    async def run() -> int:
        strategy = RejectionSamplingStrategy(Recorded(tasks), loop_budget=cap)
        prompts = [str(task) for task in range(len(tasks))]
        budget = Budget(requests=requests)
        found = 0
        async with sample_many(
            strategy,
            prompts,
            concurrency=8,
            requirements=[PASSES],
            breadth_first=breadth_first,
            budget=budget,
        ) as results:
            try:
                async for item in results:
                    found += item.success
            except LimitExceeded:
                pass
        assert budget.spent.requests <= requests
        return found

    return run_virtual(run)


def measure(orders: int) -> dict[float, dict[str, float]]:
    """Return the mean number of tasks solved at each budget, breadth-first and depth-first."""
    found: dict[float, dict[str, float]] = {}
    for budget in BUDGETS:
        rows: dict[str, list[int]] = {}
        for number in range(orders):
            tasks = shuffled(number)
            requests = round(budget * len(tasks))
            rows.setdefault("breadth", []).append(
                solved(tasks, requests, TURNS, breadth_first=True)
            )
            for cap in CAPS:
                rows.setdefault(f"cap {cap}", []).append(
                    solved(tasks, requests, cap, breadth_first=False)
                )
        found[budget] = {name: statistics.fmean(counts) for name, counts in rows.items()}
    return found


def misses(found: dict[float, dict[str, float]], times: float = 1.25) -> list[str]:
    """Return which targets are missed."""
    missed = [
        f"at {budget:g} draws an item, {name}: {row[name]:.1f} beside {row['breadth']:.1f}"
        for budget, row in found.items()
        for name in row
        if row[name] > row["breadth"]
    ]
    if found[2]["breadth"] < times * found[2]["cap 4"]:
        missed.append(f"{times} times depth-first with a cap of 4, at 2 draws an item")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a number misses")
    parser.add_argument("--orders", type=int, default=40, help="orders (default 40)")
    arguments = parser.parse_args()
    found = measure(arguments.orders)
    print(f"\n## Solved of {len(passes())} tasks, mean of {arguments.orders} orders\n")
    print("| draws an item | breadth-first | depth-first, cap 4 | cap 6 | cap 16 | beside cap 4 |")
    print("|--:|--:|--:|--:|--:|--:|")
    for budget, row in found.items():
        counts = " | ".join(f"{count:.1f}" for count in row.values())
        print(f"| {budget:g} | {counts} | {row['breadth'] / row['cap 4']:.2f} |")
    missed = misses(found)
    for miss in missed:
        print("missed:", miss)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
