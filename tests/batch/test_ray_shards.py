"""What an actor does with a shard, without Ray: rows in, rows and results out, on both loops."""

from __future__ import annotations

import anyio
import pytest
from cluster_limit_kit import FakeActor
from pydantic import BaseModel
from shard_kit import Calls, block, sampler

from mellea_like import RejectionSamplingStrategy, requirement
from mellea_like.backends import FunctionBackend
from mellea_like.batch.ray import ClusterLimit
from mellea_like.batch.ray.cluster_limit import RemoteLimit
from mellea_like.batch.ray.shards import POSITION, ShardSampler, ShardWork
from mellea_like.errors import MelleaError
from mellea_like.limits import LimitedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def test_rows_come_back_in_order_with_what_came_of_them():
    calls = Calls()
    table = await sampler(calls.strategy, calls=4)(block(3, 13))
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == list(range(3, 13))
    assert {(row["output"], row["status"], row["success"]) for row in rows} == {
        ("yes", "passed", True)
    }
    assert sorted(calls.asked) == sorted(f"row {n}" for n in range(3, 13))
    assert POSITION not in rows[0]


async def test_shards_share_an_actors_calls_and_the_oldest_goes_first():
    calls = Calls()
    actor, ended = sampler(calls.strategy, calls=4), []

    async def shard(start):
        await actor(block(start, start + 10))
        ended.append(start)

    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for start in (0, 10, 20):
            tasks.start_soon(shard, start)
            await anyio.wait_all_tasks_blocked()
    assert calls.most == 4
    assert ended == [0, 10, 20]
    # 30 rows, 4 at a time: a shard's last rows leave no room empty.
    assert anyio.current_time() - began == pytest.approx(8 * 0.25, abs=0.05)


async def test_a_shard_that_is_broken_off_leaves_its_room_to_the_next():
    calls = Calls()
    actor = sampler(calls.strategy, calls=2)
    with anyio.move_on_after(0.6):
        await actor(block(0, 100))
    assert calls.in_flight == 0
    began = anyio.current_time()
    with anyio.fail_after(10):
        await actor(block(0, 4))
    assert anyio.current_time() - began == pytest.approx(2 * 0.25, abs=0.05)


async def test_a_row_that_fails_is_a_failed_row():
    @requirement("says no", inline=True)
    def says_no(candidate):
        return False, "it said yes"

    def action(row):
        if row["id"] == 1:
            raise KeyError("no such thing")
        return "hi"

    work = ShardWork(Calls().strategy, action, requirements=(says_no,))
    first, second = (await ShardSampler(work)(block(0, 2))).to_pylist()
    assert (first["status"], first["output"]) == ("failed", "yes")
    assert "it said yes" in first["reasons"][0]
    assert (second["status"], second["error"]) == ("errored", "KeyError: 'no such thing'")


class Answer(BaseModel):
    word: str


async def test_replies_that_are_parsed_stand_in_value():
    calls = Calls(answer='{"word": "yes"}')
    rows = (await sampler(calls.strategy, format=Answer)(block(0, 1))).to_pylist()
    assert rows[0]["value"] == '{"word":"yes"}'


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: {}["model"], "make_strategy failed in a Ray actor: KeyError: 'model'"),
        (lambda: None, "TypeError: make_strategy returned None, which isn't a strategy"),
    ],
)
async def test_a_factory_that_fails_is_told_with_the_first_shard(make, says):
    actor = sampler(make)
    with pytest.raises(MelleaError, match=says):
        await actor(block(0, 1))


# --- the cluster's limit -----------------------------------------------------------------------


def limited(answers, tasks, limit, **more):
    """Make an actor that asks for each request, without Ray."""
    actor = sampler(answers.strategy, **more)
    actor._limit = RemoteLimit(FakeActor(limit, tasks))
    backend = LimitedBackend(FunctionBackend(answers), actor._limit)
    actor._strategy = RejectionSamplingStrategy(backend, loop_budget=1)
    return actor


async def test_rows_that_the_budget_does_not_reach_are_unfinished_and_the_shard_goes_on():
    calls = Calls()
    async with anyio.create_task_group() as tasks:
        actor = limited(calls, tasks, ClusterLimit(requests=7), calls=2)
        rows = (await actor(block(0, 10))).to_pylist()
    done = [row["status"] for row in rows]
    assert (done.count("passed"), len(calls.asked)) == (7, 7)
    assert done.count("unfinished") + done.count("errored") == 3
    assert all("budget 'cluster'" in row["error"] for row in rows if not row["success"])
    assert [row["id"] for row in rows] == list(range(10))


async def test_rows_are_unfinished_and_say_why_when_the_limits_actor_is_dead():
    calls = Calls()
    async with anyio.create_task_group() as tasks:
        actor = limited(calls, tasks, ClusterLimit(requests=7))
        actor._limit._keeper.die()
        rows = (await actor(block(0, 10))).to_pylist()
    assert calls.asked == []
    assert {row["success"] for row in rows} == {False}
    assert all("limit is gone, so nothing more is sent (killed)" in row["error"] for row in rows)
