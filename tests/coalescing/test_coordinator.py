"""A coordinator: which requests share a batch, when it is sent, and the replies."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import replace

import anyio
import pytest
from joint_kit import Person, ask, asks, echo, gather, tasks_of, text_of

from mellea_like import Budget, Generation, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.coalescing import SamplingCoordinator
from mellea_like.coalescing.coordinator.joint_prompt import BATCH_OVERHEAD, TASK_OVERHEAD
from mellea_like.core import Options, Usage
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    Expired,
    MissingAnswer,
)
from mellea_like.limits import LimitedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def told(results) -> list[str]:
    return [result.text if isinstance(result, Generation) else repr(result) for result in results]


async def later(seconds, function, *args):
    await anyio.sleep(seconds)
    return await function(*args)


async def test_one_request_alone_is_passed_through_untouched():
    person = Person()
    request = ask("hello", system="Be brief.", temperature=0.3, seed=4, stop="x", iteration=3)
    async with SamplingCoordinator(person, window=1) as coordinator:
        reply = await coordinator.generate(request)
    assert person.requests[0] is request
    assert reply == Generation("HELLO", None, Usage(1, 100, 50), "person", "stop")
    assert request.meter.usage == Usage(1, 100, 50)


# --- together -------------------------------------------------------------------------------------


async def test_what_the_backend_takes_for_what_a_request_leaves_open_counts_as_said():
    person = Person()
    person.defaults = Options(max_tokens=100)
    async with SamplingCoordinator(person) as coordinator:
        await gather(coordinator, ask("a"), ask("b", max_tokens=7))
        person.defaults = Options(stop=("\n",))  # It would end a joint reply.
        await gather(coordinator, ask("c"), ask("d"))
    assert person.sizes == [2, 1, 1]
    assert person.requests[0].options.max_tokens == 107 + 2 * TASK_OVERHEAD + BATCH_OVERHEAD
    assert person.requests[1].options == Options()  # A request that is sent alone is unchanged.


async def test_scopes_do_not_meet_and_may_be_read_from_the_callers_context():
    tenant: ContextVar[str] = ContextVar("tenant")
    person = Person()

    async def call(coordinator, name, text):
        tenant.set(name)
        await coordinator.generate(ask(text))

    async with (
        SamplingCoordinator(person, scope=lambda _: tenant.get()) as coordinator,
        anyio.create_task_group() as tasks,
    ):
        for name, text in [("x", "x1"), ("y", "y1"), ("x", "x2"), ("y", "y2")]:
            tasks.start_soon(call, coordinator, name, text)
    assert sorted(sorted(texts) for texts in person.texts) == [["x1", "x2"], ["y1", "y2"]]


async def test_what_a_scope_raises_or_returns_in_error_is_the_callers():
    async with SamplingCoordinator(Person(), scope=lambda _: [1]) as coordinator:
        with pytest.raises(TypeError, match="unhashable"):
            await coordinator.generate(ask("x"))
        assert coordinator.statistics().asked == 0
    async with SamplingCoordinator(Person(), caller=lambda _: 1 / 0) as coordinator:
        with pytest.raises(ZeroDivisionError):
            await coordinator.generate(ask("x"))
        assert coordinator.statistics().asked == 0


async def test_each_key_is_random_and_of_one_batch_only():
    person = Person()
    async with SamplingCoordinator(person) as coordinator:
        for _ in range(3):
            await gather(coordinator, *asks(3))
    keys = [task["key"] for request in person.requests for task in tasks_of(request)]
    assert len(set(keys)) == 9
    assert all(len(key) == 16 for key in keys)


# --- what is missing ------------------------------------------------------------------------------


def lacking(*texts):
    """Answer all tasks but those of these texts."""
    return lambda tasks: [
        each for task, each in zip(tasks, echo(tasks), strict=True) if text_of(task) not in texts
    ]


async def test_one_that_is_missing_is_asked_for_as_it_is():
    person = Person(lacking("t1"))
    async with SamplingCoordinator(person) as coordinator:
        requests = asks(3, seed=3, stop="#")
        assert told(await gather(coordinator, *requests)) == ["T0", "T1", "T2"]
    again = person.requests[1]
    assert again == replace(requests[1], meta=again.meta)
    assert again.meta.retry == 1


async def test_one_that_is_asked_for_again_is_admitted_by_its_budget_again():
    person = Person(lacking("t0"))
    requests = asks(3)
    # Each has room for one prompt, and a part of the joint one is spent then.
    budgets = [Budget(input_tokens=estimate_input_tokens(request)) for request in requests]
    ends: dict[int, object] = {}

    async def send(number: int, request: Request) -> None:
        limited = LimitedBackend(coordinator, budgets[number])
        try:
            ends[number] = (await limited.generate(request)).text
        except MissingAnswer as exc:
            ends[number] = exc

    async with SamplingCoordinator(person) as coordinator, anyio.create_task_group() as tasks:
        for number, request in enumerate(requests):
            tasks.start_soon(send, number, request)
    assert (ends[1], ends[2], len(person.requests)) == ("T1", "T2", 1)
    assert "not retried: budget 'budget'" in ends[0].__notes__[0]
    assert [budget.statistics().reserved.requests for budget in budgets] == [0, 0, 0]


@pytest.mark.parametrize(("retry", "calls"), [(True, 2), (False, 1)])
async def test_a_missing_answer_fails_that_request_alone(retry, calls, caplog):
    person = Person(lacking("t1", "t2"))
    async with SamplingCoordinator(person, retry_missing=retry) as coordinator:
        results = await gather(coordinator, *asks(4))
        assert coordinator.statistics().missing == 2
    assert told([results[0], results[3]]) == ["T0", "T3"]
    assert [type(results[1]), type(results[2])] == [MissingAnswer, MissingAnswer]
    assert results[1] is not results[2]
    assert "has no answer to this one" in str(results[1])
    assert len(person.requests) == calls
    warnings = [record for record in caplog.records if "are missing" in record.getMessage()]
    assert len(warnings) == calls
    assert "2 of 4 answers are missing" in warnings[0].getMessage()
    assert len(warnings[0].request_ids) == 2


async def test_what_has_expired_by_then_is_not_asked_for_again():
    person = Person(lacking("t0", "t1"), echo, delay=2)
    async with SamplingCoordinator(person) as coordinator:
        requests = [ask("t0", deadline=6.0), ask("t1"), ask("t2")]
        results = await gather(coordinator, *requests)
    assert isinstance(results[0], Expired)
    assert told(results[1:]) == ["T1", "T2"]
    assert person.sizes == [3, 1]


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable("gone", status=503, retry_after=3),
        AuthenticationFailed("no", status=401),
        ValueError("bug"),
        KeyError("bug"),
    ],
    ids=repr,
)
async def test_an_error_goes_to_every_member_and_is_never_retried(error):
    person = Person(error)
    async with SamplingCoordinator(person) as coordinator:
        results = await gather(coordinator, *asks(3))
        assert coordinator.statistics().failed == 3
        assert told(await gather(coordinator, ask("later"))) == ["LATER"]
    assert [type(result) for result in results] == [type(error)] * 3
    copies = [result for result in results if result is not error]
    assert len(copies) == 2
    copied = {"copied": True} if isinstance(error, BackendError) else {}  # For circuit breakers.
    assert [vars(copy) for copy in copies] == [{**vars(error), **copied}] * 2
    assert [result.args for result in results] == [error.args] * 3
    assert len({id(result) for result in results}) == 3
    assert person.sizes == [3, 1]


class TakesTwo(Exception):
    def __init__(self, one, two):
        super().__init__(one)


class AddsWords(Exception):
    def __init__(self, what):
        super().__init__(f"it failed: {what}")


@pytest.mark.parametrize("odd", [TakesTwo(1, 2), AddsWords("x")], ids=repr)
async def test_an_error_that_can_not_be_copied_goes_to_every_member_as_it_is(odd):
    async with SamplingCoordinator(Person(odd)) as coordinator:
        results = await gather(coordinator, *asks(2))
    assert results == [odd, odd]


async def test_notes_and_causes_are_each_members_own():
    error = BackendUnavailable("gone")
    error.__cause__ = OSError("cable")
    error.add_note("on Tuesday")
    async with SamplingCoordinator(Person(error)) as coordinator:
        one, two = await gather(coordinator, *asks(2))
    one.add_note("mine")
    assert two.__notes__ == ["on Tuesday"]
    assert one.__cause__ is two.__cause__ is error.__cause__


@pytest.mark.parametrize(("reason", "text"), [("refusal", "I can't help."), ("content_filter", "")])
async def test_a_refusal_goes_to_every_member_and_is_never_retried(reason, text):
    person = Person(Generation("I can't help.", finish_reason=reason))
    async with SamplingCoordinator(person) as coordinator:
        results = await gather(coordinator, *asks(3))
        assert coordinator.statistics().refused == 3
    assert [(result.text, result.finish_reason) for result in results] == [(text, reason)] * 3
    assert len(person.requests) == 1


async def test_what_is_no_reply_is_an_error_that_names_the_backend():
    class Wrong:
        async def generate(self, request):
            return "text"

    async with SamplingCoordinator(Wrong(), idle=0) as coordinator:
        results = [*await gather(coordinator, *asks(1)), *await gather(coordinator, *asks(2))]
        assert coordinator.statistics().failed == 3
    assert [type(result) for result in results] == [TypeError] * 3
    assert "Wrong.generate returned str, not a Generation" in str(results[0])


async def test_a_cancellation_that_no_one_asked_for_is_an_error():
    cancelled = anyio.get_cancelled_exc_class()
    if cancelled.__module__.startswith("trio"):
        return  # Nobody but trio can make one.

    class Stray:
        async def generate(self, request):
            raise cancelled

    async with SamplingCoordinator(Stray()) as coordinator:
        results = await gather(coordinator, *asks(2))
    assert [type(result) for result in results] == [BackendUnavailable, BackendUnavailable]
    assert "that no one asked for" in str(results[0])


async def test_an_unmetered_backend_that_fails_when_asked_again_has_sent_one_request_more():
    class Bare:
        async def generate(self, request):
            if tasks := tasks_of(request):
                text = json.dumps(echo(tasks)[1:])
                return Generation(text, usage=Usage(1, 7, 3))
            raise BackendUnavailable("gone")

    requests = asks(2)
    async with SamplingCoordinator(Bare()) as coordinator:
        await gather(coordinator, *requests)
    assert sum((request.meter.usage for request in requests), Usage()) == Usage(2, 7, 3, 1)


async def test_a_member_that_left_bears_its_part_of_what_was_known():
    person = Person(delay=2)
    requests = asks(3)
    async with SamplingCoordinator(person) as coordinator, anyio.create_task_group() as tasks:
        tasks.start_soon(gather, coordinator, *requests[1:])
        with anyio.move_on_after(6):
            await coordinator.generate(requests[0])
        left = requests[0].meter.usage
        assert left.input_tokens in {33, 34}
    assert requests[0].meter.usage == left
    assert sum((r.meter.usage for r in requests), Usage()) == Usage(1, 100, 50)


# --- what it is -----------------------------------------------------------------------------------


async def test_it_is_a_backend_that_does_not_stream():
    inner = ScriptedBackend(["x"], can_judge=False)
    coordinator = SamplingCoordinator(inner)
    assert (coordinator.model, coordinator.provider, coordinator.can_judge) == (
        "scripted",
        "scripted",
        False,
    )
    assert not hasattr(coordinator, "stream")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"window": -1}, ValueError, "window must be at least 0 seconds and finite"),
        ({"idle": True}, TypeError, "idle must be a number of seconds"),
        ({"max_batch": 0}, ValueError, "max_batch must be at least 1"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"max_joint_tokens": 0}, ValueError, "max_joint_tokens must be at least 1"),
        ({"scope": "me"}, TypeError, "scope must be a plain function"),
        ({"caller": gather}, TypeError, "caller must be a plain function"),
        ({"audit": gather}, TypeError, "audit must be a plain function"),
    ],
)
async def test_wrong_arguments_are_said_at_once(arguments, error, says):
    with pytest.raises(error, match=says):
        SamplingCoordinator(Person(), **arguments)
