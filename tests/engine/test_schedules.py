"""Schedules at work: what the engine makes of what a schedule decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from engine_kit import after, by_iteration, says, yes

from mellea_like import MultiTurnStrategy, RejectionSamplingStrategy, SamplingFailed
from mellea_like.core import StopReason
from mellea_like.errors import AuthenticationFailed
from mellea_like.limits.budget import Budget
from mellea_like.schedules import Eager
from mellea_like.schedules.base import BaseSchedule, CallFacts, CallProgress, Go
from mellea_like.schedules.giving_up import PerRequirement

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like import Slice

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


@dataclass
class Planned(BaseSchedule):
    """A schedule that does what the test says, and keeps what it was asked and told."""

    rule: Callable[[CallProgress], Go]
    pooled: bool = True
    extra: int = 0
    timing_dependent: bool = True
    seconds: float | None = None
    facts: list[CallFacts] = field(default_factory=list)
    asked: list[CallProgress] = field(default_factory=list)
    seen: list[Slice] = field(default_factory=list)

    def begin(self, facts: CallFacts) -> Planned:
        self.facts.append(facts)
        return self

    def decide(self, progress: CallProgress) -> Go:
        self.asked.append(progress)
        return self.rule(progress)

    def observe(self, slice_: Slice) -> None:
        self.seen.append(slice_)


def width(wanted: int) -> Callable[[CallProgress], Go]:
    return lambda progress: Go(wanted - len(progress.running))


def strategy(backend: Any, schedule: Any, **settings: Any) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(
        backend, **{"loop_budget": 2, "concurrency_budget": 3, "schedule": schedule, **settings}
    )


async def test_only_as_many_iterations_run_as_the_schedule_wants():
    backend = by_iteration({}, after(1, "no"))
    result = await strategy(backend, Planned(width(2))).sample("do", [yes])
    assert backend.statistics().max_in_flight == 2
    assert len(result.slices) == 6
    assert result.stop_reason is StopReason.EXHAUSTED
    assert result.elapsed == pytest.approx(3)


async def test_a_chain_that_failed_goes_on_with_its_repair_before_a_new_one_is_opened():
    backend = by_iteration({}, "no")
    result = await MultiTurnStrategy(
        backend, loop_budget=3, concurrency_budget=2, schedule=Planned(width(1))
    ).sample("do", [yes])
    assert [(s.chain, s.depth) for s in result.slices[:4]] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [len(s.context) for s in result.slices[:4]] == [0, 2, 4, 0]


async def test_a_chain_ends_after_loop_budget_iterations_and_a_fresh_one_takes_what_is_left():
    # Subsample 0 hangs in its first turn; the other one's successors take its turns.
    backend = by_iteration({1: after(100, "no")}, after(1, "no"))
    result = await strategy(backend, Eager(pool=True), loop_budget=3, concurrency_budget=2).sample(
        "do", [yes]
    )
    assert {s.iteration for s in result.slices} == {1, 2, 3, 4, 5, 6}
    borrowed = [s for s in result.slices if s.chain != s.subsample]
    assert [(s.iteration, s.chain, s.subsample, s.depth) for s in borrowed] == [
        (2, 2, 0, 1),
        (3, 2, 0, 2),
    ]
    assert result.elapsed == pytest.approx(100)


async def test_the_schedule_is_asked_again_when_it_wants_to_be():
    def rule(progress: CallProgress) -> Go:
        due = int(progress.now // 10) + 1
        return Go(due - progress.opened, 10.0 * due)

    schedule = Planned(rule)
    backend = by_iteration({}, after(100, "no"))
    result = await strategy(backend, schedule, loop_budget=1).sample("do", [yes])
    assert [s.started_at for s in result.slices] == pytest.approx([0, 10, 20])
    assert [p.now for p in schedule.asked[:3]] == pytest.approx([0, 10, 20])


async def test_it_is_told_of_every_iteration_and_how_far_the_call_is():
    schedule = Planned(width(2))
    backend = by_iteration({1: AuthenticationFailed("no key"), 3: after(2, "yes")}, after(1, "no"))
    result = await strategy(backend, schedule).sample("do", [yes])
    assert {s.iteration for s in schedule.seen} == {s.iteration for s in result.slices}
    assert schedule.facts == [CallFacts(schedule.facts[0].action, (yes,), 3, 2, "scripted")]
    assert schedule.facts[0].action.description == "do"  # type: ignore[attr-defined]
    first = schedule.asked[0]
    assert first == CallProgress(0.0, (), 0, 0, 0, 0, 6, 0)
    assert schedule.asked[-1].broken == 1
    assert 3 <= schedule.asked[-1].started <= len(result.slices)


@pytest.mark.parametrize("where", ["begin", "decide", "observe"])
async def test_a_bug_in_a_schedule_ends_the_call_and_is_raised(where):
    class Buggy(Planned):
        pass

    def bug(*_: object) -> Any:
        msg = f"bug in {where}"
        raise ZeroDivisionError(msg)

    setattr(Buggy, where, bug)
    backend = by_iteration({1: "no"}, after(60, "no"))
    with pytest.raises(ZeroDivisionError, match=where):
        await strategy(backend, Buggy(width(3))).sample("do", [yes])
    assert anyio.current_time() < 60
    assert backend.statistics().in_flight == 0


async def test_the_schedules_own_time_limit_is_the_calls_if_it_is_sooner():
    backend = by_iteration({1: "no"}, after(50, "no"))
    for timeout, seconds, expected in ((None, 7.0, 7.0), (5.0, 7.0, 5.0), (9.0, 7.0, 7.0)):
        schedule = Planned(width(3), seconds=seconds)
        result = await strategy(backend, schedule, timeout=timeout).sample("do", [yes])
        assert result.stop_reason is StopReason.TIMEOUT
        assert result.elapsed == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [3, "eager", Eager, object()])
async def test_what_is_no_schedule_is_refused(wrong):
    with pytest.raises(TypeError, match="schedule must be a BaseSchedule, such as"):
        strategy(by_iteration({}), wrong)
    with pytest.raises(TypeError, match="give_up must be a PerRequirement, such as"):
        strategy(by_iteration({}), None, give_up=wrong)


@pytest.mark.parametrize(
    "answer", [None, Go(1.5), Go(None), Go(1, math.nan), Go(1, "soon"), (1, 2, 3)]
)
@pytest.mark.parametrize("asked_before", [0, 1])
async def test_what_is_no_decision_ends_the_call_with_an_error_of_its_own(answer, asked_before):
    def rule(progress: CallProgress) -> Any:
        return Go(1, 0.5) if progress.started < asked_before else answer

    with pytest.raises(TypeError, match=r"the schedule decided .*, not Go\(more, look_again\)"):
        await strategy(by_iteration({}, after(1, "no")), Planned(rule)).sample("do", [yes])


async def test_a_call_ends_when_nothing_can_start_though_the_schedule_wants_to_be_asked_on():
    backend = by_iteration({1: AuthenticationFailed("no")}, after(1, "no"))
    every_second = Planned(lambda p: Go(3 - len(p.running), p.now + 1), pooled=False)
    with anyio.fail_after(100):
        result = await strategy(backend, every_second).sample("do", [yes])
    assert result.elapsed == pytest.approx(2)
    assert len(result.slices) == 5  # The turn that the broken chain left is nobody's.


async def test_a_schedule_that_lets_nothing_start_is_named_in_the_error():
    backend = by_iteration({}, "yes")
    with pytest.raises(SamplingFailed, match="the schedule didn't let any draw start") as caught:
        await strategy(backend, Planned(lambda _: Go(0))).sample("do", [yes])
    assert caught.value.result.slices == ()
    assert backend.statistics().started == 0


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_schedule_that_holds_back_while_attempts_are_left_and_nothing_runs_is_logged(
    caplog, lanes
):
    only_one = Planned(lambda p: Go(0 if p.started else 1))
    calls = strategy(by_iteration({}, after(1, "no")), only_one, concurrency_budget=lanes)
    result = await calls.sample("do", [yes])
    assert len(result.slices) == 1
    assert "no draw is running: Planned, or what wraps it, has a bug" in caplog.text


async def test_a_schedule_that_opens_no_chain_for_a_broken_one_is_no_bug(caplog):
    backend = by_iteration({1: AuthenticationFailed("no")}, "no")
    schedule = Planned(lambda p: Go(1 - len(p.running) - p.broken))
    with pytest.raises(AuthenticationFailed):
        await strategy(backend, schedule).sample("do", [yes])
    assert backend.statistics().started == 1
    assert "has a bug" not in caplog.text


# --- giving up ---------------------------------------------------------------------------------

GIVING_UP = {"loop_budget": 20, "concurrency_budget": 1, "give_up": PerRequirement()}


async def test_six_failures_and_no_pass_are_hopeless_and_the_result_says_which():
    result = await strategy(by_iteration({}, "yes"), None, **GIVING_UP, validate_all=True).sample(
        "do", [yes, says("never")]
    )
    assert result.stop_reason is StopReason.HOPELESS
    assert len(result.slices) == 6
    assert "says never" in result.stop_detail
    assert "yes" not in result.stop_detail
    assert result.best.outcome == "failed"


@pytest.mark.parametrize("slow", ["no", "yes"])
async def test_quick_failures_do_not_outrun_slow_passes(slow):
    # Three of four draws pass. Only the order of starts makes the first to end a fair sample. (On
    # trio, this order is random: six failures come first in 1 of 30,000 runs.)
    replies = {n: after(3 if slow == "yes" else 1, "yes") for n in range(1, 33) if n % 4}
    other = after(3 if slow == "no" else 1, "no")
    settings = {"loop_budget": 1, "concurrency_budget": 32, "give_up": PerRequirement()}
    result = await strategy(by_iteration(replies, other), None, **settings).sample("do", [yes])
    assert (result.success, result.stop_reason) == (True, StopReason.PASSED)


async def test_draws_count_against_a_requirement_in_the_order_of_their_starts():
    # Until the first draw has ended, the seven others might be seven failures and a pass.
    result = await strategy(
        by_iteration({1: after(9, "no")}, after(1, "no")),
        None,
        loop_budget=2,
        concurrency_budget=4,
        give_up=PerRequirement(),
    ).sample("do", [yes])
    assert result.stop_reason is StopReason.HOPELESS
    assert result.slices[-1].ended_at - result.slices[-1].started_at == pytest.approx(9)


async def test_a_draw_that_hangs_does_not_hold_up_giving_up():
    # Ten failures are enough even if the one that hangs were a pass.
    result = await strategy(
        by_iteration({1: after(1e6, "yes")}, after(1, "no")),
        None,
        loop_budget=50,
        concurrency_budget=2,
        give_up=PerRequirement(),
    ).sample("do", [yes])
    assert result.stop_reason is StopReason.HOPELESS
    assert "in 0 of 10 replies" in result.stop_detail
    assert len(result.slices) == 11


async def test_a_budget_that_denies_a_sibling_in_that_very_moment_is_not_the_reason():
    # The sibling waits for what the first request leaves, and that is too little.
    result = await strategy(
        by_iteration({}, after(1, "no, not at all")),
        None,
        loop_budget=20,
        concurrency_budget=2,
        give_up=PerRequirement(0.5, 0.7),
        options={"max_tokens": 8},
    ).sample("do", [yes], budget=Budget(output_tokens=10))
    assert result.stop_reason is StopReason.HOPELESS
    assert "says yes" in result.stop_detail
