"""Cancellations that come at awkward moments: from outside, from a backend, and old ones."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from engine_kit import yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import BackendUnavailable
from mellea_like.limits import Retry

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lanes", [1, 3])
async def test_no_draw_starts_after_a_cancellation_that_its_backend_swallows(lanes, virtual_clock):
    started = []

    async def deaf(request):
        started.append(anyio.current_time())
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5)
        return "no"

    strategy = RejectionSamplingStrategy(
        FunctionBackend(deaf), loop_budget=4, concurrency_budget=lanes
    )
    with anyio.move_on_after(1) as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught
    assert started == [0.0] * lanes


async def test_a_backends_own_cancellation_while_the_caller_leaves_stays_in_the_callers_scope():
    async def stray(request):
        scope.cancel()
        raise asyncio.CancelledError  # On trio nobody can make trio's by hand.

    strategy = RejectionSamplingStrategy(FunctionBackend(stray))
    with anyio.CancelScope() as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_that_cleans_up_after_a_cancellation_is_tried_again(anyio_backend):
    backend = ScriptedBackend([BackendUnavailable("away"), "yes"])
    strategy = RejectionSamplingStrategy(backend, retry=Retry(3, initial=0.001))
    results = []

    async def main():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            results.append(await strategy.sample("do", [yes]))
            raise

    task = asyncio.create_task(main())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert results[0].success
