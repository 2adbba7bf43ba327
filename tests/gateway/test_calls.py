"""Work for a caller ends when the caller leaves; what it raises comes out as it is."""

from __future__ import annotations

import anyio
import pytest

from mellea_like.gateway.body import CallerLeft
from mellea_like.gateway.calls import Draw, while_here
from mellea_like.gateway.failures import refusal_of

pytestmark = pytest.mark.anyio


def caller(*messages: str, leaves_after: float = float("inf")):
    """The ``receive`` of a caller who sends messages and then leaves."""
    left = list(messages)

    async def receive() -> dict[str, str]:
        if left:
            return {"type": left.pop(0)}
        await anyio.sleep(leaves_after)
        return {"type": "http.disconnect"}

    return receive


async def test_what_the_work_returns_comes_out(virtual_clock):
    async def work() -> int:
        await anyio.sleep(3)
        return 7

    assert await while_here(caller(), work) == 7
    assert virtual_clock.now == 3


async def test_only_leaving_ends_the_work(virtual_clock):
    receive = caller("http.request", "http.request", leaves_after=5)
    with pytest.raises(CallerLeft):
        await while_here(receive, anyio.sleep_forever)
    assert virtual_clock.now == 5


async def test_an_error_comes_out_as_it_is_and_in_no_group():
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        await while_here(caller(), work)
    assert caught.value.__context__ is None


async def test_an_outer_cancellation_goes_through(virtual_clock):
    with anyio.move_on_after(2) as scope:
        await while_here(caller(), anyio.sleep_forever)
    assert scope.cancelled_caught
    assert virtual_clock.now == 2


async def test_work_that_is_done_when_the_caller_leaves_is_done(virtual_clock):
    async def work() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3)
        return "done"

    assert await while_here(caller(leaves_after=1), work) == "done"


async def test_an_error_of_the_gateways_own_is_raised_for_the_guard_to_log():
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        refusal_of([Draw(None, error)], {})
