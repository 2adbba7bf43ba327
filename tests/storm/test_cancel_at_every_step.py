"""A call cancelled at any step leaves a complete record, nothing running, and as a cancellation.

Each scenario runs again and again, cancelled at its first step, its second, and so on until it ends
before the cancellation comes, and as it should: by its cancel scope on both loops,
and on asyncio by ``task.cancel()``, once and twice, and by the cancellation of every task at once,
as at the end of a program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from oracle_world import Ask, Foreign
from storm import INLINE, Draw, Rig, Told, handler
from storm_cancel import AWAITED, AWAITED_TOO, BAD, WAYS, cancel_case, make
from storm_run import Scene

from mellea_like import (
    BestOf,
    Budget,
    Collect,
    Escalate,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Stage,
)
from mellea_like.errors import AuthenticationFailed, Blocked, HookError, SamplingTimeout
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.schedules import Staggered
from mellea_like.selections import Tournament
from mellea_like.testing.virtual_clock import run_virtual


async def raises_later(candidate: Any) -> bool:
    await checkpoint()
    raise Foreign("the validator is broken")


BROKEN = Requirement("broken", raises_later)
FATAL = Requirement("fatal", raises_later, on_error="raise")
JUDGED = Requirement("the judge likes it")


async def _worth(candidate: Any) -> float:
    await anyio.sleep(0.25)
    return 1.0


async def _short(payload: Any) -> None:
    await anyio.sleep(0.25)


async def _long(payload: Any) -> None:
    await anyio.sleep(4)


async def _broken(payload: Any) -> None:
    await checkpoint()
    raise Foreign("the plugin is broken")


async def _blocks(payload: Any) -> None:
    raise Blocked("not today")


async def _grants_a_third(payload: Any) -> Any:
    await checkpoint()
    return payload.model_copy(update={"loop_budget": 3})


async def _wants_more(payload: Any) -> Any:
    await checkpoint()
    return payload.model_copy(update={"requirements": (*payload.requirements, AWAITED)})


def _hooked(act: Any, kind: HookType, plan: dict[int, Draw], ends: Any, **how: Any) -> Scene:
    told = Told()
    plugin = handler(told, kind, HookMode.SEQUENTIAL, act)
    return make(plan, ends, told=told, plugins=[plugin], **how)


def _on_every_hook(mode: HookMode, act: Any) -> Scene:
    told = Told()
    plugins = [handler(told, kind, mode, act) for kind in HookType]
    plan = {1: BAD, 3: Draw("transient", 0.5)}
    return make(plan, "passed", told=told, plugins=plugins, concurrency=2, winners=[2, 4])


def _staged(budget: Budget, rig: Any, *, loop_budget: int, **settings: Any) -> Escalate:
    small = Stage(rig, loop_budget - 1, budget=budget)
    return Escalate([small, Stage(rig, carry="best", judge=rig)], **settings)


def a_bigger_model_goes_on() -> Scene:
    plan = {3: Draw("good", 2, cleanup=1), 6: Draw("transient", 1), 9: GOOD}
    budget = Budget(requests=6)
    strategy = partial(_staged, budget)
    played = make(plan, "passed", strategy=strategy, loop=3, default=BAD, winners=[9])
    return replace(played, limits=[budget])


GOOD, NEVER = Draw("good", 1), Draw("good", 9)
# fmt: off
SCENES: dict[str, Callable[[], Scene]] = {
    "the_first_wins": lambda: make(
        {1: Draw("bad", 1), 2: GOOD, 3: Draw("good", 1.5)}, "passed", default=NEVER, winners=[3]),
    "the_first_wins_and_no_one_looks": lambda: make(
        {1: BAD, 3: BAD, 4: GOOD}, "passed", default=NEVER, silent=True, winners=[4]),
    "the_lowest_rank_wins": lambda: make(
        {1: Draw("bad", 3), 3: Draw("good", 2), 5: GOOD}, "passed", selection="ordered",
        winners=[3]),
    "a_higher_rank_waits_for_the_lower": lambda: make(
        {1: Draw("bad", 1), 2: GOOD, 3: Draw("transient", 1), 4: NEVER}, "passed",
        selection="ordered", concurrency=2, winners=[2]),
    "a_bigger_model_goes_on": a_bigger_model_goes_on,
    "all_turns_are_spent": lambda: make({}, "exhausted", default=BAD, concurrency=2),
    "all_turns_are_spent_and_no_one_looks": lambda: make(
        {}, "exhausted", default=Draw("bad", 0), silent=True),
    "replies_do_not_parse": lambda: make(
        {1: Draw("garbled", 1), 2: GOOD}, "passed", strategy=RepairTemplateStrategy,
        concurrency=1, winners=[2]),
    "every_iteration_errors": lambda: make(
        {}, Exception, default=Draw("transient", 0.5), concurrency=2),
    "an_error_is_permanent": lambda: make(
        {}, AuthenticationFailed, default=Draw("permanent", 0.5)),
    "cancellations_come_that_no_one_asked_for": lambda: make(
        {1: Draw("stray"), 3: Draw("stray")}, "exhausted", default=BAD, concurrency=2),
    "losers_fail_while_they_clean_up": lambda: make(
        {1: GOOD}, "passed", default=Draw("messy", 9), winners=[1]),
    "losers_clean_up_shielded": lambda: make(
        {1: GOOD}, "passed", default=Draw("good", 9, cleanup=1), winners=[1]),
    "losers_outlast_the_grace_period": lambda: make(
        {1: GOOD}, "passed", default=Draw("good", 9, cleanup=3), cancel_grace=1, silent=True,
        winners=[1]),
    "the_time_is_up_before_a_slice_is_judged": lambda: make(
        {}, SamplingTimeout, default=NEVER, timeout=2, concurrency=2),
    "the_time_is_up_after_a_failure": lambda: make(
        {1: BAD}, "timeout", default=NEVER, timeout=2, concurrency=2),
    "an_iteration_takes_too_long": lambda: make(
        {1: NEVER, 2: GOOD}, "passed", iteration_timeout=2, concurrency=1, winners=[2]),
    "validators_are_awaited": lambda: make(
        {1: BAD, 2: GOOD}, "passed", requirements=[AWAITED, AWAITED_TOO], default=Draw("bad", 2),
        concurrency=2, winners=[2]),
    "a_judge_decides": lambda: make(
        {1: BAD}, "passed", requirements=[INLINE, JUDGED], concurrency=2, winners=[3]),
    "stages_follow_one_another": lambda: make(
        {1: BAD, 2: BAD}, "passed", requirements=[JUDGED, AWAITED, INLINE], validate_all=True,
        concurrency=2, winners=[3]),
    "a_validator_is_broken": lambda: make(
        {}, Exception, requirements=[INLINE, BROKEN], concurrency=2),
    "a_broken_validator_ends_the_call": lambda: make(
        {3: NEVER}, Foreign, requirements=[AWAITED, FATAL], concurrency=2),
    "a_failure_is_repaired": lambda: make(
        {2: GOOD}, "passed", strategy=RepairTemplateStrategy, default=BAD, concurrency=2,
        winners=[2]),
    "a_conversation_goes_on": lambda: make(
        {}, "exhausted", strategy=MultiTurnStrategy, default=BAD, concurrency=2),
    "several_are_wanted": lambda: make(
        {1: BAD, 3: GOOD, 5: Draw("transient", 1)}, "passed", selection=BestOf(_worth, n=3),
        default=Draw("good", 2), pooled=True, loop=3),
    "several_are_wanted_by_a_schedule": lambda: make(
        {1: BAD}, "passed", selection=Collect(4), default=GOOD, pooled=True,
        schedule=Staggered(0.75), concurrency=2, loop=3),
    "what_has_passed_is_compared": lambda: make(
        {1: BAD}, "passed", selection=Tournament(n=4), default=GOOD, pooled=True, judge=Rig(),
        iteration_timeout=5),
    "comparisons_on_which_no_one_looks": lambda: make(
        {}, "passed", selection=Tournament(n=3, rounds="pivots"), default=GOOD, pooled=True,
        silent=True),
    "the_time_is_up_during_comparisons": lambda: make(
        {}, "timeout", selection=Tournament(n=4), default=GOOD, pooled=True,
        rig=Rig(verdict=GOOD), timeout=4.5),
    "hooks_are_awaited": lambda: _on_every_hook(HookMode.SEQUENTIAL, _short),
    "hooks_look_on_together": lambda: _on_every_hook(HookMode.OBSERVE, _short),
    "hooks_run_in_the_background": lambda: _on_every_hook(HookMode.BACKGROUND, _long),
    "observers_fail": lambda: _on_every_hook(HookMode.OBSERVE, _broken),
    "a_hook_blocks_the_call": lambda: _hooked(
        _blocks, HookType.SAMPLING_ITERATION, {1: BAD}, Blocked, default=NEVER),
    "a_hook_fails_before_a_request": lambda: _hooked(
        _broken, HookType.GENERATION_PRE_CALL, {}, HookError),
    "a_hook_refuses_the_call": lambda: _hooked(
        _blocks, HookType.SAMPLING_LOOP_START, {}, Blocked),
    "a_plugin_changes_the_budget": lambda: _hooked(
        _grants_a_third, HookType.SAMPLING_LOOP_START, {3: GOOD}, "passed", default=BAD,
        concurrency=2, loop_after=3, winners=[3]),
    "a_plugin_wants_more": lambda: _hooked(
        _wants_more, HookType.VALIDATION_PRE_CHECK, {1: BAD}, "passed", concurrency=2,
        winners=[3]),
    "the_last_hook_is_slow": lambda: _hooked(
        _long, HookType.SAMPLING_LOOP_END, {1: GOOD}, "passed", default=NEVER, winners=[1]),
    "the_last_hook_fails": lambda: _hooked(
        _broken, HookType.SAMPLING_LOOP_END, {1: GOOD}, "passed", default=NEVER, winners=[1]),
    "progress_is_reported": lambda: make(
        {1: BAD, 2: GOOD}, "passed", on_slice=_short, default=Draw("bad", 2), concurrency=2,
        winners=[2]),
    "the_progress_report_fails": lambda: make(
        {1: BAD}, Foreign, on_slice=_broken, default=NEVER, concurrency=2),
    "reporting_takes_too_long": lambda: make(
        {}, "exhausted", on_slice=_long, default=BAD, concurrency=1),
}
# fmt: on


def test_a_native_cancellation_is_not_lost_where_time_limits_run_out_too():
    """anyio 4.16 counts an iteration's cancellation as one of the caller's task, and would."""
    strategy = RejectionSamplingStrategy(
        Rig(default=Draw("good", 2, cleanup=3)), loop_budget=1, iteration_timeout=0.75, timeout=1
    )

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(strategy.sample(Ask(), [INLINE]))
        await anyio.sleep(2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtual(main)


@pytest.mark.steps
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_call_may_be_cancelled_at_any_step(name, way):
    cancel_case(SCENES, name, way)
