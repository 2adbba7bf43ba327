"""The limit of a cluster holds for all its workers, whoever of them dies, or the office."""

from __future__ import annotations

import anyio
import pytest
from lease_kit import FakeOffice, Server, Worker

from mellea_like.batch.ray import ClusterLimit
from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def run_for(seconds, *workers, during=None):
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.run)
            if during is not None:
                await during()


@pytest.mark.parametrize("workers", [1, 3, 8])
async def test_workers_together_keep_to_the_rate_and_use_it(workers):
    limit = ClusterLimit(requests_per_minute=600)
    office, server = FakeOffice(limit, workers), Server()
    await run_for(100, *[Worker(office, f"w{n}", server) for n in range(workers)])
    burst = workers * max(1, 10 / workers)
    assert server.most_in(60) <= 600 + burst + workers
    assert len(server.came) >= 0.93 * 1000


async def test_a_worker_with_nothing_to_do_leaves_its_share_to_the_others():
    limit = ClusterLimit(requests_per_minute=600)
    office, server = FakeOffice(limit, 4), Server()
    idle = [Worker(office, f"idle{n}", Server()) for n in range(3)]

    async def rest(worker):
        await worker.run(most=1)

    start = anyio.current_time()
    with anyio.move_on_after(60):
        async with anyio.create_task_group() as tasks:
            for worker in idle:
                tasks.start_soon(rest, worker)
            tasks.start_soon(Worker(office, "busy", server).run)
    assert server.between(start + 10, start + 60) >= 0.93 * 500


async def test_tokens_are_shared_as_requests_are():
    limit = ClusterLimit(tokens_per_minute=12_000)
    office, server = FakeOffice(limit, 2), Server(0.1, Usage(1, 10, 10))
    await run_for(60, Worker(office, "a", server), Worker(office, "b", server))
    assert 500 <= len(server.came) <= 640  # 20 tokens each.


async def test_without_the_office_workers_slow_down_and_do_not_stop():
    limit = ClusterLimit(requests_per_minute=600, lease_seconds=2.0)
    office, server = FakeOffice(limit, 2), Server()
    start = anyio.current_time()

    async def die():
        await anyio.sleep(60)
        office.die()

    await run_for(180, Worker(office, "a", server), Worker(office, "b", server), during=die)
    before = server.between(start + 20, start + 60)
    soon = server.between(start + 62, start + 64)
    late = server.between(start + 120, start + 180)
    assert 370 <= before <= 404
    assert 4 <= soon <= 12  # Half of 20.
    assert 60 <= late <= 80  # An eighth of 600.


async def test_a_new_office_has_them_back_at_their_rate_and_never_beyond_it():
    limit = ClusterLimit(requests_per_minute=600, lease_seconds=2.0)
    office, server = FakeOffice(limit, 3), Server()
    start = anyio.current_time()

    async def die_and_come_back():
        for second in (20, 45, 70):
            await anyio.sleep(start + second - anyio.current_time())
            office.die()
            await anyio.sleep(5)
            office.make()

    workers = [Worker(office, f"w{n}", server) for n in range(3)]
    await run_for(140, *workers, during=die_and_come_back)
    assert server.most_in(60) <= 600 + 3 * 4
    assert server.between(start + 90, start + 140) >= 0.93 * 500


async def test_a_worker_that_has_never_met_an_office_goes_slowly():
    limit = ClusterLimit(requests_per_minute=600)
    office, server = FakeOffice(limit, 2), Server()
    office.die()
    await run_for(120, Worker(office, "a", server))
    assert 60 <= len(server.came) <= 110  # An eighth of the half that is its own, at first more.


@pytest.mark.parametrize("workers", [1, 2, 5])
async def test_workers_together_send_as_many_requests_as_the_budget_has(workers):
    office, server = FakeOffice(ClusterLimit(requests=97), workers), Server(0.05)
    crew = [Worker(office, f"w{n}", server) for n in range(workers)]
    await run_for(600, *crew)
    assert len(server.came) == 97
    assert all("budget (requests=97) is spent" in str(worker.denied) for worker in crew)


async def test_money_is_spent_to_the_last_request_that_fits():
    limit = ClusterLimit(money=1.0, prices={"some-model": Price(100.0, 900.0)})
    office, server = FakeOffice(limit, 2), Server(0.05, Usage(1, 5, 10))
    crew = [Worker(office, name, server) for name in "ab"]
    await run_for(600, *crew)
    each = (5 * 100 + 10 * 900) / 1e6
    assert 1.0 - each <= len(server.came) * each <= 1.0 + 1e-9
    assert all(worker.denied for worker in crew)


async def test_without_the_office_a_worker_spends_what_it_leased_and_waits():
    office, server = FakeOffice(ClusterLimit(requests=1000), 2), Server(0.1)
    crew = [Worker(office, name, server) for name in "ab"]
    start = anyio.current_time()

    async def die_and_come_back():
        await anyio.sleep(1.05)
        office.die()
        await anyio.sleep(60)
        office.make()

    await run_for(300, *crew, during=die_and_come_back)
    leased = server.between(start, start + 30)
    assert leased < 1000
    assert server.between(start + 30, start + 61) == 0
    assert len(server.came) == 1000
    assert all(worker.denied for worker in crew)


async def test_what_a_dead_worker_had_leased_is_not_leased_again_and_the_others_end():
    office, server = FakeOffice(ClusterLimit(requests=200), 2), Server(0.1)
    dead, alive = Worker(office, "dead", server), Worker(office, "alive", server)
    async with anyio.create_task_group() as tasks:
        dead_scope = anyio.CancelScope()

        async def doomed():
            with dead_scope:
                await dead.run()

        tasks.start_soon(doomed)
        await anyio.sleep(0.55)
        dead.lessee._office = _Nowhere()
        dead_scope.cancel()
    await run_for(300, alive)
    assert alive.denied
    assert len(server.came) <= 200
    assert len(server.came) >= 120


class _Nowhere:
    async def exchange(self, ask):
        await anyio.sleep_forever()


async def test_two_workers_that_hold_what_the_other_needs_do_not_wait_for_each_other():
    limit = ClusterLimit(output_tokens=100, lease_seconds=2.0)
    office = FakeOffice(limit, 2)
    server = Server(0.1, Usage(1, 10, 10))
    crew = [Worker(office, name, server, calls=2, max_tokens=60) for name in "ab"]
    await run_for(300, *crew)
    assert all(worker.denied for worker in crew)
    assert len(server.came) == 5  # 10 tokens each; the last that may take 60 began with 40 spent.


async def test_what_is_denied_for_one_request_is_left_for_a_smaller_one():
    office, server = FakeOffice(ClusterLimit(output_tokens=100), 1), Server(0.0, Usage(1, 1, 10))
    large = Worker(office, "a", server, max_tokens=200)
    await run_for(60, large)
    small = Worker(office, "a", server, max_tokens=10, holder="a-2")
    await run_for(60, small)
    assert large.denied
    assert large.sent == 0
    assert small.sent == 10


async def test_a_cancelled_request_leaves_the_line():
    office, server = FakeOffice(ClusterLimit(requests=1), 1), Server(1.0)
    worker = Worker(office, "a", server, calls=3)
    with anyio.move_on_after(0.5):
        await worker.run()
    assert worker.lessee.statistics().waiting == 0
    assert len(server.came) == 1


async def test_who_leaves_while_it_waits_for_the_rate_gives_its_part_of_the_budget_back():
    limit = ClusterLimit(requests=10, requests_per_minute=1)
    office, server = FakeOffice(limit, 1), Server()
    worker = Worker(office, "a", server, calls=3)
    with anyio.move_on_after(5):
        await worker.run()
    entry = worker.lessee.statistics().entry
    assert entry.spent.requests == len(server.came) == 1
    assert entry.held.requests == 1  # The rest was given back when the block ended.
    assert office.book.books["a-1"].held.requests == 1


async def test_a_worker_that_had_nothing_to_do_gets_its_share_when_it_has():
    limit = ClusterLimit(requests_per_minute=600)
    office = FakeOffice(limit, 2)
    first, second = Server(), Server()
    late = Worker(office, "late", second, calls=8)

    async def come_late():
        await late.run(most=1)
        await anyio.sleep(30)
        assert late.lessee.statistics().share == 0.0
        await late.run()

    start = anyio.current_time()
    await run_for(90, Worker(office, "busy", first), during=come_late)
    assert second.between(start + 40, start + 90) >= 200
    assert first.between(start + 40, start + 90) >= 100


async def test_an_error_in_the_block_comes_out_as_it_is():
    worker = Worker(FakeOffice(ClusterLimit(requests=1), 1), "a", Server())
    with pytest.raises(KeyError, match="mine"):
        async with worker.lessee.in_use():
            raise KeyError("mine")


async def test_an_office_that_hangs_is_one_that_is_gone():
    limit = ClusterLimit(requests_per_minute=600, lease_seconds=2.0)
    office, server = FakeOffice(limit, 1), Server()
    worker = Worker(office, "a", server)

    async def hang():
        await anyio.sleep(20)
        office.delay = 1e6

    start = anyio.current_time()
    await run_for(100, worker, during=hang)
    assert 40 <= server.between(start + 60, start + 100) <= 60  # An eighth of 10 a second.
