"""`sample_many`: which results it hands out, when, and the effect of an item's failure."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
from typing import Any

import anyio
import pytest
from batch_kit import Plan, ids, into, results_of, strategy

from mellea_like import BaseSamplingStrategy, Budget, Instruction, Requirement, sample_many
from mellea_like.errors import (
    AuthenticationFailed,
    LimitExceeded,
    MelleaError,
    RequirementError,
    SamplingFailed,
)
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.anyio


# --- results ---------------------------------------------------------------------------------


async def test_the_arguments_of_a_call_are_passed_on(virtual_clock):
    seen: list[Any] = []

    class Looks(Plan):
        async def generate(self, request):
            seen.append((request.options.temperature, request.format))
            return await super().generate(request)

    no = Requirement("never", lambda c: (False, "no"), inline=True, check_only=True)
    items = await results_of(
        strategy(Looks(lambda prompt: "3"), requirements=[]),
        ["x"],
        concurrency=1,
        requirements=[no],
        format=int,
        options={"temperature": 0.25},
    )
    assert seen == [(0.25, int)]
    assert items[0].status == "failed"
    assert items[0].result.best.problems == ("never: no",)
    assert items[0].result.best.value == 3


# --- back-pressure -----------------------------------------------------------------------------


async def test_a_source_without_end_needs_no_more_than_its_window(virtual_clock):
    class Weighed:
        alive = most = 0

        def __init__(self, text):
            self.text = text
            Weighed.alive += 1
            Weighed.most = max(Weighed.most, Weighed.alive)

        def __del__(self):
            Weighed.alive -= 1

    source = (Weighed(str(n)) for n in itertools.count())
    action = lambda item: item.text
    # Finished items must be freed by reference counts alone.
    gc.disable()
    try:
        async with sample_many(strategy(), source, concurrency=10, action=action) as results:
            async for item in results:
                if item.id > 200:
                    break
                del item
    finally:
        gc.enable()
    assert Weighed.most <= 2 * 10 + 2


# --- failed items ------------------------------------------------------------------------------


async def test_an_item_that_fails_is_a_failed_item(virtual_clock):
    wrong = AuthenticationFailed("the key is missing")
    backend = Plan({"fails": "no", "raises": wrong})
    items = await results_of(
        strategy(backend), ["fails", "raises", "passes"], concurrency=1, in_order=True
    )
    failed, errored, passed = items
    assert [item.status for item in items] == ["failed", "errored", "passed"]
    assert failed.result.best.text == "no"
    assert errored.error is wrong
    assert (errored.result, errored.value, failed.value) == (None, None, None)
    assert passed.success
    assert [bool(item) for item in items] == [False, False, True]
    with pytest.raises(SamplingFailed, match="it says no"):
        failed.unwrap()
    with pytest.raises(AuthenticationFailed, match="the key is missing"):
        errored.unwrap()


def test_a_cancellation_that_nobody_asked_for_is_a_failed_item():
    class Stray(BaseSamplingStrategy):
        def begin(self, action, *args, **arguments):
            if getattr(action, "description", "") == "stray":
                raise asyncio.CancelledError
            return super().begin(action, *args, **arguments)

    items = run_virtual(lambda: results_of(Stray(Plan()), ["stray", "fine"], concurrency=1))
    assert [item.status for item in items] == ["errored", "passed"]
    assert isinstance(items[0].error, MelleaError)
    assert "item 0 raised a cancellation that no one asked for" in str(items[0].error)


# --- a source that fails -----------------------------------------------------------------------


def test_a_cancellation_in_a_source_that_nobody_asked_for_is_an_error():
    async def source():
        yield "one"
        raise asyncio.CancelledError

    async def main():
        seen = []
        with pytest.raises(MelleaError, match="the source of the batch raised a cancellation"):
            await into(seen, sample_many(strategy(), source(), concurrency=5))
        assert ids(seen) == [0]

    run_virtual(main)


@pytest.mark.parametrize("early", [False, True])
async def test_generators_are_closed_at_the_end(virtual_clock, early):
    closed = []

    async def asynchronous():
        try:
            for _ in range(1000 if early else 1):
                yield "x"
        finally:
            await anyio.sleep(1)
            closed.append("async")

    def plain():
        try:
            yield from ["x"] * (1000 if early else 1)
        finally:
            closed.append("plain")

    for source in (asynchronous(), plain()):
        async with sample_many(strategy(), source, concurrency=2) as results:
            async for _ in results:
                if early:
                    break
    assert closed == ["async", "plain"]


async def test_a_source_that_fails_to_close_is_logged(virtual_clock, caplog):
    def source():
        try:
            while True:
                yield "x"
        finally:
            raise OSError("can't close")

    async with sample_many(strategy(), source(), concurrency=1) as results:
        async for _ in results:
            break
    assert "closing the source of the batch failed: OSError: can't close" in caplog.text


# --- wrong arguments ---------------------------------------------------------------------------


async def async_action(item):
    return "x"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"items": "a text"}, TypeError, "not a single str: put it in"),
        ({"items": b"bytes"}, TypeError, "not a single bytes"),
        ({"items": 7}, TypeError, "an iterable or an async iterable, not 7"),
        ({"items": None}, TypeError, "an iterable or an async iterable"),
        ({"items": Instruction("x")}, TypeError, "an iterable or an async iterable"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"concurrency": 2.5}, TypeError, "concurrency must be an integer"),
        ({"concurrency": True}, TypeError, "concurrency must be an integer"),
        ({"action": "template"}, TypeError, "action must be a plain function"),
        ({"action": async_action}, TypeError, "action must be a plain function"),
        ({"action": lambda: "x"}, TypeError, "action must be a plain function"),
        ({"on_progress": lambda: None}, TypeError, "on_progress must be a plain function"),
        ({"on_progress": async_action}, TypeError, "on_progress must be a plain function"),
        ({"requirements": "lone"}, TypeError, "put it in a list"),
        ({"requirements": ["judged"]}, RequirementError, "can't judge"),
        ({"options": {"warmth": 1}}, ValueError, "unknown option warmth"),
        ({"format": 3}, TypeError, "format must be"),
        ({"budget": 3}, TypeError, "budget must be a Budget"),
        ({"strategy": BaseSamplingStrategy()}, ValueError, "there is no backend"),
        ({"journal": 3}, TypeError, "journal must be a Journal or the path of one"),
        ({"strategy": "none"}, TypeError, "strategy must be a sampling strategy"),
        ({"strategy": strategy}, TypeError, "strategy must be a sampling strategy"),
        ({"settings": {"model": "x"}, "journal": "j"}, ValueError, "settings can't contain model"),
        ({"settings": {"input": set()}, "journal": "j"}, TypeError, "settings must be JSON"),
    ],
)
async def test_what_would_be_wrong_for_every_item_is_refused_at_once(arguments, error, message):
    backend = Plan()
    backend.can_judge = False
    given = {"strategy": strategy(backend), "items": ["x"], "concurrency": 1} | arguments
    with pytest.raises(error, match=message):
        sample_many(**given)


# --- usage -------------------------------------------------------------------------------------


async def test_it_is_iterated_only_inside_its_block(virtual_clock):
    batch = sample_many(strategy(), ["x"], concurrency=1)
    with pytest.raises(RuntimeError, match="is not open: iterate inside `async with"):
        await anext(batch)
    async with batch:
        pass
    with pytest.raises(RuntimeError, match="is closed"):
        await anext(batch)


async def test_it_is_entered_once(virtual_clock):
    batch = sample_many(strategy(), ["x"], concurrency=1)
    async with batch:
        with pytest.raises(RuntimeError, match="entered only once"):
            await batch.__aenter__()
        assert [item.id async for item in batch] == [0]
    with pytest.raises(RuntimeError, match="entered only once"):
        await batch.__aenter__()


async def test_whoever_iterates_over_what_is_ready_lets_others_run(virtual_clock):
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with (
        sample_many(strategy(), map(str, range(8)), concurrency=4) as results,
        anyio.create_task_group() as tasks,
    ):
        await anyio.sleep(5)
        tasks.start_soon(others)
        await anyio.lowlevel.checkpoint()
        before = turns
        for _ in range(8):
            await anext(results)
        assert turns - before >= 7
        tasks.cancel_scope.cancel()


async def test_why_items_are_missing_counts_more_than_that_the_source_failed(virtual_clock):
    def source():
        yield "fails"
        raise OSError("the file is gone")

    backend = Plan({"fails": "no"})
    with pytest.raises(SamplingFailed):
        await results_of(strategy(backend), source(), concurrency=5, fail_fast=True)
    with pytest.raises(LimitExceeded):
        spent = Budget(requests=1)
        spending = strategy(backend, loop_budget=2, budget=spent)
        await results_of(spending, source(), concurrency=5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ordered", ": it is now called in_order"),
        ("order", ": it is now called breadth_first (True or False)"),
        ("retries", ""),
    ],
)
def test_an_unknown_argument_is_an_error_that_knows_renamed_ones(name, hint):
    said = f"sample_many() got an unexpected keyword argument {name!r}{hint}"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        sample_many(strategy(), [], concurrency=1, **{name: True})
