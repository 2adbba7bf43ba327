"""Rule 3 of the engine: the record of an iteration is made in one step."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import Unmetered, after, by_iteration, outcomes, yes

from mellea_like import Generation, RejectionSamplingStrategy, Requirement
from mellea_like.hooks import HookType, hook

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def test_rule_03_no_turn_starts_once_a_slice_has_passed():
    passed = anyio.Event()
    started = []

    async def generate(request):
        started.append(request.meta.iteration)
        if request.meta.subsample == 0:
            await anyio.sleep(1)
            return Generation("yes")
        # Wakes in the step after the winner's validator ran, before the consumer can cancel it.
        await passed.wait()
        return Generation("no")

    def check(candidate):
        if candidate.text == "yes":
            passed.set()
        return candidate.text == "yes"

    strategy = RejectionSamplingStrategy(Unmetered(generate), loop_budget=5, concurrency_budget=4)
    result = await strategy.sample("do", [Requirement("yes", check, inline=True)])
    assert sorted(started) == [1, 6, 11, 16]
    assert result.success


async def test_rule_03_recording_and_cancelling_never_wait_for_a_hook():
    @hook(HookType.SAMPLING_ITERATION)
    async def slow(payload):
        await anyio.sleep(0.7)

    backend = by_iteration(
        {1: after(1, "no"), 2: after(0.2, "yes"), 3: after(9, "no")}, default=after(9, "no")
    )
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=2, plugins=[slow]
    )
    result = await strategy.sample("do", [yes])
    ended = {s.iteration: s.ended_at for s in result.slices}
    assert ended == pytest.approx({1: 1.0, 2: 1.2, 3: 1.2})
    assert outcomes(result) == {1: "failed", 2: "passed", 3: "cancelled"}
    assert result.elapsed == pytest.approx(1.0 + 3 * 0.7)  # the hook's three calls, drained
