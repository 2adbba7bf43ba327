"""Rule 7 of the engine: no error is lost."""

from __future__ import annotations

import logging

import pytest
from engine_kit import after, by_iteration, outcomes, yes

from mellea_like import RejectionSamplingStrategy, SamplingFailed
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import StopReason
from mellea_like.errors import InvalidRequest, RateLimited

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def test_rule_07_every_error_is_logged_as_a_warning_with_its_ids(caplog):
    backend = by_iteration({1: RateLimited("slow down"), 3: InvalidRequest("no such model")})
    strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=2)
    result = await strategy.sample("do", [yes])
    warnings = {r.iteration: r for r in caplog.records if r.levelno == logging.WARNING}
    assert sorted(warnings) == [1, 3]
    assert warnings[1].getMessage() == "error in attempt 1 of 2, lane 1: RateLimited: slow down"
    second = "error in attempt 1 of 2, lane 2: InvalidRequest: no such model"
    assert warnings[3].getMessage() == second
    assert [warnings[i].subsample for i in (1, 3)] == [0, 1]
    assert {w.sampling_id for w in warnings.values()} == {result.sampling_id}
    assert {w.name for w in warnings.values()} == {"mellea_like"}


async def test_rule_07_where_nothing_was_judged_the_first_error_is_raised_as_it_is():
    class Mine(Exception):
        pass

    first = Mine("own")
    backend = by_iteration({1: after(2, RateLimited("late")), 2: after(1, first)})
    strategy = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=2)
    with pytest.raises(Mine) as caught:
        await strategy.sample("do", [yes])
    assert caught.value is first
    assert type(caught.value) is Mine


async def test_rule_07_a_failure_beside_errors_gives_a_result_and_unwrap_raises_from_the_first():
    error = RateLimited("1")
    backend = ScriptedBackend([error, "no"])
    result = await RejectionSamplingStrategy(backend, loop_budget=2, retry=None).sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "failed"}
    assert not result.success
    assert result.value is None
    assert result.best.iteration == 2
    assert result.stop_reason is StopReason.EXHAUSTED
    with pytest.raises(SamplingFailed, match="none of 2 draws passed") as caught:
        result.unwrap()
    assert caught.value.__cause__ is error
    assert caught.value.result is result
    assert "attempt 2: say yes: it lacks yes" in str(caught.value)
