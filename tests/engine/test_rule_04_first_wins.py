"""Rule 4 of the engine: the first passing slice wins, and its siblings stop."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import Unmetered, after, by_iteration, outcomes, yes

from mellea_like import Generation, Outcome, RejectionSamplingStrategy
from mellea_like.core import StopReason
from mellea_like.hooks import HookType, hook

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def test_rule_04_the_first_passing_slice_wins():
    backend = by_iteration({1: after(3, "yes 1"), 2: after(1, "yes 2"), 3: after(2, "yes 3")})
    strategy = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=3)
    result = await strategy.sample("do", [yes])
    assert result.success
    assert result.best.iteration == 2
    assert result.unwrap() == result.value == "yes 2"
    assert result.stop_reason is StopReason.PASSED
    assert result.elapsed == pytest.approx(1.0)
    assert backend.statistics().cancelled == 2


async def test_rule_04_siblings_do_not_wait_for_the_winners_hooks():
    @hook(HookType.SAMPLING_ITERATION)
    async def slow(payload):
        await anyio.sleep(1.5)

    cancelled_at = []

    async def generate(request):
        if request.meta.iteration == 1:
            await anyio.sleep(1)
            return Generation("yes")
        try:
            await anyio.sleep_forever()
        finally:
            cancelled_at.append(anyio.current_time() - request.meta.call_started)

    strategy = RejectionSamplingStrategy(
        Unmetered(generate), loop_budget=1, concurrency_budget=3, plugins=[slow]
    )
    result = await strategy.sample("do", [yes])
    assert cancelled_at == pytest.approx([1.0, 1.0])
    assert [s.ended_at for s in result.slices] == pytest.approx([1.0, 1.0, 1.0])


async def test_rule_04_what_had_finished_is_kept_and_what_had_not_is_cancelled():
    backend = by_iteration(
        {1: after(3, "yes"), 3: after(1, "no"), 4: after(9, "no"), 5: after(9, "no")}
    )
    strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=3)
    result = await strategy.sample("do", [yes])
    assert outcomes(result) == {3: "failed", 1: "passed", 4: "cancelled", 5: "cancelled"}
    assert [s.iteration for s in result.slices] == [3, 1, 4, 5]
    failed = result.slices[0]
    assert failed.text == "no"
    assert failed.problems == ("say yes: it lacks yes",)
    cancelled = result.slices[-1]
    assert cancelled.generation is None
    assert cancelled.error is None
    assert cancelled.messages[-1].content.startswith("do")
    assert result.best_index == 1
    assert result.count(Outcome.CANCELLED) == 2
