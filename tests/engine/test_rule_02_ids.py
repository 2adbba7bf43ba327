"""Rule 2 of the engine: iteration ids, and who sees which."""

from __future__ import annotations

import logging

import anyio
import pytest

from mellea_like import Generation, RejectionSamplingStrategy, Requirement
from mellea_like.backends.function import FunctionBackend
from mellea_like.core import current_iteration
from mellea_like.plans.scheduled import turn_of
from mellea_like.runtime.logs import IterationFilter

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("subsample", "depth", "loops", "iteration"),
    [(0, 0, 1, 1), (0, 0, 3, 1), (0, 2, 3, 3), (1, 0, 3, 4), (1, 2, 3, 6), (7, 4, 5, 40)],
)
def test_rule_02_the_id_follows_from_the_turn(subsample, depth, loops, iteration):
    turn = turn_of(subsample, depth, loops)
    assert turn == (iteration, subsample, depth)


async def test_rule_02_generation_and_validation_see_their_own_slices_id(virtual_clock):
    seen: list[tuple[str, int, int | None]] = []

    async def generate(request):
        # Interleave the iterations of different subsamples.
        await anyio.sleep(1 / request.meta.iteration)
        seen.append((request.meta.purpose, request.meta.iteration, current_iteration()))
        if request.meta.purpose == "judge":
            return '{"passed": false, "reason": ""}'
        return f"no {request.meta.iteration}"

    def inline(candidate):
        seen.append(("inline", int(candidate.text.split()[1]), current_iteration()))
        return True

    async def awaited(candidate):
        await anyio.sleep(0.3)
        seen.append(("awaited", int(candidate.text.split()[1]), current_iteration()))
        return True

    strategy = RejectionSamplingStrategy(
        FunctionBackend(generate, can_judge=True), loop_budget=2, concurrency_budget=3
    )
    checks = [
        Requirement("inline", inline, inline=True),
        Requirement("awaited", awaited),
        "a judge decides",
    ]
    assert current_iteration() is None
    result = await strategy.sample("do", checks)
    assert current_iteration() is None
    assert not result.success
    assert {kind for kind, _, _ in seen} == {"generate", "judge", "inline", "awaited"}
    assert all(own == current for _, own, current in seen)
    assert len({own for _, own, _ in seen}) == 6


async def test_rule_02_log_records_carry_the_ids_of_the_slice_they_belong_to(virtual_clock, caplog):
    log = logging.getLogger("somebody.elses")
    caplog.handler.addFilter(ids := IterationFilter())

    async def generate(request):
        log.warning("generating %d", request.meta.iteration)
        return Generation("no")

    async def check(candidate):
        await anyio.sleep(0.1)
        log.warning("validating %d", current_iteration())
        return False

    try:
        log.warning("outside")
        strategy = RejectionSamplingStrategy(
            FunctionBackend(generate), loop_budget=2, concurrency_budget=2
        )
        result = await strategy.sample("do", [Requirement("check", check)])
    finally:
        caplog.handler.removeFilter(ids)
    outside, *inside = [r for r in caplog.records if r.name == log.name]
    assert (outside.sampling_id, outside.iteration, outside.subsample) == (None, None, None)
    assert len(inside) == 8
    for record in inside:
        assert record.sampling_id == result.sampling_id
        assert record.iteration == record.args[0]
        assert record.subsample == (record.args[0] - 1) // 2
