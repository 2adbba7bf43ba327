"""RecordingPlugin: writes down every payload."""

from __future__ import annotations

import pytest

from mellea_like.backends.simulated import SimulatedBackend, passes
from mellea_like.core.conversation import Context, as_action
from mellea_like.hooks import (
    GenerationPreCallPayload,
    SamplingIterationPayload,
    SamplingLoopStartPayload,
)
from mellea_like.hooks.plugins import handlers_of
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.sampling.strategies import RejectionSamplingStrategy
from mellea_like.testing import RecordingPlugin

pytestmark = pytest.mark.anyio


def start() -> SamplingLoopStartPayload:
    return SamplingLoopStartPayload(
        sampling_id="id",
        strategy="S",
        action=as_action("do"),
        context=Context(),
        requirements=(),
        loop_budget=1,
        concurrency_budget=1,
    )


async def test_it_listens_to_every_hook_and_changes_nothing():
    handlers = handlers_of(RecordingPlugin())
    assert {handler.hook for handler in handlers} == set(HookType)
    assert {handler.mode for handler in handlers} == {HookMode.OBSERVE}


async def test_payloads_are_kept_in_order_and_found_by_hook_or_class():
    recording = RecordingPlugin()
    first, second = start(), start()
    for payload in (first, second):
        for handler in handlers_of(recording):
            if handler.hook is payload.hook:
                assert await handler.function(payload) is None
    assert recording.payloads == [first, second]
    assert recording.of(HookType.SAMPLING_LOOP_START) == [first, second]
    assert recording.of(SamplingLoopStartPayload)[0] is first
    assert recording.of(HookType.SAMPLING_LOOP_END) == []
    assert recording.of(GenerationPreCallPayload) == []


async def test_it_records_a_call(virtual_clock):
    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(
        SimulatedBackend(pass_rate=0), loop_budget=2, concurrency_budget=2, plugins=[recording]
    )
    result = await strategy.sample("do it", [passes])
    assert recording.payloads[0].hook is HookType.SAMPLING_LOOP_START
    assert recording.payloads[-1].hook is HookType.SAMPLING_LOOP_END
    slices = [payload.slice for payload in recording.of(SamplingIterationPayload)]
    assert tuple(slices) == result.slices
    assert len(recording.of(HookType.GENERATION_POST_CALL)) == 4
