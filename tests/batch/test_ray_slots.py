"""Calls of an actor go to its oldest shard first; and whether a cluster has room, in a table."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from mellea_like.batch.ray.capacity import Room, shortage
from mellea_like.batch.ray.slots import Slots


@pytest.mark.anyio
@pytest.mark.usefixtures("virtual_clock")
async def test_the_oldest_shard_goes_first_and_no_more_than_the_slots_at_a_time():
    slots, order = Slots(1), []
    old, new = slots.shard(), slots.shard()
    await slots.acquire(old)

    async def wait(rank):
        await slots.acquire(rank)
        order.append(rank)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, new)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(wait, old)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        slots.release()
        await anyio.wait_all_tasks_blocked()
        assert order == [old]
        slots.release()
    assert order == [old, new]
    slots.release()
    await slots.acquire(new)


@pytest.mark.anyio
@pytest.mark.usefixtures("virtual_clock")
@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_while_it_waits_keeps_no_slot(granted):
    slots, got = Slots(1), []
    await slots.acquire(slots.shard())

    async def wait():
        await slots.acquire(slots.shard())
        got.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        if granted:
            slots.release()
        tasks.cancel_scope.cancel()
    if got or not granted:
        slots.release()
    with anyio.fail_after(1):
        await slots.acquire(1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_is_cancelled_natively_at_the_moment_of_its_turn_passes_the_slot_on():
    slots = Slots(1)
    await slots.acquire(slots.shard())
    waiting = asyncio.create_task(slots.acquire(slots.shard()))
    await anyio.wait_all_tasks_blocked()
    slots.release()
    waiting.cancel()  # As Ray does with a block's task when another one has failed.
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with anyio.fail_after(1):
        await slots.acquire(1)


@pytest.mark.parametrize(
    ("nodes", "available", "actors", "cpus", "says"),
    [
        ([4], 4, 3, 1.0, None),
        ([4], 4, 4, 1.0, "the cluster has 4 CPUs, and 4 actors of 1 CPU and the one CPU"),
        ([2], 2, 2, 0.5, None),
        ([2], 2, 3, 0.5, "are 2.5: Ray Data would wait for ever"),
        ([1], 1, 8, 0.0, None),
        ([0.5], 0.5, 8, 0.0, "the cluster has 0.5 CPUs"),
        ([], 0, 1, 1.0, "the cluster has 0 CPUs"),
        ([2, 2], 4, 3, 1.0, None),
        ([2, 2], 4, 1, 2.0, None),
        ([2, 2, 2], 6, 2, 2.0, None),
        ([3, 3], 6, 2, 2.0, None),
        ([2, 2, 1], 5, 2, 2.0, None),
        ([3, 1, 1], 5, 2, 2.0, "nodes have 3, 1, 1 CPUs, and 2 actors of 2 CPU"),
        ([0.5, 0.5, 0.5], 1.5, 1, 0.5, "nodes have 0.5, 0.5, 0.5 CPUs"),
        ([8], 2, 2, 1.0, "of the cluster's 8 CPUs, only 2 free"),
        ([8], 3, 2, 1.0, None),
        ([8], 2.9999999, 2, 1.0, None),
    ],
)
def test_a_cluster_without_room_says_what_is_missing(nodes, available, actors, cpus, says):
    found = shortage(Room(nodes, available), actors, cpus)
    if says is None:
        assert found is None
    else:
        assert says in found
