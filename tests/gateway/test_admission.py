"""A key's requests: which are worked on, which wait, and which are refused."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import pytest

from mellea_like.gateway.config.gateway_config import KeyLimits
from mellea_like.gateway.http.key_state import KeyState
from mellea_like.gateway.refusal import Refusal

pytestmark = pytest.mark.anyio


def key_for(concurrency: int, queue: int, **limits) -> KeyState:
    return KeyState("team", KeyLimits(concurrency=concurrency, queue=queue, **limits))


async def served(key: KeyState, seconds: float) -> None:
    with key.queued():
        async with key.turn(anyio.sleep_forever):
            await anyio.sleep(seconds)


async def test_requests_of_a_key_go_one_after_the_other_in_the_order_they_came(virtual_clock):
    key = key_for(1, 9)
    order: list[int] = []

    async def request(number: int) -> None:
        await served(key, 1)
        order.append(number)

    begun = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(request, number)
            await anyio.lowlevel.checkpoint()
    assert order == [0, 1, 2, 3]
    assert anyio.current_time() - begun == pytest.approx(4)


async def test_one_too_many_is_429_with_retry_after_at_once():
    key = key_for(1, 1)
    said = "has 1 request under way and 1 waiting"
    with key.queued():
        async with key.turn(anyio.sleep_forever):
            with key.queued():  # Its body is being read.
                assert (key.in_flight, key.waiting) == (1, 1)
                with pytest.raises(Refusal, match=said) as caught, key.queued():
                    raise AssertionError
    assert caught.value.status == 429
    assert caught.value.headers["retry-after"] == "1"
    with pytest.raises(ZeroDivisionError), key.queued():
        raise ZeroDivisionError
    assert (key.in_flight, key.waiting) == (0, 0)
    without = key_for(1, 0)
    with without.queued(), pytest.raises(Refusal), without.queued():
        pass


async def test_a_wait_that_takes_too_long_ends(virtual_clock):
    key = key_for(1, 1, queue_seconds=5)
    async with key.turn(anyio.sleep_forever):
        begun = anyio.current_time()
        with pytest.raises(Refusal, match="within 5 s") as caught:
            await served(key, 0)
        assert anyio.current_time() - begun == pytest.approx(5)
        assert caught.value.status == 429
    assert (key.in_flight, key.waiting) == (0, 0)


async def test_a_turn_that_comes_as_the_wait_is_given_up_is_handed_on(virtual_clock):
    key = key_for(1, 2)
    scope, gone = anyio.CancelScope(), anyio.Event()

    async def given_up() -> None:
        with scope:
            await served(key, 0)
        gone.set()

    async with anyio.create_task_group() as group:
        async with key.turn(anyio.sleep_forever):
            group.start_soon(given_up)
            await anyio.sleep(1)
            group.start_soon(served, key, 1)
            await anyio.sleep(1)
        scope.cancel()  # It has just got its turn, and leaves before it can use it.
        await gone.wait()
    assert anyio.current_time() == pytest.approx(3)
    assert (key.in_flight, key.waiting) == (0, 0)


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
    key = key_for(2, 10)
    for seconds in took:
        await served(key, seconds)
    with ExitStack() as stack:
        for _ in range(waiting):
            stack.enter_context(key.queued())
        assert key.retry_after() == pytest.approx(expected)
