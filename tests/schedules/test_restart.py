"""`Restart`: what takes unusually long is closed and drawn anew."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from engine_kit import Busy, yes
from schedule_kit import facts, progress, took

from mellea_like import Budget, Escalate, Generation, Outcome, RejectionSamplingStrategy
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import Usage
from mellea_like.errors import BackendUnavailable
from mellea_like.hooks import HookType, Plugin, hook
from mellea_like.limits import FallbackBackend, Retry
from mellea_like.sampling.escalate import Stage
from mellea_like.schedules import Eager, Hedged, LatencyQuantiles, Restart, SchedulePlan, Staggered

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def usually(seconds, model=None, latency=None):
    """Durations of which every quantile is the same."""
    latency = latency or LatencyQuantiles(least=1)
    for _ in range(200):
        latency.observe(seconds, model)
    return latency


class Draws(Busy):
    """Each draw of an iteration takes as long as a table says: 1 s where it says nothing."""

    def __init__(self, slow=None, replies=None):
        super().__init__(self.answer)
        self.slow = slow or {}
        self.asked = []
        self.replies = replies

    async def answer(self, request):
        draw = request.meta.iteration, request.meta.retry
        self.asked.append((*draw, request.options.seed))
        meter = request.meter.start()
        meter.update(input_tokens=7, output_tokens=1)
        await anyio.sleep(self.slow.get(draw, 1.0))
        meter.settle(input_tokens=7, output_tokens=5)
        reply = "yes" if self.replies is None else self.replies.get(draw[0], "no")
        if isinstance(reply, Exception):
            raise reply
        return Generation(reply, usage=meter.usage)


def restarting(backend, width=1, **given):
    schedule = Restart(**{"latency": usually(2.0), **given})
    return RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=width, schedule=schedule, options={"seed": 1}
    )


async def test_a_straggler_is_closed_and_drawn_anew_by_the_same_iteration():
    backend = Draws({(1, 0): 100.0})
    result = await restarting(backend).sample("do", [yes])
    (slice_,) = result.slices
    assert (slice_.iteration, slice_.outcome) == (1, Outcome.PASSED)
    assert result.elapsed == pytest.approx(3.0)
    # What the closed one had cost is known as far as it had come.
    assert result.usage == Usage(2, 14, 6, 1)
    assert slice_.generation.usage == Usage(1, 7, 5)
    first, second = backend.asked
    assert (first[:2], second[:2]) == ((1, 0), (1, 1))
    assert first[2] != second[2]  # Another seed, or it would be the same draw.


async def test_a_restarted_draw_counts_as_begun_again_for_the_schedule_that_is_wrapped():
    """It restarts at 2 s, so it is slow at 5 s, and the draw that is then added takes 1 s."""
    backend = Draws({(1, 0): 100.0, (1, 1): 100.0})
    hedged = Hedged(latency=usually(3.0))
    result = await restarting(backend, schedule=hedged, most=1).sample("do", [yes])
    assert result.elapsed == pytest.approx(6.0)


async def test_a_draw_is_not_restarted_at_a_bound_that_is_no_quantile():
    """Draws that take a second pass, and cancel the others: 19 in 20 may take up to an hour."""
    latency = usually(1.0)
    for _ in range(200):
        latency.observe(1.0, censored=True)
    backend = Draws({(1, 0): 3.0})
    result = await restarting(backend, latency=latency).sample("do", [yes])
    assert result.elapsed == pytest.approx(3.0)
    assert result.usage.requests == 1


async def test_a_restart_costs_no_attempt():
    backend = Draws({(i, n): 5.0 for i in (1, 2) for n in range(3)}, {})
    result = await restarting(backend).sample("do", [yes])
    assert (len(result.slices), result.usage.requests) == (2, 6)


@pytest.mark.parametrize("budget", [None, Budget(requests=9)])
async def test_a_backend_may_have_limits_of_another_kind(budget):
    backend = Draws({(1, 0): 100.0})
    backend.limits = object()  # Such as httpx.Limits.
    result = await restarting(backend).sample("do", [yes], budget=budget)
    assert result.elapsed == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("budget", "requests"),
    [({"requests": 1}, 1), ({"output_tokens": 9}, 1), ({"requests": 2, "output_tokens": 10}, 2)],
)
async def test_a_straggler_goes_on_where_a_budget_has_no_room_for_another_draw(budget, requests):
    backend = Draws({(1, 0): 6.0})
    budget = Budget(**budget, assume_output_tokens=5)
    result = await restarting(backend).sample("do", [yes], budget=budget)
    assert result.success
    assert result.elapsed == pytest.approx(6.0 if requests == 1 else 3.0)
    assert budget.spent.requests == result.usage.requests == requests


async def test_each_stage_of_an_escalation_takes_as_long_as_its_own_model_does():
    small, big = Draws({}, {}), Draws({(2, 0): 50.0, (3, 0): 9.0})
    small.model, big.model = "small", "big"
    latency = usually(2.0, "small")
    stages = [Stage(small, turns=1), Stage(big, turns=2)]
    strategy = Escalate(stages, concurrency_budget=1, schedule=Restart(latency=latency))
    assert (await strategy.sample("do", [yes])).elapsed == pytest.approx(51.0)
    assert (big.statistics().started, latency.quantile(0.9, "small")) == (1, 2.0)
    usually(9.5, "big", latency)
    assert (await strategy.sample("do", [yes])).elapsed == pytest.approx(1.0 + 9.5 + 1.0)


async def test_the_winner_closes_what_was_drawn_anew():
    slow = {(1, 0): 9.0, (1, 1): 9.0, (3, 0): 1.9, (4, 0): 1.9}
    backend = Draws(slow, {4: "yes"})
    result = await restarting(backend, 2).sample("do", [yes])
    assert (result.best.iteration, result.elapsed) == (4, pytest.approx(3.8))
    assert {s.iteration: s.outcome for s in result.slices}[1] is Outcome.CANCELLED
    counts = backend.statistics()
    assert counts.in_flight == 0
    assert result.usage.requests == counts.started == 4


def test_the_other_schedule_says_when_iterations_start():
    for inner in (Eager(), Eager(pool=True), Staggered(2), Hedged(extra=3)):
        schedule = Restart(schedule=inner)
        assert (schedule.pooled, schedule.extra) == (inner.pooled, inner.extra)
        assert schedule.timing_dependent
        plan, own = schedule.begin(facts()), inner.begin(facts())
        if own is not None:
            assert plan.decide(progress(0.5, [0.0])) == own.decide(progress(0.5, [0.0]))
    alone = Restart(schedule=Eager()).begin(facts(concurrency_budget=3))
    assert alone.decide(progress()).more == 3


def test_a_draw_that_was_closed_counts_as_one_that_would_have_taken_longer():
    latency = LatencyQuantiles(least=1)
    plan = Restart(latency=latency).begin(facts())
    assert isinstance(plan, SchedulePlan)
    plan.restarted(0, 4.0, "model")
    plan.observe(took(5.0))  # One second was the second draw's.
    plan.observe(took(5.0))
    assert [latency.quantile(q, "model") for q in (0.3, 0.5)] == [1.0, 5.0]


async def test_a_stages_draw_is_one_of_the_stages_model_whatever_a_plugin_or_a_fallback_asks():
    class Dearer(Plugin):
        @hook(HookType.GENERATION_PRE_CALL)
        async def choose(self, payload):
            options = replace(payload.options, model="dear")
            return payload.model_copy(update={"options": options})

    down, up = (
        ScriptedBackend([BackendUnavailable("down")] * 2, model="small"),
        ScriptedBackend(["yes"] * 2),
    )
    for backend, plugins in (
        (ScriptedBackend(["yes"] * 2, model="small"), [Dearer()]),
        (FallbackBackend(down, up, retry=Retry(1)), []),
    ):
        latency = LatencyQuantiles(least=1)
        schedule = Restart(0.5, latency=latency)
        strategy = Escalate([Stage(backend)], schedule=schedule, plugins=plugins)
        for _ in range(2):
            [slice_] = (await strategy.sample("do", [yes])).slices
        assert slice_.asked != "small"
        assert latency.quantile(0.5, "small") is not None
