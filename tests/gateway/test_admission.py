"""Who is worked on now, who waits, who is sent away."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import pytest

from mellea_like.gateway.config.gateway_config import KeyLimits
from mellea_like.gateway.http.admission import AdmissionQueue, KeyState
from mellea_like.gateway.refusal import Refusal, budget_spent

pytestmark = pytest.mark.anyio


def queue_for(concurrency: int, queue: int, **limits) -> AdmissionQueue:
    return AdmissionQueue("team", KeyLimits(concurrency=concurrency, queue=queue, **limits))


async def served(queue: AdmissionQueue, seconds: float) -> None:
    with queue.slot() as slot:
        if not slot.admitted:
            await queue.wait(slot)
        await anyio.sleep(seconds)


async def test_as_many_as_may_are_admitted_and_as_many_as_may_wait():
    queue = queue_for(2, 3)
    with ExitStack() as stack:
        slots = [stack.enter_context(queue.slot()) for _ in range(5)]
        assert [slot.admitted for slot in slots] == [True, True, False, False, False]
        assert (queue.admitted, queue.waiting) == (2, 3)
        with pytest.raises(Refusal), queue.slot():
            pass
    assert (queue.admitted, queue.waiting) == (0, 0)


async def test_requests_of_a_key_go_one_after_the_other_in_the_order_they_came(virtual_clock):
    queue = queue_for(1, 9)
    order: list[int] = []

    async def request(number: int) -> None:
        await served(queue, 1)
        order.append(number)

    begun = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(request, number)
            await anyio.lowlevel.checkpoint()
    assert order == [0, 1, 2, 3]
    assert anyio.current_time() - begun == pytest.approx(4)


async def test_one_too_many_is_429_with_retry_after_at_once():
    queue = queue_for(1, 1)
    with ExitStack() as first:
        first.enter_context(queue.slot())
        with queue.slot():
            for refuse in (queue.slot, queue.reading):
                said = "has 1 request under way and 1 waiting"
                with pytest.raises(Refusal, match=said) as caught, refuse():
                    pass
                assert caught.value.status == 429
                assert caught.value.headers["retry-after"] == "1"
        with queue.reading():
            first.close()
    without = queue_for(1, 0)
    with without.slot(), pytest.raises(Refusal), without.slot():
        pass


async def test_as_many_bodies_are_read_at_a_time_as_requests_may_be_there():
    queue = queue_for(1, 1)
    with queue.reading():
        with queue.reading(), pytest.raises(Refusal) as caught, queue.reading():
            raise AssertionError
        assert caught.value.status == 429
        with pytest.raises(ZeroDivisionError), queue.reading():
            raise ZeroDivisionError
        with queue.reading():
            pass


async def test_a_wait_that_takes_too_long_ends(virtual_clock):
    queue = queue_for(1, 1, queue_seconds=5)
    with queue.slot():
        begun = anyio.current_time()
        with pytest.raises(Refusal, match="within 5 s") as caught, queue.slot() as slot:
            await queue.wait(slot)
        assert anyio.current_time() - begun == pytest.approx(5)
        assert caught.value.status == 429
    assert (queue.admitted, queue.waiting) == (0, 0)


async def test_a_turn_that_comes_as_the_wait_is_given_up_is_handed_on(virtual_clock):
    queue = queue_for(1, 2)
    scope, gone = anyio.CancelScope(), anyio.Event()

    async def given_up() -> None:
        with scope:
            await served(queue, 0)
        gone.set()

    async with anyio.create_task_group() as group:
        with queue.slot():
            group.start_soon(given_up)
            await anyio.sleep(1)
            group.start_soon(served, queue, 1)
            await anyio.sleep(1)
        scope.cancel()  # It is its turn now, and it is gone before it knows.
        await gone.wait()
    assert anyio.current_time() == pytest.approx(3)
    assert (queue.admitted, queue.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("took", "waiting", "expected"),
    [
        ([], 0, 1.0),
        ([0.01], 0, 1.0),
        ([8.0], 0, 4.0),
        ([8.0], 3, 16.0),
        ([8.0, 18.0], 0, 5.0),
        ([500.0], 3, 60.0),
    ],
)
async def test_retry_after_is_about_when_there_will_be_room(took, waiting, expected, virtual_clock):
    queue = queue_for(2, 10)
    for seconds in took:
        await served(queue, seconds)
    with ExitStack() as stack:
        for _ in range(2 + waiting):
            stack.enter_context(queue.slot())
        assert queue.retry_after() == pytest.approx(expected)


# --- amounts -------------------------------------------------------------------------------------


def test_amounts_within_the_limits_pass():
    key = KeyState("team", KeyLimits())
    for body in ({}, {"n": 1, "max_tokens": 1}, {"n": 4, "max_completion_tokens": 4096}):
        assert key.admit(body).body == body


@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, 1.5, "1", [1], {}, 4097, 10**19])
@pytest.mark.parametrize("param", ["n", "max_tokens", "max_completion_tokens"])
def test_amounts_that_are_none_or_beyond_the_limits_are_400(value, param):
    with pytest.raises(Refusal) as caught:
        KeyState("team", KeyLimits()).admit({param: value})
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("budget", [{}, {"requests": 0}, {"requests": True}, {"money": 1}])
def test_a_budget_limits_something(budget):
    with pytest.raises(ValueError):
        KeyLimits(budget=budget)


def test_a_spent_budget_is_no_rate_limit():
    refusal = budget_spent()
    assert (refusal.status, refusal.code) == (429, "insufficient_quota")
    assert refusal.headers["x-should-retry"] == "false"
    assert "retry-after" in refusal.headers
