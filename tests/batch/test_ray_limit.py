"""A cluster's limit holds for all its workers, even if one or the limit's actor dies."""

from __future__ import annotations

import pickle
from contextlib import asynccontextmanager

import anyio
import pytest
from cluster_limit_kit import FakeActor, Server, Worker

from mellea_like.batch.ray import ClusterLimit
from mellea_like.batch.ray.cluster_limit import SILENCE
from mellea_like.core.prices import Price
from mellea_like.errors import BackendTimeout, LimitExceeded, RateLimited

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


@asynccontextmanager
async def actor_of(**limits):
    async with anyio.create_task_group() as tasks:
        yield FakeActor(ClusterLimit(**limits), tasks)
        tasks.cancel_scope.cancel()


async def run_for(seconds, *workers):
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.run)


@pytest.mark.parametrize("workers", [1, 5])
async def test_workers_together_keep_to_the_rate_and_use_it(workers):
    server = Server()
    async with actor_of(requests_per_minute=120) as actor:
        await run_for(100, *[Worker(actor, server) for _ in range(workers)])
    assert server.most_in(60) <= 120 + 2
    assert len(server.came) >= 0.97 * 200


@pytest.mark.parametrize("workers", [1, 5])
async def test_workers_together_send_as_many_requests_as_the_budget_has(workers):
    server = Server(0.05)
    async with actor_of(requests=97) as actor:
        crew = [Worker(actor, server) for _ in range(workers)]
        await run_for(600, *crew)
        assert (actor.spent().requests, actor.reserved().requests) == (97, 0)
    assert len(server.came) == 97
    assert all("97 of 97 requests were made" in str(worker.denied) for worker in crew)


async def test_what_a_dead_worker_had_under_way_counts_as_spent_and_the_others_go_on():
    async with actor_of(requests=10, output_tokens=1000) as actor:
        dead, alive = Worker(actor, Server(1e6)), Worker(actor, server := Server(0.1))
        scope = anyio.CancelScope()

        async def doomed():
            with scope:
                await dead.run()

        actor.tasks.start_soon(doomed)
        await anyio.sleep(1)
        actor.loses = True  # A process that is killed says nothing.
        scope.cancel()
        await anyio.sleep(1)
        actor.loses = False
        began = anyio.current_time()
        await alive.run()
        assert anyio.current_time() - began == pytest.approx(SILENCE, abs=10)
        assert len(server.came) == 6
        assert actor.spent().requests == 10
        assert actor.spent().output_tokens == 4 * 10 + 6 * 10
        assert actor.reserved().requests == 0


async def test_a_worker_that_was_taken_for_dead_while_it_waited_is_told():
    async with actor_of(requests=100, requests_per_minute=0.1) as actor:
        waiting, other = Worker(actor, server := Server()), Worker(actor, Server())
        await other.send()
        async with anyio.create_task_group() as tasks:
            with pytest.raises(LimitExceeded, match="hadn't heard from this worker for 60 s"):
                # Outside of the block, it sends no reports.
                tasks.start_soon(heard_later, actor)
                await waiting.send()
        assert actor.reserved().requests == 0
        assert server.came == []


async def heard_later(actor):
    await anyio.sleep(SILENCE + 5)
    await actor.alive("another")


@pytest.mark.parametrize(
    ("error", "charged", "pause"),
    [
        (RateLimited("secret", retry_after=30.0), (0, 0), 30.0),
        (BackendTimeout("secret"), (5, 10), 0.0),  # All that was reserved for the reply.
        (ValueError("secret"), (5, 10), 0.0),
    ],
)
async def test_limits_hear_of_an_error_what_matters_to_them(error, charged, pause):
    class Failing(Server):
        async def generate(self, request):
            self.came.append(anyio.current_time())
            request.meter.start()
            raise error

    async with actor_of(input_tokens=100, requests_per_minute=60_000) as actor:
        worker = Worker(actor, server := Failing())
        for _ in range(2):
            with pytest.raises(type(error)):
                await worker.send()
            await anyio.sleep(0.1)
        assert actor.spent() == (2, 2 * charged[0], 2 * charged[1], 0)
        assert server.came[1] - server.came[0] == pytest.approx(pause, abs=0.2)


@pytest.mark.parametrize("calls", [1, 4])
async def test_workers_stop_with_a_clear_error_when_the_actor_dies(calls):
    async with actor_of(requests=1000) as actor:
        worker = Worker(actor, server := Server(1.0), calls=calls)
        actor.tasks.start_soon(worker.run)
        await anyio.sleep(5)
        actor.die()
        sent = len(server.came)
        await anyio.sleep(3)
        assert len(server.came) <= sent + calls
        assert "the actor that keeps the cluster's limit is gone" in str(worker.denied)
        assert "(killed); run this again" in str(worker.denied)
        with pytest.raises(LimitExceeded, match="is gone"):
            await worker.send()


@pytest.mark.parametrize(
    ("limits", "error", "says"),
    [
        ({}, ValueError, "ClusterLimit needs a limit: requests_per_minute"),
        ({"requests": 0}, ValueError, "requests"),
        ({"requests_per_minute": "1"}, TypeError, "requests_per_minute"),
        ({"money": 1.0}, ValueError, "prices"),
        ({"requests": 1, "prices": 3}, TypeError, "prices"),
        ({"requests": 1, "assume_output_tokens": 0}, ValueError, "assume_output_tokens"),
    ],
)
def test_what_is_wrong_with_a_limit_is_said_when_it_is_made(limits, error, says):
    with pytest.raises(error, match=says):
        ClusterLimit(**limits)


def test_a_limit_can_be_sent_to_an_actor_and_keeps_its_name():
    limit = ClusterLimit(money=1.0, prices={"m": Price(1.0, 2.0)}, requests_per_minute=5)
    again = pickle.loads(pickle.dumps(limit))
    assert again == limit
    assert again.name != ClusterLimit(requests=1).name
