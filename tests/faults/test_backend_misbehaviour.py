"""Backends that cancel by themselves, ignore cancellation, or fail while they clean up.

See ``tests/engine/test_rule_12_nothing_runs_on.py`` and ``test_rule_17_exceptions.py`` for each
rule alone.
"""

from __future__ import annotations

import asyncio

import anyio
import pytest
from aftermath import aftermath
from engine_kit import after as later
from engine_kit import by_iteration, outcomes, yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.errors import BackendUnavailable
from mellea_like.limits import ConcurrencyLimiter, LimitedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def stray() -> BaseException:
    """A cancellation that no one asked for; on trio none can be made."""
    return asyncio.CancelledError("by itself")


@pytest.mark.parametrize("hooked", [True, False])
@pytest.mark.parametrize("delay", [0, 1])
async def test_a_cancellation_that_no_one_asked_for_errors_its_slice_and_siblings_go_on(
    hooked, delay, anyio_backend_name
):
    """On trio a foreign library's ``CancelledError`` may come all the same: it is an interrupt."""
    if anyio_backend_name == "trio":
        pytest.skip("on trio a cancellation can't come from code that does not wait")
    backend = by_iteration({1: later(delay, stray()), 3: later(2, "no"), 4: later(1, "yes")})
    async with aftermath(backend, hooked=hooked) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=2)
        result = await after.sample(call, "do", [yes])
    told = outcomes(result)
    assert told[1] == "errored"
    assert told[4] == "passed"
    [error] = [s.error for s in result.slices if s.iteration == 1]
    assert isinstance(error, BackendUnavailable)
    assert isinstance(error.__cause__, asyncio.CancelledError)


async def test_a_request_cancelled_inside_the_backend_is_its_own_affair():
    """A scope of the backend's, on both loops: it gave up, and says so its own way."""

    async def gives_up(request):
        with anyio.CancelScope() as scope:
            if request.meta.iteration == 1:
                scope.cancel()
            await anyio.sleep(1)
            return "yes"
        raise BackendUnavailable("gave up")

    backend = FunctionBackend(gives_up)
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=2, retry=None)
        result = await after.sample(call, "do", [yes])
    assert outcomes(result) == {1: "errored", 2: "passed"}


async def test_a_winner_is_the_result_though_a_later_reply_passes_too():
    backend = by_iteration({1: later(1, "yes")}, default=Reply("yes", delay=5, shielded=True))
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=3)
        result = await after.sample(call, "do", [yes])
    assert result.best.iteration == 1
    assert result.stop_reason is StopReason.PASSED
    assert result.usage.unknown == 0


async def test_a_backend_that_ignores_cancellation_holds_its_permit_until_it_ends():
    limiter = ConcurrencyLimiter(2)
    inner = by_iteration({1: later(1, "yes")}, default=Reply("yes", delay=5, shielded=True))
    backend = LimitedBackend(inner, limiter)
    # Without a hook, between the reply and the verdict there is no time to send another request.
    async with aftermath(inner, backend, limiter, hooked=False) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=4)
        result = await after.sample(call, "do", [yes])
    assert inner.statistics().started == 2
    assert limiter.statistics().admitted == 2
    assert result.count(Outcome.CANCELLED) == 2
    assert result.usage.requests == 2


async def test_what_a_loser_raises_while_it_cleans_up_changes_nothing():
    async def messy(request):
        try:
            await anyio.sleep(request.meta.iteration)
        except anyio.get_cancelled_exc_class():
            raise BackendUnavailable("while it cleaned up") from None
        return "yes"

    backend = FunctionBackend(messy)
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=3)
        result = await after.sample(call, "do", [yes])
    assert result.success
    assert result.best.iteration == 1
    assert result.elapsed == pytest.approx(1)


async def test_a_backend_that_runs_out_of_its_script_ends_its_subsamples():
    backend = ScriptedBackend(["no"])
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=2)
        result = await after.sample(call, "do", [yes])
    assert [type(error) for error in result.errors] == [IndexError, IndexError]
    assert not result.success
