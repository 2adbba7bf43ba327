"""Timeouts: of an iteration, and of the whole call."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from engine_kit import after, by_iteration, outcomes, yes

from mellea_like import (
    Generation,
    Outcome,
    RejectionSamplingStrategy,
    Requirement,
    SamplingFailed,
    SamplingTimeout,
)
from mellea_like.backends.scripted import Reply
from mellea_like.core import StopReason
from mellea_like.errors import BackendTimeout, RateLimited
from mellea_like.hooks import HookType, hook

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


# --- of an iteration --------------------------------------------------------------------------


async def test_a_slow_reply_costs_its_turn_and_the_subsample_goes_on():
    backend = by_iteration({1: after(9, "yes"), 2: after(1, "yes")})
    result = await RejectionSamplingStrategy(backend, iteration_timeout=2).sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "passed"}
    error = result.slices[0].error
    assert isinstance(error, BackendTimeout)
    assert str(error) == "the draw took longer than 2 s: no reply by then"
    assert result.elapsed == pytest.approx(3)
    assert backend.statistics().cancelled == 1


# --- of the call ------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_when_the_time_is_up_the_best_failure_comes_back(concurrency):
    backend = by_iteration({}, default=after(1, "no"))
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=9, concurrency_budget=concurrency, timeout=2.5
    )
    result = await strategy.sample("do", [yes])
    assert not result.success
    assert result.stop_reason is StopReason.TIMEOUT
    assert result.stop_reason == "timeout"
    assert result.elapsed == pytest.approx(2.5)
    assert result.count(Outcome.FAILED) == 2 * concurrency
    assert result.count(Outcome.CANCELLED) == concurrency
    assert result.best.iteration == 1
    with pytest.raises(SamplingFailed, match=r"stopped: timeout"):
        result.unwrap()


class Swallows:
    """Replies "no" after a second, also if it is cancelled meanwhile."""

    async def generate(self, request):
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            pass
        return Generation("no")


async def test_time_is_up_by_the_attempts_that_a_plugin_gave():
    @hook(HookType.SAMPLING_LOOP_START)
    async def three(payload):
        return payload.model_copy(update={"loop_budget": 3})

    strategy = RejectionSamplingStrategy(
        Swallows(), loop_budget=1, timeout=1.5, plugins=[three], retry=None
    )
    result = await strategy.sample("do", [yes])
    assert (len(result.slices), result.stop_reason) == (2, StopReason.TIMEOUT)


async def test_a_lone_lane_finds_no_reason_to_stop_after_its_time_is_up():
    def buggy(candidate):
        raise KeyError("its bug")

    strategy = RejectionSamplingStrategy(Swallows(), loop_budget=5, timeout=1.5, retry=None)
    with pytest.raises(SamplingTimeout) as caught:  # Twice the same bug would be hopeless.
        await strategy.sample("do", [Requirement("x", buggy, inline=True)])
    assert outcomes(caught.value.result) == {1: "errored", 2: "errored"}
    assert caught.value.result.stop_reason is StopReason.TIMEOUT


async def test_when_nothing_was_judged_by_then_it_is_a_sampling_timeout_with_the_record():
    backend = by_iteration({1: RateLimited("429")}, default=after(9, "no"))
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=2, timeout=2, retry=None)
    with pytest.raises(SamplingTimeout, match="give the call a longer timeout") as caught:
        await strategy.sample("do", [yes])
    assert isinstance(caught.value, SamplingFailed)
    assert isinstance(caught.value.__cause__, RateLimited)
    result = caught.value.result
    assert result.stop_reason is StopReason.TIMEOUT
    assert outcomes(result) == {1: "errored", 2: "cancelled", 4: "cancelled"}
    with pytest.raises(ValueError, match="no draw was judged"):
        _ = result.best
    with pytest.raises(SamplingFailed, match="none of 3 draws passed"):
        result.unwrap()


@pytest.mark.parametrize("selection", ["first", "ordered"])
async def test_a_pass_before_the_time_is_up_is_kept(selection):
    backend = by_iteration({1: after(9, "yes"), 4: after(1, "yes")})
    strategy = RejectionSamplingStrategy(
        backend, concurrency_budget=2, timeout=2, selection=selection
    )
    result = await strategy.sample("do", [yes])
    assert result.success
    assert result.best.iteration == 4
    # The first lane might have passed, and beaten it.
    assert result.stop_reason == ("passed" if selection == "first" else "timeout")
    assert result.elapsed == pytest.approx(1 if selection == "first" else 2)


async def test_a_reply_that_no_timeout_stopped_leaves_turns_unspent_and_that_is_a_timeout():
    backend = by_iteration({1: Reply("no", delay=3, shielded=True)})
    strategy = RejectionSamplingStrategy(backend, loop_budget=3, timeout=2)
    try:
        result = await strategy.sample("do", [yes])
    except SamplingTimeout as exc:
        result = exc.result
    assert result.stop_reason is StopReason.TIMEOUT
    assert len(result.slices) == 1


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_callers_scope_holds_where_a_backend_answers_with_another_cancellation(concurrency):
    class Straying:
        async def generate(self, request):
            try:
                await anyio.sleep(30)
            except asyncio.CancelledError:
                raise asyncio.CancelledError("mine") from None

    strategy = RejectionSamplingStrategy(Straying(), concurrency_budget=concurrency)
    with anyio.move_on_after(1) as scope:
        await strategy.sample("x")
    assert scope.cancelled_caught
