"""A call cancelled at any step leaves a complete record, nothing running, and as a cancellation.

Each scenario runs once undisturbed, and then again and again, cancelled at its first step, its
second, and so on until it ends before the cancellation comes: by its cancel scope on both loops,
and on asyncio by ``task.cancel()``, once and twice, and by the cancellation of every task at once,
as at the end of a program.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from steps import Stepper, run_stepped
from storm import Ask, Draw, Foreign, Rig, Told, check_record, handler
from storm_run import Ran, Scene, run_scene

from mellea_like import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
)
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import AuthenticationFailed, Blocked, HookError, SamplingTimeout
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.testing.virtual_clock import run_virtual

STORM = bool(os.environ.get("STORM"))


def is_good(candidate: Any) -> bool:
    return candidate.text == "good"


async def is_good_later(candidate: Any) -> tuple[bool, str]:
    await anyio.sleep(0.5)
    return candidate.text == "good", "it is not good"


async def raises_later(candidate: Any) -> bool:
    await checkpoint()
    raise Foreign("the validator is broken")


INLINE = Requirement("good", is_good, inline=True)
AWAITED = Requirement("good, looked at for long", is_good_later)
AWAITED_TOO = Requirement("good, looked at again", is_good_later)
BROKEN = Requirement("broken", raises_later)
FATAL = Requirement("fatal", raises_later, on_error="raise")
JUDGED = Requirement("the judge likes it")


SCENES: dict[str, Callable[[], Scene]] = {}


def scene(function: Callable[[], Scene]) -> Callable[[], Scene]:
    SCENES[function.__name__] = function
    return function


def make(
    plan: dict[int, Draw],
    ends: type[BaseException] | str,
    *,
    strategy: Any = RejectionSamplingStrategy,
    told: Told | None = None,
    silent: bool = False,
    plugins: Any = (),
    on_slice: Any = None,
    rig: Rig | None = None,
    requirements: Any = (INLINE,),
    winners: Any = (),
    loop: int = 2,
    concurrency: int = 3,
    loop_after: int | None = None,
    default: Draw | None = None,
    **settings: Any,
) -> Scene:
    rig = rig or Rig()
    rig.plan = plan
    if default is not None:
        rig.default = default
    told = None if silent else (told or Told())
    chosen = strategy(
        rig,
        loop_budget=loop,
        concurrency_budget=concurrency,
        plugins=plugins if told is None else [told, *plugins],
        **{"retry": None, **settings},  # The waits before retries are random.
    )
    return Scene(
        rig,
        told,
        partial(chosen.sample, Ask(), requirements, on_slice=on_slice),
        loop_after or loop,
        concurrency,
        ends,
        set(winners),
    )


BAD = Draw("bad", 0.5)


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


# --- running a scene, and cancelling it ---------------------------------------------------------


def check_run(name: str, played: Scene, ran: Ran, mode: str = "scope") -> None:
    """Hold one run against what may come of it.

    Where every task is cancelled at once, the tasks that hooks run in are, too: what is delivered
    to them then is cut short, and all else must hold.
    """
    if ran.cancelled:
        assert ran.hit, "cancelled, and no one asked for it"
    elif isinstance(played.ends, str):
        assert ran.error is None, f"it raised {ran.error!r}"
        assert ran.result is not None
        assert ran.result.stop_reason == played.ends
        if played.winners:
            assert ran.result.best.iteration in played.winners
    else:
        assert isinstance(ran.error, played.ends), f"it gave {ran.result!r} or {ran.error!r}"
        assert not isinstance(ran.error, BaseExceptionGroup)
    if ran.hit and not ran.cancelled:
        assert ran.steps - ran.after <= 2, "it went on as if it had not been cancelled"
    slices = check_told(played.told, ran, mode, slow=name == "reporting_takes_too_long")
    if slices is not None:
        check_record(
            slices,
            played.rig,
            loop_budget=played.loop_budget,
            concurrency=played.concurrency,
            hooked=True,
        )
        if ran.cancelled:
            going = [s for s in slices if s.generation is None and s.error is None]
            assert all(s.outcome is Outcome.CANCELLED for s in going)


def check_told(told: Told | None, ran: Ran, mode: str, *, slow: bool) -> tuple[Slice, ...] | None:
    """Hold what the plugins were told against what happened; return the record."""
    slices = None if ran.result is None else ran.result.slices
    if told is None:
        return slices
    assert len(told.ends) <= told.begun <= 1
    if mode != "everyone":
        assert len(told.ends) == told.begun, "SAMPLING_LOOP_START has no SAMPLING_LOOP_END"
    if told.ends:
        slices = told.ends[0].slices
        assert ran.result is None or ran.result.slices == slices
    elif mode == "everyone":
        return slices
    delivered = [slice_.iteration for slice_ in told.delivered]
    recorded = [] if slices is None else [slice_.iteration for slice_ in slices]
    assert delivered == recorded[: len(delivered)]
    assert delivered == recorded or slow or mode == "everyone"
    return slices


async def cancel_everywhere(name: str, mode: str, again: Any, stepper: Stepper) -> int:
    undisturbed = [await run_scene(SCENES[name](), stepper, "scope", -1) for _ in range(2)]
    # Tasks that are cancelled together are cancelled in the order of a set, which shows at times.
    assert abs(undisturbed[0].steps - undisturbed[1].steps) <= 2, "the steps differ each time"
    at, hits = 1, 0
    while True:
        played = SCENES[name]()
        try:
            ran = await run_scene(played, stepper, mode, at, again(at))
            check_run(name, played, ran, mode)
        except BaseException as exc:
            exc.add_note(f"{name}, {mode}: cancelled at step {at}")
            raise
        if not ran.hit:
            break
        hits += 1
        at += 1
    return hits


def once(_: int) -> int:
    return 0


def soon_again(at: int) -> int:
    return 1 + at % 7


def _case(name: str, backend: Any, mode: str, again: Any = once) -> None:
    hits = run_stepped(partial(cancel_everywhere, name, mode, again), backend)
    assert hits > 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", SCENES)
def test_a_call_may_be_cancelled_at_any_step_by_its_scope(name, backend):
    _case(name, backend, "scope")


@pytest.mark.parametrize("name", SCENES)
def test_a_call_may_be_cancelled_at_any_step_natively(name):
    _case(name, "asyncio", "native")


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


@pytest.mark.parametrize("name", SCENES)
def test_a_call_may_be_cancelled_natively_twice(name):
    for again in [lambda _, k=k: k for k in range(1, 13)] if STORM else [soon_again]:
        _case(name, "asyncio", "native", again)


@pytest.mark.parametrize("name", SCENES)
def test_a_call_ends_when_every_task_is_cancelled_at_once(name):
    _case(name, "asyncio", "everyone")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", SCENES)
def test_an_undisturbed_call_ends_as_it_should(name, backend):
    async def main(stepper: Stepper) -> None:
        played = SCENES[name]()
        check_run(name, played, await run_scene(played, stepper, "scope", -1))

    run_stepped(main, backend)
