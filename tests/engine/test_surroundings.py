"""A call keeps its promises wherever it is made: in calls, threads, timeouts and other loops."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import sys
import weakref

import anyio
import pytest
import uvloop
from engine_kit import after, by_iteration, outcomes, yes

from mellea_like import Context, Message, RejectionSamplingStrategy, Requirement, SamplingFailed
from mellea_like.backends import FunctionBackend
from mellea_like.core import current_iteration
from mellea_like.kernel.race import Race


def strategy(replies=None, *, loop=2, concurrency=2, **arguments):
    backend = by_iteration(replies or {}, arguments.pop("default", "no"))
    return RejectionSamplingStrategy(
        backend, loop_budget=loop, concurrency_budget=concurrency, **arguments
    )


# --- asyncio's own ways to wait ----------------------------------------------------------------


def on_asyncio(function, **arguments):
    with asyncio.Runner(**arguments) as runner:
        return runner.run(function())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
def test_eager_tasks_change_nothing():
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        first = await strategy({3: "yes"}).sample("x", [yes])
        assert outcomes(first)[3] == "passed"
        quick = RejectionSamplingStrategy(FunctionBackend(lambda _: "yes"), concurrency_budget=3)
        result = await quick.sample("x", [yes], on_slice=lambda _: None)
        assert result.success
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await strategy(default=after(60, "no")).sample("x", [yes])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    on_asyncio(main)


def test_on_uvloop_too():
    async def main():
        result = await strategy({3: "yes"}).sample("x", [yes, Requirement("t", lambda c: True)])
        assert result.success
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await strategy(default=after(60, "no")).sample("x", [yes])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    on_asyncio(main, loop_factory=uvloop.new_event_loop)


# --- odd arguments -----------------------------------------------------------------------------


def test_requirements_from_a_generator_are_kept_by_the_synchronous_door_too():
    result = strategy().sample_sync("x", (r for r in [yes]))
    assert not result.success
    assert [r for r, _ in result.best.validations] == [yes]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("x", None), "requirements must be a list of Requirement objects and texts, not None"),
        ((Message, ()), "an action must be a str, an Instruction, a Message"),
    ],
)
def test_the_synchronous_door_says_what_is_wrong(arguments, sentence):
    with pytest.raises(TypeError, match=sentence):
        strategy().sample_sync(*arguments)


# --- copies, pickles and what is shown ---------------------------------------------------------


def contains_yes(candidate):
    return "yes" in candidate.text, "it lacks yes"


def test_a_copied_requirement_is_the_same_one_and_a_pickled_one_decides_the_same():
    whole = Requirement("a", contains_yes, weight=2.0) | Requirement("judged")
    assert copy.copy(whole) is whole
    assert copy.deepcopy(whole) is whole
    twin = pickle.loads(pickle.dumps(whole))
    assert (twin.description, twin.parts[0].weight) == (whole.description, 2.0)
    assert twin.parts[0].validator is contains_yes
    with pytest.raises(AttributeError):
        twin.weight = 3.0


def test_what_is_shown_of_a_result_is_short():
    text = "word " * 100_000
    context = Context([Message("user", text)] * 100)
    wanted = Requirement(text, lambda c: (False, text), name=text)
    requests = []

    def reply(request):
        requests.append(request)
        return text

    result = RejectionSamplingStrategy(FunctionBackend(reply)).sample_sync(
        text, [wanted], context=context
    )
    slice_ = result.best
    verdict = slice_.validations[0][1]
    for thing in (result, context, wanted, verdict, slice_, slice_.generation, slice_.action):
        assert len(repr(thing)) < 2500
    assert len(repr(requests[0])) < 2500
    with pytest.raises(SamplingFailed) as caught:
        result.unwrap()
    assert len(str(caught.value)) < 2500


# --- what a call costs and leaves --------------------------------------------------------------


def test_a_calls_record_needs_no_cycle_collector():
    class Value:
        """What a reply is parsed to."""

    made = []

    async def reply(request):
        await anyio.lowlevel.checkpoint()
        value = Value()
        made.append(weakref.ref(value))
        return value

    third = Requirement("the third", lambda c: current_iteration() == 3, inline=True)
    calls = RejectionSamplingStrategy(FunctionBackend(reply), loop_budget=2, concurrency_budget=2)

    async def main():
        for _ in range(20):
            await calls.sample("x", [third])
        # Before the event loop is torn down, and without the collector.
        return sum(value() is not None for value in made), races()

    def races():
        return sum(isinstance(thing, Race) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = races()
        assert on_asyncio(main) == (0, before)
        assert len(made) == 40
    finally:
        gc.enable()
