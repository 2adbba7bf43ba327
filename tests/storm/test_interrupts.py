"""An interrupt, wherever it strikes, ends the call and leaves as itself, in no group."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from leftovers import running
from oracle_world import Ask
from storm import INLINE, Draw, Rig, Told, check_nothing_left, handler

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.hooks.types import HookMode, HookType

pytestmark = pytest.mark.anyio


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which event loops treat in ways of their own."""


PLAN = {1: Draw("bad", 1), 2: Draw("good", 2), 3: Draw("transient", 1.5)}


async def strike(_: Any) -> Any:
    await checkpoint()
    raise Interrupt


def strike_at_once(_: Any) -> Any:
    raise Interrupt


async def expect_interrupt(
    rig: Rig, told: Told, plugins: Any = (), requirements: Any = (INLINE,), on_slice: Any = None
) -> None:
    strategy = RejectionSamplingStrategy(
        rig, loop_budget=2, concurrency_budget=3, plugins=[told, *plugins]
    )
    before = running()
    with pytest.raises(Interrupt):
        await strategy.sample(Ask(), requirements, on_slice=on_slice)
    check_nothing_left(before, rig, told)
    assert len(told.ends) == told.begun


@pytest.mark.parametrize("mode", HookMode)
@pytest.mark.parametrize("kind", HookType)
async def test_an_interrupt_in_a_hook_leaves_as_itself(kind, mode, virtual_clock):
    told = Told()
    plugins = [handler(told, kind, mode, strike)]
    await expect_interrupt(Rig(dict(PLAN), default=Draw("good", 9)), told, plugins)


@pytest.mark.parametrize("beside", [False, True])
async def test_an_interrupt_in_one_of_two_observers_leaves_as_itself(beside, virtual_clock):
    told = Told()
    plugins = [handler(told, HookType.GENERATION_PRE_CALL, HookMode.OBSERVE, strike)]
    if beside:
        plugins.append(handler(told, HookType.GENERATION_PRE_CALL, HookMode.OBSERVE, _sleep))
    await expect_interrupt(Rig(dict(PLAN)), told, plugins)


async def _sleep(_: Any) -> None:
    await anyio.sleep(1)


@pytest.mark.parametrize("validator", [strike, strike_at_once])
@pytest.mark.parametrize("others", [0, 1])
async def test_an_interrupt_in_a_validator_leaves_as_itself(validator, others, virtual_clock):
    requirement = Requirement("struck", validator, inline=validator is strike_at_once)
    others_beside = [Requirement("slow", _slow) for _ in range(others)]
    rig = Rig({1: Draw("good", 1)}, default=Draw("good", 9))
    await expect_interrupt(rig, Told(), requirements=[requirement, *others_beside])


async def _slow(_: Any) -> bool:
    await anyio.sleep(3)
    return True


@pytest.mark.parametrize("report", [strike, strike_at_once])
async def test_an_interrupt_in_on_slice_leaves_as_itself(report, virtual_clock):
    await expect_interrupt(Rig(dict(PLAN), default=Draw("good", 9)), Told(), on_slice=report)


class _Struck(Rig):
    async def _work(self, draw: Draw) -> None:
        await super()._work(draw)
        raise Interrupt


async def test_an_interrupt_in_a_backend_leaves_as_itself(virtual_clock):
    await expect_interrupt(_Struck({1: Draw("good", 1)}, default=Draw("good", 9)), Told())


def test_a_loop_that_shuts_down_before_the_subsamples_began_is_not_held_up():
    rig = Rig(default=Draw("good", 9))
    strategy = RejectionSamplingStrategy(rig, concurrency_budget=3)
    tasks = []

    async def main() -> None:
        tasks.append(asyncio.get_running_loop().create_task(strategy.sample(Ask(), [INLINE])))

    begun = time.monotonic()
    with warnings.catch_warnings():
        # asyncio throws a task away that never began, and Python warns of its coroutine.
        warnings.simplefilter("ignore", RuntimeWarning)
        asyncio.run(main())
        gc.collect()
    assert time.monotonic() - begun < 2
    assert tasks[0].cancelled()
    assert rig.in_flight == 0
