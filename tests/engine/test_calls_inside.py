"""A call inside another one: its cost counts, and its failures do not multiply."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import outcomes, yes

from mellea_like import Generation, RejectionSamplingStrategy
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import StopReason, Usage
from mellea_like.errors import BackendTimeout, LimitExceeded
from mellea_like.limits import Budget, Retry

pytestmark = pytest.mark.anyio
INSIDE = Usage(2, 10, 2)
"""Two prompts of five words, and two words."""


def asks(inner: RejectionSamplingStrategy, *, tell: bool = False) -> FunctionBackend:
    """A backend that asks a strategy; it may tell by itself what that cost."""

    async def ask(request):
        result = await inner.sample("inside", [yes])
        return Generation(result.unwrap(), usage=result.usage) if tell else result.unwrap()

    return FunctionBackend(ask)


@pytest.mark.parametrize("tell", [False, True])
async def test_the_cost_of_a_call_in_a_backend_is_the_requests(tell):
    inside = ScriptedBackend(["no", "yes"])
    outer = asks(RejectionSamplingStrategy(inside), tell=tell)
    budget = Budget(requests=9)
    result = await RejectionSamplingStrategy(outer, budget=budget).sample("do", [yes])
    assert result.usage == INSIDE
    assert budget.spent[:3] == (2, 10, 2)


async def test_retries_of_a_call_inside_do_not_multiply(virtual_clock):
    inside = ScriptedBackend([BackendTimeout], cycle=True)
    outer = asks(RejectionSamplingStrategy(inside, loop_budget=3))
    with pytest.raises(BackendTimeout):
        await RejectionSamplingStrategy(outer, loop_budget=3).sample("do", [yes])
    assert inside.statistics().started == 3 * 3 * 3  # Turns, turns inside, and the retries there.


async def test_who_does_not_retry_inside_is_retried(virtual_clock):
    inside = ScriptedBackend([BackendTimeout, "yes"])
    outer = asks(RejectionSamplingStrategy(inside, loop_budget=1, retry=None))
    result = await RejectionSamplingStrategy(outer, retry=Retry(2)).sample("do", [yes])
    assert outcomes(result) == {1: "passed"}
    assert result.usage.requests == 2


async def test_a_budget_spent_inside_is_an_error_of_that_draw_alone(virtual_clock):
    inside = ScriptedBackend(["no"], cycle=True)
    spent = Budget(requests=1)
    inner = RejectionSamplingStrategy(inside, budget=spent)

    async def ask(request):
        if request.meta.iteration == 3:
            await anyio.sleep(1)
            return "yes"
        return (await inner.sample("inside", [yes])).unwrap()

    await inner.sample("before", [yes])
    outer = RejectionSamplingStrategy(FunctionBackend(ask), loop_budget=1, concurrency_budget=3)
    result = await outer.sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "errored", 3: "passed"}
    assert all(isinstance(error, LimitExceeded) for error in result.errors)
    assert result.stop_reason is StopReason.PASSED
