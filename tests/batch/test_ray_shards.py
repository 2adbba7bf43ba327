"""An actor's work on a shard of rows, tested without Ray on both event loops."""

from __future__ import annotations

import anyio
import pytest
from cluster_limit_kit import FakeActor
from pydantic import BaseModel
from shard_kit import Calls, block, sampler

from mellea_like import RejectionSamplingStrategy
from mellea_like.batch.ray import ClusterLimit
from mellea_like.batch.ray.cluster_limit import RemoteLimit
from mellea_like.errors import MelleaError
from mellea_like.limits import LimitedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


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


def limited(answers, tasks, limit, **more):
    """Make a sampler that asks a limit before each request, without Ray."""
    actor = sampler(answers.strategy, **more)
    actor._limit = RemoteLimit(FakeActor(limit, tasks))
    backend = LimitedBackend(answers, actor._limit)
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
