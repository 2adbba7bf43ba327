"""Rule 5 of the engine: each iteration that started has one outcome and a place in the record."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import Unmetered, by_iteration, outcomes, yes
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import BackendError, Generation, Outcome, RejectionSamplingStrategy
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.backends.simulated import SimulatedBackend, passes
from mellea_like.core import Usage
from mellea_like.errors import BackendTimeout
from mellea_like.hooks import Blocked, HookType, hook
from mellea_like.testing import RecordingPlugin, run_virtual

pytestmark = pytest.mark.anyio


@given(
    seed=st.integers(0, 10_000),
    loops=st.integers(1, 5),
    concurrency=st.integers(1, 6),
    pass_rate=st.sampled_from([0.0, 0.1, 0.5]),
    error_rate=st.sampled_from([0.0, 0.3, 0.9]),
    timeout=st.sampled_from([None, 0.5, 3.0]),
    loop=st.sampled_from(["asyncio", "trio"]),
)
def test_rule_05_whatever_happens_each_started_iteration_is_recorded_once(
    seed, loops, concurrency, pass_rate, error_rate, timeout, loop
):
    backend = SimulatedBackend(
        seed=seed, pass_rate=pass_rate, error_rate=error_rate, sigma=1.0, straggler_rate=0.1
    )
    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(
        backend,
        loop_budget=loops,
        concurrency_budget=concurrency,
        timeout=timeout,
        plugins=[recording],
        retry=None,
    )

    async def main():
        try:
            return (await strategy.sample("do", [passes])).slices
        except Exception:  # noqa: BLE001 (what it is, other tests say)
            return None

    slices = run_virtual(main, backend=loop)
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    told = [p.slice for p in recording.of(HookType.SAMPLING_ITERATION)]
    counts = backend.statistics()
    assert slices is None or slices == end.slices
    assert list(end.slices) == told
    ids = [s.iteration for s in end.slices]
    assert len(set(ids)) == len(ids)
    # What the circuit breaker refused, or kept waiting until the call's time was up.
    unsent = sum(s.usage.requests == 0 for s in end.slices)
    assert len(ids) == counts.started + unsent
    assert counts.in_flight == 0
    assert [s.ended_at for s in end.slices] == sorted(s.ended_at for s in end.slices)
    answered = [s for s in end.slices if s.outcome in {Outcome.PASSED, Outcome.FAILED}]
    assert len(answered) <= counts.finished
    assert all(s.generation is not None for s in answered)
    assert all((s.error is not None) == (s.outcome is Outcome.ERRORED) for s in end.slices)
    total = sum((s.usage for s in end.slices), Usage())
    assert total.requests == counts.started
    assert total.unknown == counts.failed + counts.cancelled
    assert total.output_tokens == counts.output_tokens


# --- usage ---------------------------------------------------------------------------------------


async def test_rule_05_usage_is_the_servers_where_it_said_it(virtual_clock):
    said = Usage(requests=1, input_tokens=100, output_tokens=7)
    backend = ScriptedBackend([Generation("no", usage=said), Generation("yes", usage=said)])
    result = await RejectionSamplingStrategy(backend).sample("do", [yes])
    assert [s.usage for s in result.slices] == [said, said]
    assert result.usage == Usage(2, 200, 14, 0)


async def test_rule_05_a_backend_without_a_meter_that_fails_or_is_cancelled_is_counted(
    virtual_clock,
):
    async def generate(request):
        await anyio.sleep(request.meta.iteration)
        if request.meta.iteration == 1:
            raise BackendError("no")
        return Generation("yes", usage=Usage(1, 1, 1))

    strategy = RejectionSamplingStrategy(Unmetered(generate), loop_budget=1, concurrency_budget=3)
    result = await strategy.sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "passed", 3: "cancelled"}
    assert result.usage == Usage(requests=3, input_tokens=1, output_tokens=1, unknown=2)


@pytest.mark.parametrize("how", ["too slow", "blocked"])
async def test_rule_05_a_reply_that_a_plugin_keeps_back_costs_what_it_says(how, virtual_clock):
    async def generate(request):
        return Generation("yes", usage=Usage(1, 10, 20))

    @hook(HookType.GENERATION_POST_CALL)
    async def keep(payload):
        await anyio.sleep(2)
        raise Blocked("not this one")

    limit = 1 if how == "too slow" else None
    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(
        Unmetered(generate), loop_budget=1, iteration_timeout=limit, plugins=[keep, recording]
    )
    with pytest.raises(BackendTimeout if limit else Blocked):
        await strategy.sample("do", [yes])
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    assert [s.usage for s in end.slices] == [Usage(1, 10, 20)]


async def test_rule_05_requests_sent_again_inside_an_iteration_are_each_counted(virtual_clock):
    async def generate(request):
        request.meter.start()  # an attempt whose cost nobody said
        request.meter.start().settle(input_tokens=5, output_tokens=6)
        return Generation("yes")

    result = await RejectionSamplingStrategy(Unmetered(generate)).sample("do", [yes])
    assert result.usage == Usage(2, 5, 6, 1)


async def test_rule_05_an_iteration_that_sent_nothing_cost_nothing(virtual_clock):
    class Unrenderable:
        def render(self, context):
            raise LookupError("no template")

        def parse(self, text):
            return text

    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(by_iteration({}), plugins=[recording])
    with pytest.raises(LookupError):
        await strategy.sample(Unrenderable(), [yes])
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    assert [s.usage for s in end.slices] == [Usage()]
