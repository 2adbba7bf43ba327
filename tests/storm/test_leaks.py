"""A thousand calls leave no more behind than one."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from typing import Any

import anyio
import pytest
from oracle_world import Ask
from storm import INLINE, Draw, Rig, Told, handler, is_good

from mellea_like import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
)
from mellea_like.errors import MelleaError
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.testing.virtual_clock import run_virtual

STRATEGIES = [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
BAD, NEVER = Draw("bad", 0.1), Draw("good", 9)
PLANS: list[dict[int, Draw]] = [
    {1: BAD, 2: Draw("good", 0.2), 3: NEVER, 4: NEVER},
    dict.fromkeys(range(1, 5), BAD),
    {1: Draw("transient", 0.1), 2: BAD, 3: Draw("garbled", 0.1), 4: Draw("good", 0.1)},
    dict.fromkeys(range(1, 5), Draw("permanent", 0.1)),
    {1: Draw("stray", 0.1), 2: BAD, 3: Draw("messy", 9)},
    dict.fromkeys(range(1, 5), NEVER),
]


async def _is_good(candidate: Any) -> bool:
    await anyio.sleep(0.1)
    return is_good(candidate)


LATER = Requirement("good, once more", _is_good)


async def call(number: int) -> None:
    """Make one call; six kinds of plan, with and without plugins, and every fifth is left."""
    rig, told = Rig(PLANS[number % len(PLANS)]), Told()
    plugins: list[Any] = [told, handler(told, HookType.SAMPLING_LOOP_END, HookMode.BACKGROUND, _no)]
    strategy = STRATEGIES[number % 3](
        rig,
        loop_budget=2,
        concurrency_budget=2,
        plugins=plugins if number % 2 else [],
        selection="ordered" if number % 7 == 0 else "first",
        timeout=1.0,
        iteration_timeout=0.9 if number % 4 == 0 else None,
    )
    with anyio.move_on_after(0.15 if number % 5 == 0 else 60):
        try:
            await strategy.sample(Ask(), [INLINE, LATER])
        except (MelleaError, ExceptionGroup):
            return


async def _no(payload: Any) -> None:
    await anyio.sleep(0.1)


async def grown(first: int, calls: int) -> tuple[int, int]:
    """Return by how many objects, and by how many bytes, so many calls have grown the process."""
    gc.collect()
    objects, size = len(gc.get_objects()), tracemalloc.get_traced_memory()[0]
    for number in range(first, first + calls):
        await call(number)
    gc.collect()
    return len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0] - size


async def measure() -> tuple[int, int]:
    """Return the growth of the process: in objects by 1,000 calls, and in bytes by 200.

    The bytes are the smaller of two measurements, since a table that grows once isn't a leak.
    """
    await grown(0, 420)  # All kinds there are, and whatever is made once.
    objects, _ = await grown(420, 800)
    tracemalloc.start()
    try:
        await grown(1220, 200)  # Free lists fill up, more slowly from Python 3.12 on.
        _, once = await grown(1420, 200)
        more, again = await grown(1620, 200)
    finally:
        tracemalloc.stop()
    return objects + more, min(once, again)


@pytest.fixture(autouse=True)
def _no_logs():
    """pytest keeps what is logged, and with it every error."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thousand_calls_leave_nothing_in_memory(backend):
    objects, size = run_virtual(measure, backend=backend)
    assert objects < 100
    assert size < 20_000


def test_a_hundred_calls_of_sample_sync_leave_nothing_in_memory():
    strategy = RejectionSamplingStrategy(Rig(default=Draw("good", 0)), concurrency_budget=3)
    for _ in range(20):
        strategy.sample_sync(Ask(), [INLINE])
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        assert strategy.sample_sync(Ask(), [INLINE]).success
    rig = strategy.settings.backend
    assert isinstance(rig, Rig)
    rig.seen.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 50
