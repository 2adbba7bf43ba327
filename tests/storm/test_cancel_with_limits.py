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
from storm import Draw, StreamingRig, Told, handler
from storm_cancel import AWAITED, BAD, INLINE, WAYS, cancel_case, make
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


async def _no_retries(payload: Any) -> None:
    await checkpoint()
    if payload.retry:
        raise Blocked("no retries")


async def _slow(payload: Any) -> None:
    await anyio.sleep(0.25)


def _hooked(act: Any, kinds: list[HookType], modes: Any, plan: Any, ends: Any, **how: Any) -> Scene:
    told = Told()
    plugins = [handler(told, kind, mode, act) for kind in kinds for mode in modes]
    return make(plan, ends, told=told, plugins=plugins, retry=RETRY, **how)


def what_lags_is_hedged() -> Scene:
    latency = LatencyQuantiles()
    for _ in range(50):
        latency.observe(1.0, key="rig")
    plan = {1: Draw("good", 9), 6: Draw("bad", 9), 7: BAD, 8: GOOD}
    schedule, how = Hedged(latency=latency), {"loop": 5, "concurrency": 2, "extra": 1}
    return make(plan, "passed", schedule=schedule, default=BAD, pooled=True, winners=[8], **how)


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


def starts_well(text: str, delta: str) -> Verdict:
    return Verdict.FAIL if text.startswith("ba") else Verdict.UNKNOWN


EARLY = Requirement("good", lambda c: c.text == "good", inline=True, stream=starts_well)


def streaming(plan: Any, ends: Any, **arguments: Any) -> Scene:
    return make(plan, ends, rig=StreamingRig(), requirements=[EARLY], **arguments)


GOOD, NEVER = Draw("good", 1), Draw("good", 9)
ONCE = Draw("good", 0.5, failures=1)
# fmt: off
SCENES: dict[str, Callable[[], Scene]] = {
    # retries
    "a_503_is_tried_again": lambda: make(
        {1: Draw("good", 1, failures=2), 3: BAD}, "passed", retry=RETRY, default=Draw("bad", 4),
        concurrency=2, winners=[1]),
    "a_503_is_tried_again_and_no_one_looks": lambda: make(
        {1: Draw("good", 1, failures=1)}, "passed", retry=RETRY, default=Draw("bad", 9),
        concurrency=2, silent=True, winners=[1]),
    "retries_are_exhausted": lambda: make(
        {}, BackendUnavailable, retry=Retry(2), default=Draw("good", 0.25, failures=9), loop=1,
        concurrency=2),
    "the_gate_is_closed_for_all": lambda: make(
        {1: Draw("good", 0.5, failures=1, told=5.0), 2: BAD}, "passed", retry=RETRY, default=BAD,
        winners=[1]),
    "a_win_comes_while_the_gate_is_closed": lambda: make(
        {1: GOOD, 3: Draw("good", 0.25, failures=1, told=50.0)}, "passed", retry=RETRY,
        default=BAD, winners=[1]),
    "the_wait_is_too_long": lambda: make(
        {}, RateLimited, retry=RETRY, default=Draw("good", 0.5, failures=9, told=999.0)),
    "time_is_up_while_the_gate_is_closed": lambda: make(
        {}, BackendTimeout, retry=RETRY, iteration_timeout=2, loop=1,
        default=Draw("good", 0.5, failures=1, told=50.0)),
    "a_hook_blocks_a_retry": lambda: _hooked(
        _no_retries, [HookType.GENERATION_PRE_CALL], [HookMode.SEQUENTIAL], {1: ONCE}, Blocked,
        default=NEVER),
    "hooks_look_at_retries": lambda: _hooked(
        _slow, [HookType.GENERATION_PRE_CALL, HookType.GENERATION_ERROR], HookMode, {1: ONCE},
        "passed", default=Draw("bad", 3), concurrency=2, winners=[1]),
    # limits and budgets
    "one_request_at_a_time": lambda: make(
        {1: BAD, 3: BAD, 5: GOOD}, "passed", limits=[ConcurrencyLimiter(1)], default=BAD,
        winners=[5]),
    "one_request_at_a_time_and_no_one_looks": lambda: make(
        {1: BAD, 3: GOOD}, "passed", limits=[ConcurrencyLimiter(1)], default=BAD, silent=True,
        winners=[3]),
    "one_request_at_a_time_with_judges": lambda: make(
        {1: BAD}, "passed", limits=[ConcurrencyLimiter(1)], default=GOOD,
        requirements=[INLINE, JUDGED], concurrency=2, winners=[3]),
    "limits_within_limits": lambda: make(
        {1: BAD, 3: Draw("transient", 0.5), 5: Draw("good", 1, failures=1)}, "passed",
        limits=[RateLimiter(requests_per_minute=60), AdaptiveLimiter(2), ConcurrencyLimiter(2)],
        retry=RETRY, default=BAD, winners=[5]),
    "a_refusal_under_a_limiter": lambda: make(
        {1: Draw("good", 0.5, failures=1, told=3.0), 3: BAD}, "passed",
        limits=[AdaptiveLimiter(2)], retry=RETRY, default=BAD, winners=[1]),
    "a_budget_is_spent_before_a_verdict": lambda: make(
        {}, LimitExceeded, budget=Budget(requests=3), retry=RETRY,
        default=Draw("good", 0.5, failures=9)),
    "a_budget_is_spent_after_a_failure": lambda: make(
        {}, "budget", budget=Budget(requests=3), default=BAD),
    "a_budget_is_spent_and_a_sibling_wins": lambda: make(
        {1: BAD, 3: Draw("good", 3)}, "passed", budget=Budget(requests=3), default=BAD,
        winners=[3]),
    "a_budget_waits_for_what_is_reserved": lambda: make(
        {1: BAD, 3: BAD, 5: GOOD}, "passed", default=BAD, winners=[5],
        budget=Budget(output_tokens=60, assume_output_tokens=50)),
    "a_budgets_time_is_up": lambda: make(
        {1: BAD}, "budget", budget=Budget(seconds=2), default=NEVER),
    "a_judge_can_not_be_paid": lambda: make(
        {}, LimitExceeded, budget=Budget(requests=2), requirements=[JUDGED],
        default=Draw("good", 0.5), concurrency=2),
    # schedules
    "turns_are_pooled": lambda: make(
        {1: Draw("permanent", 0.25), 3: BAD, 4: BAD}, "passed", schedule=Eager(pool=True),
        default=Draw("good", 2), loop=2, concurrency=2, pooled=True, winners=[2]),
    "all_pooled_turns_are_spent": lambda: make(
        {1: Draw("permanent", 0.25), 4: Draw("transient", 0.5)}, "error",
        schedule=Eager(pool=True), default=BAD, loop=3, concurrency=2, pooled=True,
        strategy=RepairTemplateStrategy),
    "what_lags_is_hedged": what_lags_is_hedged,
    "chains_start_one_after_another": lambda: make(
        {1: Draw("bad", 3), 3: GOOD}, "passed", schedule=Staggered(1.0), default=Draw("bad", 9),
        winners=[3]),
    "an_error_ends_the_call_while_chains_wait": lambda: make(
        {}, BackendError, schedule=Staggered(2.0), loop=1, default=Draw("permanent", 0.5)),
    "a_schedule_is_broken": lambda: make(
        {}, LookupError, schedule=Broken(pool=True), default=BAD, pooled=True),
    "everything_together": lambda: make(
        {1: Draw("bad", 0.5, failures=1), 2: Draw("transient", 0.25),
         3: Draw("good", 0.5, failures=1, told=2.0), 4: BAD},
        "passed", schedule=Eager(pool=True), retry=Retry(2), default=BAD,
        limits=[ConcurrencyLimiter(2)], budget=Budget(requests=50), timeout=60,
        iteration_timeout=30, requirements=[AWAITED, INLINE], pooled=True, winners=[3]),
    # early rejection
    "replies_are_rejected_while_they_arrive": lambda: streaming(
        {1: BAD, 2: GOOD}, "passed", default=Draw("bad", 1), strategy=RepairTemplateStrategy,
        concurrency=2, winners=[2]),
    "rejected_replies_are_all_there_is": lambda: streaming(
        {}, "exhausted", default=BAD, concurrency=2, silent=True),
    "streams_fail_and_are_tried_again_within_limits": lambda: streaming(
        {1: ONCE, 3: BAD}, "passed", retry=RETRY, default=BAD, limits=[ConcurrencyLimiter(1)],
        budget=Budget(requests=9), concurrency=2, winners=[1]),
    "a_budget_runs_out_while_siblings_stream": lambda: streaming(
        {1: BAD, 3: GOOD}, "passed", budget=Budget(requests=2), concurrency=2, winners=[3]),
}
# fmt: on


@pytest.mark.steps
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_call_with_limits_may_be_cancelled_at_any_step(name, way):
    cancel_case(SCENES, name, way)
