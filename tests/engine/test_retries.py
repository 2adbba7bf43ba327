"""Retries inside an iteration: counted, seen by hooks, bounded; and one gate for all siblings."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from engine_kit import Unmetered, by_iteration, yes

from mellea_like import Generation, RejectionSamplingStrategy
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import BackendTimeout, BackendUnavailable, RateLimited
from mellea_like.limits import LimitedBackend
from mellea_like.limits.budget import Budget
from mellea_like.limits.retry import Retry, RetryBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def strategy(backend: Any, **settings: Any) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(backend, **{"loop_budget": 1, **settings})


async def test_retries_count_where_the_backend_keeps_no_meter():
    tries: list[int] = []

    async def generate(request: Any) -> Generation:
        tries.append(request.meta.retry)
        if request.meta.retry < 2:
            raise BackendTimeout("late")
        return Generation("yes")

    result = await strategy(Unmetered(generate)).sample("do", [yes])
    assert tries == [0, 1, 2]
    assert result.usage.requests == 3


async def test_a_wait_beyond_the_calls_deadline_is_not_begun():
    told = RateLimited("slow down", status=429, retry_after=30.0)
    backend = ScriptedBackend([told], cycle=True)
    with pytest.raises(RateLimited):
        await strategy(backend, loop_budget=5, timeout=10).sample("do", [yes])
    assert anyio.current_time() < 10


async def test_a_backend_that_retries_by_itself_is_left_to_it():
    inner = ScriptedBackend([BackendUnavailable("down")], cycle=True)
    for wrapped in (
        RetryBackend(inner, Retry(attempts=2)),
        LimitedBackend(RetryBackend(inner, Retry(attempts=2)), Budget(requests=100)),
    ):
        before = inner.statistics().started
        with pytest.raises(BackendUnavailable):
            await strategy(wrapped).sample("do", [yes])
        assert inner.statistics().started - before == 2


@pytest.mark.parametrize("wrong", [3, True, "twice", Retry])
async def test_what_is_no_retry_policy_is_refused(wrong):
    with pytest.raises(TypeError, match="retry must be a Retry"):
        strategy(by_iteration({}), retry=wrong)
