"""Rule 13 of the engine: a blocking validator never stalls the loop."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import pytest
from engine_kit import yes

from mellea_like import RejectionSamplingStrategy, Requirement, requirement
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import RequirementError, ThreadsExhausted
from mellea_like.runtime import threads

pytestmark = pytest.mark.anyio


async def where_it_runs(check):
    strategy = RejectionSamplingStrategy(ScriptedBackend(["text"]), loop_budget=1)
    return await strategy.sample("do", [check])


async def test_rule_13_a_plain_function_runs_in_a_daemon_thread_of_ours():
    ran_in = []

    @requirement("plain")
    def plain(candidate):
        ran_in.append(threading.current_thread())
        return True

    assert (await where_it_runs(plain)).success
    [thread] = ran_in
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert thread.name == "mellea_like worker"


@pytest.mark.parametrize("kind", ["inline", "async"])
async def test_rule_13_inline_and_async_ones_run_on_the_loop(kind):
    ran_in = []

    def plain(candidate):
        ran_in.append(threading.current_thread())
        return True

    async def awaited(candidate):
        return plain(candidate)

    check = Requirement("r", plain, inline=True) if kind == "inline" else Requirement("r", awaited)
    assert (await where_it_runs(check)).success
    assert ran_in == [threading.current_thread()]


async def test_rule_13_the_loop_goes_on_while_a_validator_blocks():
    entered, release = threading.Event(), threading.Event()
    ticks = []

    def block(candidate):
        entered.set()
        return release.wait(20)

    async def tick():
        # Only a loop that is not blocked can release the validator.
        while not entered.is_set():  # noqa: ASYNC110 (a thread ends)
            await anyio.sleep(0.001)
        ticks.append("loop")
        release.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        result = await where_it_runs(Requirement("block", block))
    assert result.success
    assert ticks == ["loop"]


def free(**settings) -> Requirement:
    return Requirement("free", lambda _: True, **settings)


async def needs_a_check():
    with pytest.raises(RequirementError) as caught:
        await where_it_runs(free())
    raise caught.value.__cause__


async def needs_a_backend():
    await RejectionSamplingStrategy(FunctionBackend(lambda request: "text")).sample("do")


async def needs_a_lenient_check():
    result = await where_it_runs(free(on_error="fail"))
    raise ThreadsExhausted(result.best.problems[0])


async def pending(condition) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 (threads tell no event)
            await anyio.sleep(0.001)


@pytest.mark.parametrize("needs", [needs_a_check, needs_a_lenient_check, needs_a_backend])
async def test_rule_13_when_validators_that_never_end_hold_all_threads_who_needs_one_fails(
    monkeypatch, caplog, needs
):
    monkeypatch.setattr(threads, "_levels", {})
    monkeypatch.setattr(threads, "MAX_THREADS", 4)
    release, entered = threading.Event(), threading.Semaphore(0)

    def polite(candidate):
        entered.release()
        return release.wait(20)

    async def waits_in_the_queue() -> None:
        with pytest.raises(ThreadsExhausted):
            await threads.run_in_thread(int)

    try:
        async with anyio.create_task_group() as others:
            for left in range(4):
                assert ("half of the 4 worker threads" in caplog.text) is (left >= 2)
                async with anyio.create_task_group() as call:
                    call.start_soon(where_it_runs, Requirement("be polite", polite))
                    await pending(lambda: entered.acquire(blocking=False))
                    if left == 3:
                        others.start_soon(waits_in_the_queue)
                        await pending(lambda: threads.thread_statistics().waiting)
                    call.cancel_scope.cancel()
        assert caplog.text.count("half of the 4 worker threads") == 1
        named = r"all 4 run functions .*: requirement 'polite' \(4\)\. .*timeout="
        with pytest.raises(ThreadsExhausted, match=named):
            await needs()
    finally:
        release.set()
    await pending(lambda: not threads.thread_statistics().abandoned)
    assert (await where_it_runs(free())).success


@pytest.mark.parametrize("runs", ["sample_sync", "anyio.run", "asyncio.run"])
async def test_rule_13_a_function_in_a_thread_may_run_an_event_loop_of_its_own(runs):
    inner = RejectionSamplingStrategy(ScriptedBackend(["yes"], cycle=True))

    def ask(_):
        match runs:
            case "sample_sync":
                result = inner.sample_sync("inner")
            case "anyio.run":
                result = anyio.run(inner.sample, "inner")
            case _:
                result = asyncio.run(inner.sample("inner"))
        return result.success

    backend = FunctionBackend(lambda request: str(ask(request)))
    result = await RejectionSamplingStrategy(backend, loop_budget=1).sample(
        "outer", [Requirement("ask", ask)]
    )
    assert result.unwrap() == "True"


async def test_rule_13_as_many_validators_as_there_are_threads_may_each_wait_for_a_threaded_one():
    meet = threading.Barrier(threads.MAX_THREADS, timeout=20)
    inner = RejectionSamplingStrategy(ScriptedBackend(["yes"], cycle=True))

    def ask(candidate):
        meet.wait()  # Now all threads are taken.
        return inner.sample_sync("inner", [Requirement("inner", lambda candidate: True)]).success

    outer = RejectionSamplingStrategy(ScriptedBackend(["yes"], cycle=True), loop_budget=1)
    results = []

    async def sample():
        results.append(await outer.sample("outer", [Requirement("outer", ask)]))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(threads.MAX_THREADS):
                tasks.start_soon(sample)
    assert all(result.success for result in results)


async def test_rule_13_a_validator_that_found_no_thread_in_time_is_not_said_to_go_on_in_one(
    monkeypatch, caplog
):
    monkeypatch.setattr(threads, "_levels", {})
    monkeypatch.setattr(threads, "MAX_THREADS", 0)
    check = Requirement("waits", lambda candidate: True, timeout=0.01)
    with pytest.raises(RequirementError, match=r"no thread was free for it within 0\.01 s"):
        await where_it_runs(check)
    assert "goes on" not in caplog.text


@pytest.mark.parametrize("combined", [False, True])
async def test_rule_13_an_inline_validator_is_late_like_any_other(combined):
    def slow(candidate):
        began = time.monotonic()
        while time.monotonic() - began < 0.03:
            pass
        return True

    def requirement(timeout):
        check = Requirement("slow", slow, inline=True, timeout=timeout)
        return check & yes if combined else check

    strategy = RejectionSamplingStrategy(ScriptedBackend(["yes"], cycle=True), loop_budget=1)
    assert (await strategy.sample("do", [requirement(20)])).success
    with pytest.raises(RequirementError, match=r"it took longer than 0\.01 s"):
        await strategy.sample("do", [requirement(0.01)])


async def test_rule_13_requirements_know_their_stage():
    async def awaited(candidate):
        return True

    assert [
        Requirement("r", validator, **arguments).stage.name
        for validator, arguments in [
            (lambda c: True, {}),
            (lambda c: True, {"inline": True}),
            (awaited, {}),
            (None, {}),
        ]
    ] == ["THREAD", "INLINE", "AWAITED", "AWAITED"]
    assert yes.stage.name == "INLINE"
