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
from storm import Ask, Draw, Foreign, Rig, Told, handler
from storm_cancel import (
    AWAITED,
    AWAITED_TOO,
    BAD,
    INLINE,
    WAYS,
    cancel_case,
    make,
)
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


SCENES: dict[str, Callable[[], Scene]] = {}


def scene(function: Callable[[], Scene]) -> Callable[[], Scene]:
    SCENES[function.__name__] = function
    return function


@scene
def the_first_wins() -> Scene:
    return make({1: Draw("bad", 1), 2: Draw("good", 1), 3: Draw("good", 1.5)}, "passed",
                default=Draw("good", 9), winners=[3])  # fmt: skip


@scene
def the_first_wins_and_no_one_looks() -> Scene:
    return make({1: BAD, 3: BAD, 4: Draw("good", 1)}, "passed", default=Draw("good", 9),
                silent=True, winners=[4])  # fmt: skip


@scene
def the_lowest_rank_wins() -> Scene:
    plan = {1: Draw("bad", 3), 3: Draw("good", 2), 5: Draw("good", 1)}
    return make(plan, "passed", selection="ordered", winners=[3])


@scene
def a_higher_rank_waits_for_the_lower() -> Scene:
    plan = {1: Draw("bad", 1), 2: Draw("good", 1), 3: Draw("transient", 1), 4: Draw("good", 9)}
    return make(plan, "passed", selection="ordered", concurrency=2, winners=[2])


def _staged(budget: Budget, rig: Any, *, loop_budget: int, **settings: Any) -> Escalate:
    small = Stage(rig, loop_budget - 1, budget=budget)
    return Escalate([small, Stage(rig, carry="best", judge=rig)], **settings)


@scene
def a_bigger_model_goes_on() -> Scene:
    plan = {3: Draw("good", 2, cleanup=1), 6: Draw("transient", 1), 9: Draw("good", 1)}
    budget = Budget(requests=6)
    played = make(plan, "passed", strategy=partial(_staged, budget), loop=3, default=BAD,
                  winners=[9])  # fmt: skip
    return replace(played, limits=[budget])


@scene
def all_turns_are_spent() -> Scene:
    return make({}, "exhausted", default=BAD, concurrency=2)


@scene
def all_turns_are_spent_and_no_one_looks() -> Scene:
    return make({}, "exhausted", default=Draw("bad", 0), silent=True)


@scene
def replies_do_not_parse() -> Scene:
    plan = {1: Draw("garbled", 1), 2: Draw("good", 1)}
    return make(plan, "passed", strategy=RepairTemplateStrategy, concurrency=1, winners=[2])


@scene
def every_iteration_errors() -> Scene:
    return make({}, Exception, default=Draw("transient", 0.5), concurrency=2)


@scene
def an_error_is_permanent() -> Scene:
    return make({}, AuthenticationFailed, default=Draw("permanent", 0.5))


@scene
def cancellations_come_that_no_one_asked_for() -> Scene:
    return make({1: Draw("stray"), 3: Draw("stray")}, "exhausted", default=BAD, concurrency=2)


@scene
def losers_fail_while_they_clean_up() -> Scene:
    return make({1: Draw("good", 1)}, "passed", default=Draw("messy", 9), winners=[1])


@scene
def losers_clean_up_shielded() -> Scene:
    return make({1: Draw("good", 1)}, "passed", default=Draw("good", 9, cleanup=1), winners=[1])


@scene
def losers_outlast_the_grace_period() -> Scene:
    return make({1: Draw("good", 1)}, "passed", default=Draw("good", 9, cleanup=3),
                cancel_grace=1, silent=True, winners=[1])  # fmt: skip


@scene
def the_time_is_up_before_a_slice_is_judged() -> Scene:
    return make({}, SamplingTimeout, default=Draw("good", 9), timeout=2, concurrency=2)


@scene
def the_time_is_up_after_a_failure() -> Scene:
    return make({1: BAD}, "timeout", default=Draw("good", 9), timeout=2, concurrency=2)


@scene
def an_iteration_takes_too_long() -> Scene:
    return make({1: Draw("good", 9), 2: Draw("good", 1)}, "passed", iteration_timeout=2,
                concurrency=1, winners=[2])  # fmt: skip


@scene
def validators_are_awaited() -> Scene:
    return make({1: BAD, 2: Draw("good", 1)}, "passed", requirements=[AWAITED, AWAITED_TOO],
                default=Draw("bad", 2), concurrency=2, winners=[2])  # fmt: skip


@scene
def a_judge_decides() -> Scene:
    return make({1: BAD}, "passed", requirements=[INLINE, JUDGED], concurrency=2, winners=[3])


@scene
def stages_follow_one_another() -> Scene:
    return make({1: BAD, 2: BAD}, "passed", requirements=[JUDGED, AWAITED, INLINE],
                validate_all=True, concurrency=2, winners=[3])  # fmt: skip


@scene
def a_validator_is_broken() -> Scene:
    return make({}, Exception, requirements=[INLINE, BROKEN], concurrency=2)


@scene
def a_broken_validator_ends_the_call() -> Scene:
    return make({3: Draw("good", 9)}, Foreign, requirements=[AWAITED, FATAL], concurrency=2)


@scene
def a_failure_is_repaired() -> Scene:
    return make({2: Draw("good", 1)}, "passed", strategy=RepairTemplateStrategy, default=BAD,
                concurrency=2, winners=[2])  # fmt: skip


@scene
def a_conversation_goes_on() -> Scene:
    return make({}, "exhausted", strategy=MultiTurnStrategy, default=BAD, concurrency=2)


@scene
def several_are_wanted() -> Scene:
    plan = {1: BAD, 3: Draw("good", 1), 5: Draw("transient", 1)}
    return make(plan, "passed", selection=BestOf(_worth, n=3), default=Draw("good", 2),
                pooled=True, loop=3)  # fmt: skip


@scene
def several_are_wanted_by_a_schedule() -> Scene:
    return make({1: BAD}, "passed", selection=Collect(4), default=Draw("good", 1), pooled=True,
                schedule=Staggered(0.75), concurrency=2, loop=3)  # fmt: skip


@scene
def what_has_passed_is_compared() -> Scene:
    return make({1: BAD}, "passed", selection=Tournament(n=4), default=Draw("good", 1), pooled=True,
                judge=Rig(), iteration_timeout=5)  # fmt: skip


@scene
def comparisons_on_which_no_one_looks() -> Scene:
    return make({}, "passed", selection=Tournament(n=3, rounds="pivots"), default=Draw("good", 1),
                pooled=True, silent=True)  # fmt: skip


@scene
def the_time_is_up_during_comparisons() -> Scene:
    return make({}, "timeout", selection=Tournament(n=4), default=Draw("good", 1), pooled=True,
                rig=Rig(verdict=Draw("good", 1)), timeout=4.5)  # fmt: skip


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


def _on_every_hook(mode: HookMode, act: Any) -> Scene:
    told = Told()
    plugins = [handler(told, kind, mode, act) for kind in HookType]
    plan = {1: BAD, 3: Draw("transient", 0.5)}
    return make(plan, "passed", told=told, plugins=plugins, concurrency=2, winners=[2, 4])


@scene
def hooks_are_awaited() -> Scene:
    return _on_every_hook(HookMode.SEQUENTIAL, _short)


@scene
def hooks_look_on_together() -> Scene:
    return _on_every_hook(HookMode.OBSERVE, _short)


@scene
def hooks_run_in_the_background() -> Scene:
    return _on_every_hook(HookMode.BACKGROUND, _long)


@scene
def observers_fail() -> Scene:
    return _on_every_hook(HookMode.OBSERVE, _broken)


@scene
def a_hook_blocks_the_call() -> Scene:
    told = Told()
    plugin = handler(told, HookType.SAMPLING_ITERATION, HookMode.SEQUENTIAL, _blocks)
    return make({1: BAD}, Blocked, told=told, plugins=[plugin], default=Draw("good", 9))


@scene
def a_hook_fails_before_a_request() -> Scene:
    told = Told()
    plugin = handler(told, HookType.GENERATION_PRE_CALL, HookMode.SEQUENTIAL, _broken)
    return make({}, HookError, told=told, plugins=[plugin])


@scene
def a_hook_refuses_the_call() -> Scene:
    told = Told()
    plugin = handler(told, HookType.SAMPLING_LOOP_START, HookMode.SEQUENTIAL, _blocks)
    return make({}, Blocked, told=told, plugins=[plugin])


@scene
def a_plugin_changes_the_budget() -> Scene:
    told = Told()
    plugin = handler(told, HookType.SAMPLING_LOOP_START, HookMode.SEQUENTIAL, _grants_a_third)
    return make({3: Draw("good", 1)}, "passed", told=told, plugins=[plugin], default=BAD,
                concurrency=2, loop_after=3, winners=[3])  # fmt: skip


@scene
def a_plugin_wants_more() -> Scene:
    told = Told()
    plugin = handler(told, HookType.VALIDATION_PRE_CHECK, HookMode.SEQUENTIAL, _wants_more)
    return make({1: BAD}, "passed", told=told, plugins=[plugin], concurrency=2, winners=[3])


@scene
def the_last_hook_is_slow() -> Scene:
    told = Told()
    plugin = handler(told, HookType.SAMPLING_LOOP_END, HookMode.SEQUENTIAL, _long)
    return make({1: Draw("good", 1)}, "passed", told=told, plugins=[plugin],
                default=Draw("good", 9), winners=[1])  # fmt: skip


@scene
def the_last_hook_fails() -> Scene:
    told = Told()
    plugin = handler(told, HookType.SAMPLING_LOOP_END, HookMode.SEQUENTIAL, _broken)
    return make({1: Draw("good", 1)}, "passed", told=told, plugins=[plugin],
                default=Draw("good", 9), winners=[1])  # fmt: skip


@scene
def progress_is_reported() -> Scene:
    return make({1: BAD, 2: Draw("good", 1)}, "passed", on_slice=_short, default=Draw("bad", 2),
                concurrency=2, winners=[2])  # fmt: skip


@scene
def the_progress_report_fails() -> Scene:
    return make({1: BAD}, Foreign, on_slice=_broken, default=Draw("good", 9), concurrency=2)


@scene
def reporting_takes_too_long() -> Scene:
    return make({}, "exhausted", on_slice=_long, default=BAD, concurrency=1)


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
