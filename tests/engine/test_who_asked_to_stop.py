"""Cancellations that come at awkward moments: from outside, from a backend, and old ones."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from engine_kit import yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.function import FunctionBackend

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
