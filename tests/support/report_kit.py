"""Records for reports: of real calls of a simulated model, in virtual time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from mellea_like import Message, RepairTemplateStrategy, Requirement
from mellea_like.backends import SimulatedBackend
from mellea_like.backends.simulated import passes
from mellea_like.testing import run_virtual

BEGUN = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)
MODEL = "simulated-small"
PRICES = {MODEL: [0.4, 1.6]}


def contains(word: str) -> Requirement:
    def check(candidate: Any) -> tuple[bool, str]:
        there = word in candidate.text.split()
        return there, "" if there else f"the word {word!r} is missing"

    return Requirement(f"the reply says {word!r}", check, name=f"says {word}", inline=True)


CHECKS = [passes, contains("alpha"), contains("beta")]


def calls(number: int, seed: int = 7, **more: Any) -> list[dict[str, Any]]:
    """Sample so many times, a few at a time; gives an item for each."""
    chance = {"pass_rate": 0.7, "error_rate": 0.08, "straggler_rate": 0.05, **more}
    backend = SimulatedBackend(seed=seed, median=1.2, output_tokens=14, model=MODEL, **chance)
    strategy = RepairTemplateStrategy(backend, loop_budget=3, concurrency_budget=3, retry=None)
    items: list[dict[str, Any]] = []

    async def one(position: int, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            begun = anyio.current_time()
            ask = Message("user", f"Write a line about harbour number {position}.")
            trace, error = None, None
            try:
                result = await strategy.sample(ask, CHECKS)
            except Exception as exc:
                error = {"type": type(exc).__name__, "message": str(exc)}
            else:
                trace = result.to_dict()
            items.append(item(position, trace, error, begun, anyio.current_time() - begun))

    async def all_of_them() -> None:
        limiter = anyio.CapacityLimiter(8)
        async with anyio.create_task_group() as tasks:
            for position in range(number):
                tasks.start_soon(one, position, limiter)

    run_virtual(all_of_them)
    return items


def item(
    position: int,
    trace: dict[str, Any] | None,
    error: dict[str, str] | None = None,
    begun: float = 0.0,
    elapsed: float = 1.0,
    **more: Any,
) -> dict[str, Any]:
    """An item's record, as a journal's reader gives it."""
    status = "errored" if trace is None else "passed" if trace["success"] else "failed"
    nothing = {"requests": 0, "input_tokens": 0, "output_tokens": 0, "unknown": 0}
    return {
        "id": position,
        "label": f"harbour number {position}",
        "data": None,
        "status": status,
        "attempts": 1,
        "error": error,
        "started": (BEGUN + timedelta(seconds=begun)).isoformat(),
        "elapsed": elapsed if trace is None else trace["elapsed"],
        "usage": nothing if trace is None else trace["usage"],
        "trace": trace,
        **more,
    }


def run_of(items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A run's record."""
    counts = {
        status: sum(i["status"] == status for i in items)
        for status in ("passed", "failed", "errored", "unfinished")
    }
    return {
        "format": "mellea_like.run",
        "version": 1,
        "identity": {
            "strategy": "RepairTemplateStrategy",
            "model": MODEL,
            "requirements": [check.description for check in CHECKS],
            "options": {"temperature": 0.7, "max_tokens": 64},
            "prompt": "Write a line about {harbour}.",
            "input": "harbours.jsonl",
        },
        "started": BEGUN.isoformat(),
        "ended": (BEGUN + timedelta(seconds=0.3 * len(items))).isoformat(),
        "counts": counts,
        "prices": PRICES,
        **more,
    }


def many(items: list[dict[str, Any]], number: int, seed: int = 1) -> list[dict[str, Any]]:
    """As many items, drawn from a few."""
    chance = random.Random(seed)
    return [{**chance.choice(items), "id": n, "label": f"harbour number {n}"} for n in range(number)]
