"""Giving up: where a requirement always fails, further turns would not help."""

from __future__ import annotations

from typing import Any

import pytest
from engine_kit import after, by_iteration, says, yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.core import StopReason
from mellea_like.limits.budget import Budget
from mellea_like.schedules.giving_up import PerRequirement

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

never = says("never")


def strategy(backend: Any, **settings: Any) -> RejectionSamplingStrategy:
    chosen = {"loop_budget": 20, "give_up": PerRequirement(), **settings}
    return RejectionSamplingStrategy(backend, **chosen)


async def test_six_failures_and_no_pass_are_hopeless_and_the_result_says_which():
    result = await strategy(by_iteration({}, "yes"), validate_all=True).sample("do", [yes, never])
    assert result.stop_reason is StopReason.HOPELESS
    assert len(result.slices) == 6
    assert "says never" in result.stop_detail
    assert "yes" not in result.stop_detail
    assert result.best.outcome == "failed"


async def test_a_budget_that_denies_a_sibling_in_that_very_moment_is_not_the_reason():
    # The sibling waits for what the first request leaves, and that is too little.
    result = await strategy(
        by_iteration({}, after(1, "no, not at all")),
        concurrency_budget=2,
        give_up=PerRequirement(0.5, 0.7),
        options={"max_tokens": 8},
    ).sample("do", [yes], budget=Budget(output_tokens=10))
    assert result.stop_reason is StopReason.HOPELESS
    assert "says yes" in result.stop_detail
