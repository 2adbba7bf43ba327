"""Limiters round a strategy's backend: what the engine and they make of each other."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from engine_kit import after, by_iteration, yes

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import RateLimited
from mellea_like.limits import (
    AdaptiveLimiter,
    ConcurrencyLimiter,
    LimitedBackend,
    RateLimiter,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def strategy(backend: Any, **settings: Any) -> RejectionSamplingStrategy:
    chosen = {"loop_budget": 3, "concurrency_budget": 4, **settings}
    return RejectionSamplingStrategy(backend, **chosen)


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


async def test_a_limiter_and_the_gate_wait_together():
    told = RateLimited("slow down", status=429, retry_after=5.0)
    inner = ScriptedBackend([told, *["yes"] * 9])
    limiter = AdaptiveLimiter()
    result = await strategy(LimitedBackend(inner, limiter), concurrency_budget=1).sample(
        "do", [yes]
    )
    assert result.success
    assert 5 <= result.elapsed < 6
    assert limiter.concurrency == 5
