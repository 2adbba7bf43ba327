"""Rule 1 of the engine: how much runs at a time, and how much in all."""

from __future__ import annotations

import pytest
from engine_kit import yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import ScriptedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_rule_01_as_many_generations_are_in_flight_as_the_concurrency_budget(concurrency):
    backend = ScriptedBackend(["no"], cycle=True, delay=1.0)
    strategy = RejectionSamplingStrategy(backend, loop_budget=4, concurrency_budget=concurrency)
    await strategy.sample("do", [yes])
    assert backend.statistics().max_in_flight == concurrency


@pytest.mark.parametrize(("loops", "concurrency"), [(1, 1), (3, 1), (1, 3), (4, 5)])
async def test_rule_01_the_product_of_the_budgets_is_how_many_iterations_start(loops, concurrency):
    backend = ScriptedBackend(["no"], cycle=True, delay=1.0)
    strategy = RejectionSamplingStrategy(backend, loop_budget=loops, concurrency_budget=concurrency)
    result = await strategy.sample("do", [yes])
    assert backend.statistics().started == len(result.slices) == loops * concurrency


def test_rule_01_a_product_of_a_thousand_is_allowed_by_default_and_no_more():
    RejectionSamplingStrategy(loop_budget=100, concurrency_budget=10)
    with pytest.raises(ValueError, match=r"loop_budget is set to 1001.*max_iterations, 1000"):
        RejectionSamplingStrategy(loop_budget=1001)
    with pytest.raises(ValueError, match="with concurrency_budget 11 that is more than"):
        RejectionSamplingStrategy(loop_budget=91, concurrency_budget=11)


def test_rule_01_max_iterations_is_a_parameter():
    RejectionSamplingStrategy(loop_budget=3, concurrency_budget=2, max_iterations=6)
    with pytest.raises(ValueError, match="max_iterations, 5"):
        RejectionSamplingStrategy(loop_budget=3, concurrency_budget=2, max_iterations=5)
    RejectionSamplingStrategy(loop_budget=2000, max_iterations=2000)
