"""Strategies sample through a coordinator as through any backend."""

from __future__ import annotations

import anyio
import pytest
from joint_kit import Person, entry

from mellea_like import RejectionSamplingStrategy, requirement
from mellea_like.coalescing import SamplingCoordinator
from mellea_like.errors import MissingAnswer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


@requirement("it says good", inline=True)
def good(candidate):
    return "good" in candidate.text, "say good"


def answers(function):
    """Answer the n-th task that is seen with what a function of n says."""
    seen = []

    def reply(tasks):
        result = []
        for task in tasks:
            seen.append(task)
            response = function(len(seen))
            if response is not None:
                result.append(entry(task, response))
        return result

    return reply


async def test_four_subsamples_make_one_request_a_round():
    person = Person(answers(lambda n: "good" if n == 6 else "bad"), delay=1)
    async with SamplingCoordinator(person, idle=0.01) as coordinator:
        strategy = RejectionSamplingStrategy(coordinator, loop_budget=3, concurrency_budget=4)
        result = await strategy.sample("Say something.", [good])
    assert result.success
    assert person.sizes == [4, 4]
    # Those that had not been looked at when it won have their answers too.
    assert {slice_.outcome for slice_ in result.slices} <= {"failed", "passed", "cancelled"}
    assert sum(s.outcome == "passed" for s in result.slices) == 1


async def test_a_missing_answer_costs_its_turn_only():
    replies = answers(lambda n: None if n <= 4 else "good")
    async with SamplingCoordinator(Person(replies), idle=0.01) as coordinator:
        strategy = RejectionSamplingStrategy(coordinator, loop_budget=2, concurrency_budget=2)
        result = await strategy.sample("x", [good])
    assert result.success
    assert [type(error) for error in result.errors] == [MissingAnswer, MissingAnswer]


async def test_judges_share_among_themselves():
    def reply(tasks):
        judged = ["requirement" in str(task.get("system")) for task in tasks]
        assert len(set(judged)) == 1
        verdict = '{"passed": true, "reason": "fine"}'
        return [entry(task, verdict if judged[0] else "text") for task in tasks]

    person = Person(reply)

    async def call(coordinator):
        strategy = RejectionSamplingStrategy(coordinator)
        assert (await strategy.sample("x", ["it is fine"])).success

    async with SamplingCoordinator(person) as coordinator, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(call, coordinator)
    assert person.sizes == [3, 3]
