"""What a worker has leased of the budget: what it reserves, charges, gives back and denies."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from lease_kit import FakeOffice, Server, Worker
from limiter_kit import request

from mellea_like.batch.ray import ClusterLimit
from mellea_like.batch.ray.leased_budget import LeasedBudget
from mellea_like.batch.ray.leases import Entry
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import LimitExceeded
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.ledger import Amounts

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

SERVER = Server()


def leased(granted=0):
    asked = []
    budget = LeasedBudget(ClusterLimit(output_tokens=1000), lambda: asked.append(True))
    budget.take(Entry(Amounts(0, 0, granted)))
    return budget, asked


def tokens(amounts):
    return amounts.output_tokens


async def acquire(budget, most):
    return await budget.acquire(request(max_tokens=most), SERVER)


async def test_what_is_reserved_is_not_given_back():
    budget, _ = leased(100)
    permit = await acquire(budget, 60)
    budget.give_back()
    assert tokens(budget.entry.returned) == 40
    permit.release(RequestEnd(Usage(1, 5, 10), Generation("yes"), None))
    budget.give_back()
    assert (tokens(budget.entry.returned), tokens(budget.entry.spent)) == (90, 10)
    assert tokens(budget.entry.unspent) == 0


async def test_what_is_wanted_ahead_grows_with_what_was_reserved_lately():
    budget, _ = leased(100)
    permit = await acquire(budget, 60)
    assert tokens(budget.wants()) == 3 * 60 - 40
    assert tokens(budget.wants()) == 0  # Nothing new since.
    permit.release(RequestEnd(Usage(), None, None))
    assert tokens(budget.entry.spent) == 0


async def test_who_finds_no_room_asks_for_what_is_missing_and_waits_for_it():
    budget, asked = leased(50)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(acquire, budget, 80)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(acquire, budget, 10)
        await anyio.wait_all_tasks_blocked()
        assert (len(asked), budget.waiting) == (2, 2)  # The later one does not go first.
        assert tokens(budget.needs()) == 30
        budget.take(Entry(Amounts(0, 0, 80)))
        await anyio.wait_all_tasks_blocked()
        assert budget.waiting == 1
        budget.take(Entry(Amounts(0, 0, 90)))
    assert budget.needs() is None


async def test_who_is_denied_is_told_why_and_who_can_still_be_served_is_not_denied():
    budget, _ = leased(80)
    permit = await acquire(budget, 60)
    errors = []

    async def ask(most):
        try:
            await acquire(budget, most)
        except LimitExceeded as exc:
            errors.append(str(exc))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 70)
        await anyio.wait_all_tasks_blocked()
        budget.deny()  # The request under way may cost nothing.
        assert budget.waiting == 1
        permit.release(RequestEnd(Usage(1, 5, 20), Generation("yes"), None))
        budget.deny()
        budget.deny()
    assert len(errors) == 1
    assert "the cluster's budget (output_tokens=1000) is spent" in errors[0]
    assert "reply up to 70" in errors[0]


@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_reserves_nothing(granted):
    budget, _ = leased(0)
    got = []

    async def ask():
        got.append(await acquire(budget, 60))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        if granted:
            budget.take(Entry(Amounts(0, 0, 60)))
        tasks.cancel_scope.cancel()
    for permit in got:
        permit.release(RequestEnd(Usage(), None, None))
    assert budget.waiting == 0
    assert budget._account.reserved == Amounts()
    budget.take(Entry(Amounts(0, 0, 60)))
    await acquire(budget, 60)


async def test_who_is_cancelled_natively_at_the_moment_of_its_lease_reserves_nothing(
    anyio_backend_name,
):
    if anyio_backend_name != "asyncio":
        pytest.skip("only asyncio cancels natively")
    budget, _ = leased(0)
    waiting = asyncio.create_task(acquire(budget, 60))
    await anyio.wait_all_tasks_blocked()
    budget.take(Entry(Amounts(0, 0, 60)))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget._account.reserved == Amounts()


# --- with the office --------------------------------------------------------------------------


async def test_what_a_request_costs_beyond_its_estimate_is_missing_to_the_others():
    office = FakeOffice(ClusterLimit(output_tokens=100), 2)
    large, small = Server(0.1, Usage(1, 10, 90)), Server(0.1, Usage(1, 10, 10))
    await Worker(office, "a", large, max_tokens=10, calls=1).run(most=1)
    with anyio.move_on_after(60):
        await Worker(office, "b", small, max_tokens=10).run()
    assert (len(large.came), len(small.came)) == (1, 1)


async def test_a_request_that_comes_after_a_rest_need_not_wait_for_the_next_renewal():
    office, server = FakeOffice(ClusterLimit(requests=100, lease_seconds=60.0), 1), Server()
    worker = Worker(office, "a", server)
    async with worker.lessee.in_use():
        await anyio.sleep(5)
        came = anyio.current_time()
        await worker.backend.generate(request(max_tokens=10))
        assert anyio.current_time() - came < 1.0


async def test_a_new_office_learns_from_the_living_what_the_dead_had_spent():
    office, server = FakeOffice(ClusterLimit(requests=97), 2), Server(0.1)
    alive = Worker(office, "alive", server)
    async with alive.lessee.in_use():
        await Worker(office, "dead", server).run(most=30)
        await anyio.sleep(3)
        office.die()
        office.make()
        with anyio.move_on_after(60):
            await alive.run()
    assert alive.denied
    assert len(server.came) == 97


async def test_nobody_goes_before_it_has_heard_of_the_office():
    limit = ClusterLimit(requests_per_minute=600, lease_seconds=2.0)
    office, server = FakeOffice(limit, 2, delay=0.9), Server()
    start = anyio.current_time()
    with anyio.move_on_after(5):
        await Worker(office, "a", server).run()
    assert server.between(start, start + 0.9) == 0
    assert server.between(start + 0.9, start + 5) > 10


async def test_requests_under_way_are_waited_for_before_one_is_denied():
    office = FakeOffice(ClusterLimit(output_tokens=100), 1)
    server = Server(3.0, Usage(1, 10, 10))
    worker = Worker(office, "a", server, calls=2, max_tokens=60)
    with anyio.move_on_after(300):
        await worker.run()
    assert worker.denied
    assert len(server.came) == 5  # One at a time: 60 are reserved, and 10 spent.
