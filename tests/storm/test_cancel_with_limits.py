"""A call that retries, keeps to limits or follows a schedule may be cancelled at any step, too.

As in ``test_cancel_at_every_step.py``; besides, no limiter has waiters or permits left, no budget a
reservation, and nobody stands at the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from storm import Draw, Rig, StreamingRig, Told, handler
from storm_cancel import (
    AWAITED,
    BAD,
    INLINE,
    WAYS,
    cancel_case,
    make,
)
from storm_run import Scene

from mellea_like import RepairTemplateStrategy, Requirement
from mellea_like.core.validation import Verdict
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    Blocked,
    LimitExceeded,
    RateLimited,
)
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.limits import AdaptiveLimiter, ConcurrencyLimiter, RateLimiter
from mellea_like.limits.budget import Budget
from mellea_like.limits.retry import Retry
from mellea_like.schedules import Eager, Hedged, LatencyQuantiles, Staggered

RETRY = Retry()
JUDGED = Requirement("the judge likes it")

SCENES: dict[str, Callable[[], Scene]] = {}


def scene(function: Callable[[], Scene]) -> Callable[[], Scene]:
    SCENES[function.__name__] = function
    return function


# --- retries -------------------------------------------------------------------------------------


@scene
def a_503_is_tried_again() -> Scene:
    plan = {1: Draw("good", 1, failures=2), 3: BAD}
    return make(plan, "passed", retry=RETRY, default=Draw("bad", 4), concurrency=2, winners=[1])


@scene
def a_503_is_tried_again_and_no_one_looks() -> Scene:
    plan = {1: Draw("good", 1, failures=1)}
    return make(plan, "passed", retry=RETRY, default=Draw("bad", 9), concurrency=2,
                silent=True, winners=[1])  # fmt: skip


@scene
def retries_are_exhausted() -> Scene:
    return make({}, BackendUnavailable, retry=Retry(2), default=Draw("good", 0.25, failures=9),
                loop=1, concurrency=2)  # fmt: skip


@scene
def the_gate_is_closed_for_all() -> Scene:
    plan = {1: Draw("good", 0.5, failures=1, told=5.0), 2: BAD}
    return make(plan, "passed", retry=RETRY, default=BAD, winners=[1])


@scene
def a_win_comes_while_the_gate_is_closed() -> Scene:
    plan = {1: Draw("good", 1), 3: Draw("good", 0.25, failures=1, told=50.0)}
    return make(plan, "passed", retry=RETRY, default=Draw("bad", 0.5), winners=[1])


@scene
def the_wait_is_too_long() -> Scene:
    return make({}, RateLimited, retry=RETRY, default=Draw("good", 0.5, failures=9, told=999.0))


@scene
def time_is_up_while_the_gate_is_closed() -> Scene:
    return make({}, BackendTimeout, retry=RETRY, iteration_timeout=2, loop=1,
                default=Draw("good", 0.5, failures=1, told=50.0))  # fmt: skip


async def _no_retries(payload: Any) -> None:
    await checkpoint()
    if payload.retry:
        raise Blocked("no retries")


@scene
def a_hook_blocks_a_retry() -> Scene:
    told = Told()
    plugin = handler(told, HookType.GENERATION_PRE_CALL, HookMode.SEQUENTIAL, _no_retries)
    plan = {1: Draw("good", 0.5, failures=1)}
    return make(plan, Blocked, told=told, plugins=[plugin], retry=RETRY, default=Draw("good", 9))


async def _slow(payload: Any) -> None:
    await anyio.sleep(0.25)


@scene
def hooks_look_at_retries() -> Scene:
    told = Told()
    plugins = [
        handler(told, kind, mode, _slow)
        for kind in (HookType.GENERATION_PRE_CALL, HookType.GENERATION_ERROR)
        for mode in HookMode
    ]
    plan = {1: Draw("good", 0.5, failures=1)}
    return make(plan, "passed", told=told, plugins=plugins, retry=RETRY, default=Draw("bad", 3),
                concurrency=2, winners=[1])  # fmt: skip


# --- limits and budgets --------------------------------------------------------------------------


@scene
def one_request_at_a_time() -> Scene:
    return make({1: BAD, 3: BAD, 5: Draw("good", 1)}, "passed", limits=[ConcurrencyLimiter(1)],
                default=BAD, winners=[5])  # fmt: skip


@scene
def one_request_at_a_time_and_no_one_looks() -> Scene:
    return make({1: BAD, 3: Draw("good", 1)}, "passed", limits=[ConcurrencyLimiter(1)],
                default=BAD, silent=True, winners=[3])  # fmt: skip


@scene
def one_request_at_a_time_with_judges() -> Scene:
    return make({1: BAD}, "passed", limits=[ConcurrencyLimiter(1)], default=Draw("good", 1),
                requirements=[INLINE, JUDGED], concurrency=2, winners=[3])  # fmt: skip


@scene
def limits_within_limits() -> Scene:
    limits = [RateLimiter(requests_per_minute=60), AdaptiveLimiter(2), ConcurrencyLimiter(2)]
    plan = {1: BAD, 3: Draw("transient", 0.5), 5: Draw("good", 1, failures=1)}
    return make(plan, "passed", limits=limits, retry=RETRY, default=BAD, winners=[5])


@scene
def a_refusal_under_a_limiter() -> Scene:
    plan = {1: Draw("good", 0.5, failures=1, told=3.0), 3: BAD}
    return make(plan, "passed", limits=[AdaptiveLimiter(2)], retry=RETRY, default=BAD, winners=[1])


@scene
def a_budget_is_spent_before_a_verdict() -> Scene:
    return make({}, LimitExceeded, budget=Budget(requests=3), retry=RETRY,
                default=Draw("good", 0.5, failures=9))  # fmt: skip


@scene
def a_budget_is_spent_after_a_failure() -> Scene:
    return make({}, "budget", budget=Budget(requests=3), default=BAD)


@scene
def a_budget_is_spent_and_a_sibling_wins() -> Scene:
    plan = {1: BAD, 3: Draw("good", 3)}
    return make(plan, "passed", budget=Budget(requests=3), default=BAD, winners=[3])


@scene
def a_budget_waits_for_what_is_reserved() -> Scene:
    budget = Budget(output_tokens=60, assume_output_tokens=50)
    return make({1: BAD, 3: BAD, 5: Draw("good", 1)}, "passed", budget=budget, default=BAD,
                winners=[5])  # fmt: skip


@scene
def a_budgets_time_is_up() -> Scene:
    return make({1: BAD}, "budget", budget=Budget(seconds=2), default=Draw("good", 9))


@scene
def a_judge_can_not_be_paid() -> Scene:
    return make({}, LimitExceeded, budget=Budget(requests=2), requirements=[JUDGED],
                default=Draw("good", 0.5), concurrency=2)  # fmt: skip


# --- schedules -----------------------------------------------------------------------------------


@scene
def turns_are_pooled() -> Scene:
    plan = {1: Draw("permanent", 0.25), 3: BAD, 4: BAD}
    return make(plan, "passed", schedule=Eager(pool=True), default=Draw("good", 2), loop=2,
                concurrency=2, pooled=True, winners=[2])  # fmt: skip


@scene
def all_pooled_turns_are_spent() -> Scene:
    plan = {1: Draw("permanent", 0.25), 4: Draw("transient", 0.5)}
    return make(plan, "error", schedule=Eager(pool=True), default=BAD, loop=3, concurrency=2,
                pooled=True, strategy=RepairTemplateStrategy)  # fmt: skip


@scene
def what_lags_is_hedged() -> Scene:
    latency = LatencyQuantiles()
    for _ in range(50):
        latency.observe(1.0, key="rig")
    plan = {1: Draw("good", 9), 6: Draw("bad", 9), 7: BAD, 8: Draw("good", 1)}
    return make(plan, "passed", schedule=Hedged(latency=latency), default=BAD, loop=5,
                concurrency=2, pooled=True, extra=1, winners=[8])  # fmt: skip


@scene
def chains_start_one_after_another() -> Scene:
    return make({1: Draw("bad", 3), 3: Draw("good", 1)}, "passed", schedule=Staggered(1.0),
                default=Draw("bad", 9), winners=[3])  # fmt: skip


@scene
def an_error_ends_the_call_while_chains_wait() -> Scene:
    return make({}, BackendError, schedule=Staggered(2.0), loop=1,
                default=Draw("permanent", 0.5))  # fmt: skip


class Broken(Eager):
    """A schedule whose third decision fails."""

    def begin(self, facts):
        class SchedulePlan:
            def __init__(self):
                self.asked = 0

            def decide(self, progress):
                self.asked += 1
                if self.asked == 3:
                    raise LookupError("bug")
                return (1, None)

            def observe(self, slice_):
                pass

        return SchedulePlan()


@scene
def a_schedule_is_broken() -> Scene:
    return make({}, LookupError, schedule=Broken(pool=True), default=BAD, pooled=True)


@scene
def everything_together() -> Scene:
    plan = {
        1: Draw("bad", 0.5, failures=1),
        2: Draw("transient", 0.25),
        3: Draw("good", 0.5, failures=1, told=2.0),
        4: BAD,
    }
    return make(plan, "passed", schedule=Eager(pool=True), retry=Retry(2), default=BAD,
                limits=[ConcurrencyLimiter(2)], budget=Budget(requests=50), timeout=60,
                iteration_timeout=30, requirements=[AWAITED, INLINE], pooled=True,
                winners=[3])  # fmt: skip


# --- early rejection -----------------------------------------------------------------------------


def starts_well(text: str, delta: str) -> Verdict:
    return Verdict.FAIL if text.startswith("ba") else Verdict.UNKNOWN


EARLY = Requirement("good", lambda c: c.text == "good", inline=True, stream=starts_well)


def streaming(plan: Any, ends: Any, **arguments: Any) -> Scene:
    rig: Rig = StreamingRig()
    return make(plan, ends, rig=rig, requirements=[EARLY], **arguments)


@scene
def replies_are_rejected_while_they_arrive() -> Scene:
    return streaming({1: BAD, 2: Draw("good", 1)}, "passed", default=Draw("bad", 1),
                     strategy=RepairTemplateStrategy, concurrency=2, winners=[2])  # fmt: skip


@scene
def rejected_replies_are_all_there_is() -> Scene:
    return streaming({}, "exhausted", default=BAD, concurrency=2, silent=True)


@scene
def streams_fail_and_are_tried_again_within_limits() -> Scene:
    return streaming({1: Draw("good", 0.5, failures=1), 3: BAD}, "passed", retry=RETRY, default=BAD,
                     limits=[ConcurrencyLimiter(1)], budget=Budget(requests=9), concurrency=2,
                     winners=[1])  # fmt: skip


@scene
def a_budget_runs_out_while_siblings_stream() -> Scene:
    return streaming({1: BAD, 3: Draw("good", 1)}, "passed", budget=Budget(requests=2),
                     concurrency=2, winners=[3])  # fmt: skip


# --- the cases -----------------------------------------------------------------------------------


@pytest.mark.steps
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_call_with_limits_may_be_cancelled_at_any_step(name, way):
    cancel_case(SCENES, name, way)
