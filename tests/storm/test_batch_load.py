"""The speed and the memory of batches with very many items."""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mellea_like import Generation, RejectionSamplingStrategy, Request
from mellea_like.batch import sample_many
from mellea_like.core import Usage

pytestmark = [pytest.mark.anyio, pytest.mark.storm, pytest.mark.timeout(600)]

REPLY = Generation("x", usage=Usage(1, 1, 1))


class Instant:
    """A backend that answers after one checkpoint."""

    async def generate(self, request: Request) -> Generation:
        await checkpoint()
        return REPLY


STRATEGY = RejectionSamplingStrategy(Instant())
CONCURRENCY = 64


def prompts(items: int) -> Iterator[str]:
    return (f"prompt {n}" for n in range(items))


async def by_hand(items: int) -> int:
    """Sample the items in one task each, limited by a semaphore."""
    passed = 0
    free = anyio.Semaphore(CONCURRENCY)

    async def one(prompt: str) -> None:
        nonlocal passed
        try:
            result = await STRATEGY.sample(prompt)
            passed += result.success
        finally:
            free.release()

    async with anyio.create_task_group() as tasks:
        for prompt in prompts(items):
            await free.acquire()
            tasks.start_soon(one, prompt)
    return passed


async def batch(items: int) -> int:
    passed = 0
    async with sample_many(STRATEGY, prompts(items), concurrency=CONCURRENCY) as results:
        async for item in results:
            passed += item.success
    return passed


@pytest.mark.parametrize("ordered", [False, True])
async def test_memory_does_not_grow_with_the_items(ordered):
    blocks = []
    async with sample_many(
        STRATEGY, prompts(8_000), concurrency=CONCURRENCY, in_order=ordered
    ) as results:
        async for item in results:
            if results.progress.handed_on % 1_600 == 0:
                del item
                gc.collect()
                blocks.append(sys.getallocatedblocks())
    assert len(blocks) == 5
    assert max(blocks[1:]) - blocks[0] < 2_000


async def calls_made(run: Callable[[int], Awaitable[int]], items: int) -> int:
    """Count the functions of Python and C that a run calls. A busy machine doesn't change that."""
    made = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        made += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        assert await run(items) == items
    finally:
        sys.setprofile(None)
    return made


async def test_items_take_few_more_steps_than_in_a_task_group_of_ones_own():
    """`benchmarks/load.py` measures seconds. A test that did so would depend on the machine."""
    alone, batched = await calls_made(by_hand, 1_000), await calls_made(batch, 1_000)
    assert batched < 1.3 * alone  # 1.14 to 1.18 times as many.
