"""Budgets of a call stop it with what there is; limiters make its requests wait."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from engine_kit import Unmetered, after, by_iteration, yes

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import StopReason
from mellea_like.core.prices import Price
from mellea_like.errors import LimitExceeded
from mellea_like.limits import AdaptiveLimiter, ConcurrencyLimiter, LimitedBackend, RateLimiter
from mellea_like.limits.budget import Budget
from mellea_like.limits.several_budgets import Budgets

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def strategy(backend: Any, **settings: Any) -> RejectionSamplingStrategy:
    settings = {"loop_budget": 3, "concurrency_budget": 4, **settings}
    return RejectionSamplingStrategy(backend, **settings)


async def test_a_spent_budget_stops_the_call_with_what_there_is():
    backend = by_iteration({}, after(1, "no"))
    result = await strategy(backend).sample("do", [yes], budget=Budget(requests=6))
    assert backend.statistics().started == 6
    assert result.stop_reason is StopReason.BUDGET
    assert "6" in result.stop_detail
    assert "request" in result.stop_detail
    assert result.best.outcome == "failed"
    assert sum(s.outcome == "failed" for s in result.slices) == 6
    assert result.errors == ()


async def test_it_raises_only_if_no_slice_was_judged():
    budget = Budget(requests=2)
    await strategy(by_iteration({})).sample("do", [yes], budget=budget)
    with pytest.raises(LimitExceeded, match="request") as caught:
        await strategy(by_iteration({})).sample("do", [yes], budget=budget)
    record = caught.value.result
    assert record is not None
    assert record.stop_reason is StopReason.BUDGET
    assert {str(s.outcome) for s in record.slices} == {"cancelled"}


async def test_a_token_budget_without_a_bound_is_refused_before_the_first_request():
    backend = by_iteration({})
    with pytest.raises(ValueError, match="max_tokens"):
        await strategy(backend).sample("do", [yes], budget=Budget(output_tokens=150))
    with pytest.raises(ValueError, match="price"):
        await strategy(backend).sample(
            "do",
            [yes],
            options={"max_tokens": 5},
            budget=Budget(money=1.0, prices={"other": Price(1, 1)}),
        )
    assert backend.statistics().started == 0


def same(tenant):
    return tenant, tenant


def inner_within(tenant):
    return tenant, Budget(requests=6, within=tenant)


def outer_within(tenant):
    return Budget(requests=6, within=tenant), tenant


def both_within(tenant):
    return Budget(requests=8, within=tenant), Budget(requests=9, within=tenant)


@pytest.mark.parametrize("given", [same, inner_within, outer_within, both_within])
async def test_a_budget_that_a_call_has_twice_is_charged_once(given):
    tenant = Budget(requests=10)
    outer, inner = given(tenant)
    call = strategy(by_iteration({}), budget=outer, loop_budget=1)
    result = await call.sample("do", [yes], budget=inner)
    assert tenant.spent.requests == result.usage.requests == 4


async def test_when_its_seconds_are_over_the_call_stops_where_it_is():
    backend = by_iteration({1: "no"}, after(100, "no"))
    result = await strategy(backend).sample("do", [yes], budget=Budget(seconds=7))
    assert result.stop_reason is StopReason.BUDGET
    assert result.elapsed == pytest.approx(7)
    assert "7 s" in result.stop_detail or "seconds" in result.stop_detail
    with pytest.raises(LimitExceeded):
        await strategy(by_iteration({}, after(100, "no"))).sample(
            "do", [yes], budget=Budget(seconds=7)
        )


@pytest.mark.parametrize("wrong", [3, "5 euros", Budget, {}])
async def test_what_is_no_budget_is_refused(wrong):
    with pytest.raises(TypeError, match="budget must be a Budget"):
        strategy(by_iteration({}), budget=wrong)
    with pytest.raises(TypeError, match="budget must be a Budget"):
        await strategy(by_iteration({})).sample("do", [yes], budget=wrong)


async def test_calls_that_name_two_budgets_in_opposite_order_do_not_wait_for_each_other():
    one, other = Budget(output_tokens=10, name="one"), Budget(output_tokens=10, name="other")
    ends: list[str] = []

    async def sample(first: Budget, second: Budget) -> None:
        call = strategy(
            by_iteration({}, after(1, "no")),
            budget=first,
            loop_budget=1,
            concurrency_budget=1,
            options={"max_tokens": 8},
        )
        result = await call.sample("do", [yes], budget=second)
        ends.append(str(result.stop_reason))

    async with anyio.create_task_group() as tasks:
        for first, second in [(one, other), (other, one), (one, other)]:
            tasks.start_soon(sample, first, second)
    assert ends == ["exhausted"] * 3
    assert one.spent == other.spent


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_budgets_the_time_of_each_counts_while_a_request_waits(first):
    budgets = [Budget(output_tokens=10, seconds=100), Budget(seconds=3)]
    backend = LimitedBackend(
        by_iteration({}, after(50, "no")), Budgets(budgets[first], budgets[1 - first])
    )
    call = RejectionSamplingStrategy(backend, concurrency_budget=2, options={"max_tokens": 8})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.sample, "do", [yes])
        await anyio.sleep(3.5)
        assert budgets[0].statistics().waiting == budgets[1].statistics().waiting == 0
        assert budgets[0].statistics().reserved.requests == 1
        assert budgets[1].statistics().denied == 1
        tasks.cancel_scope.cancel()
    for budget in budgets:
        assert budget.statistics().reserved.requests == 0
        assert budget.statistics().spent.requests == 1


# --- limiters round a strategy's backend ----------------------------------------------------------


async def test_a_reply_that_passes_lets_no_sibling_go_that_waited_for_its_place():
    for limiter in (ConcurrencyLimiter(1), AdaptiveLimiter(1), RateLimiter(requests_per_minute=60)):
        inner = by_iteration({}, after(0.5, "yes"))
        result = await strategy(LimitedBackend(inner, limiter)).sample("do", [yes])
        assert result.success
        assert inner.statistics().started == 1
        assert result.usage.requests == 1
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)


async def test_while_a_reply_is_checked_another_call_goes_before_its_siblings():
    sent: list[tuple[str, int | None]] = []

    def rule(request: Any) -> Any:
        sent.append((request.messages[-1].content[:1], request.meta.iteration))
        return after(1, "yes")

    async def slow_check(candidate: Any) -> bool:
        await anyio.sleep(0.5)
        return True

    slow = Requirement("good", slow_check)
    backend = LimitedBackend(ScriptedBackend(rule), ConcurrencyLimiter(1))
    async with anyio.create_task_group() as calls:
        for name in ("first", "second", "third"):
            calls.start_soon(strategy(backend).sample, name, [slow])
            await anyio.sleep(0.01)
    assert [name for name, _ in sent][:3] == ["f", "s", "t"]


async def test_a_backend_that_returns_no_generation_gives_its_reservation_back():
    async def generate(request):
        return "yes"

    budget = Budget(requests=4)
    with pytest.raises(TypeError, match=r"Unmetered\.generate returned str, not a Generation"):
        await strategy(Unmetered(generate)).sample("do", [yes], budget=budget)
    assert budget.statistics().spent.requests == 4
    assert not any(budget.statistics().reserved)
