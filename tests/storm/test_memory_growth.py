"""A call after the first ones grows memory by less than 64 bytes, whatever is switched on."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from contextlib import suppress
from typing import Any

import anyio
import pytest

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.simulated import SimulatedBackend, passes
from mellea_like.errors import MelleaError
from mellea_like.limits import (
    AdaptiveLimiter,
    Budget,
    ConcurrencyLimiter,
    LimitedBackend,
    RateLimiter,
)
from mellea_like.schedules import Eager, Hedged, LatencyQuantiles, Staggered
from mellea_like.schedules.giving_up import PerRequirement
from mellea_like.testing import run_virtual

pytestmark = [pytest.mark.storm, pytest.mark.timeout(600)]

CALLS, WARM_UP, MOST = 300, 300, 64
ROUNDS = 3
"""What leaks does so in each round; what a thread or a cache takes once is no leak."""


def everything() -> list[dict[str, Any]]:
    """The settings that calls take in turn: each schedule, and what is shared between calls."""
    tenant = Budget(requests=10**6, seconds=10**9)
    latency = LatencyQuantiles(50)  # The warm-up fills it; the default's window takes 96 KiB.
    return [
        {},
        {"budget": Budget(requests=10**6, within=tenant)},
        {"schedule": Eager(pool=True), "give_up": PerRequirement()},
        {"schedule": Staggered(0.1), "budget": tenant},
        {"schedule": Hedged(latency=latency)},
    ]


@pytest.fixture(autouse=True)
def _no_logs():
    """pytest keeps what is logged, and with it every error."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def grown(backend: Any) -> float:
    """Return by how many bytes each call grows the process."""
    strategies = [
        RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=4, **its)
        for its in everything()
    ]

    async def call(number: int) -> None:
        strategy = strategies[number % len(strategies)]
        own = Budget(requests=3 + number % 20) if number % 4 == 0 else None
        with anyio.move_on_after(0.3 if number % 5 == 0 else 60), suppress(MelleaError):
            await strategy.sample("Say something.", [passes], budget=own)

    async def some(calls: int) -> None:
        for number in range(0, calls, 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, number)
                tasks.start_soon(call, number + 1)

    await some(WARM_UP)
    gc.collect()
    tracemalloc.start()
    try:
        # What is measured from here on is freed from here on: so many calls keep what they know.
        await some(500)
        gc.collect()
        growths: list[float] = []
        while not growths or (min(growths) >= MOST and len(growths) < ROUNDS):
            before, _ = tracemalloc.get_traced_memory()
            await some(CALLS)
            gc.collect()
            growths.append((tracemalloc.get_traced_memory()[0] - before) / CALLS)
        return min(growths)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_calls_grow_memory_by_less_than_64_bytes_each(library):
    backend = SimulatedBackend(pass_rate=0.3, median=0.2, error_rate=0.05, rate_limit_rate=0.02)
    limits = RateLimiter(requests_per_minute=10**6), ConcurrencyLimiter(6), AdaptiveLimiter()

    async def run() -> float:
        return await grown(LimitedBackend(backend, *limits))

    assert run_virtual(run, backend=library) < MOST
    assert backend.statistics().in_flight == 0
