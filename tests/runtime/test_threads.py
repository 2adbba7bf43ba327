"""Daemon threads for functions that may block."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
import weakref
from contextlib import contextmanager

import anyio
import pytest
from command_line import python

from mellea_like.runtime.threads import MAX_THREADS, run_in_thread, thread_statistics

pytestmark = pytest.mark.anyio

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")


class Gate:
    """A function that blocks in its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.event = threading.Event()

    def __call__(self) -> str:
        self.entered.release()
        assert self.event.wait(20), "the gate was never opened"
        return "through"

    async def wait_until_entered(self, count: int = 1) -> None:
        for _ in range(count):
            while not self.entered.acquire(blocking=False):  # noqa: ASYNC110 (a thread's)
                await anyio.sleep(0.001)


@contextmanager
def gate():
    it = Gate()
    try:
        yield it
    finally:
        it.event.set()


async def until(condition) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 (threads tell no event)
            await anyio.sleep(0.001)


async def test_a_function_runs_in_a_daemon_thread_and_its_result_comes_back():
    def function(*args):
        return args, threading.current_thread()

    args, thread = await run_in_thread(function, 1, "two")
    assert args == (1, "two")
    assert thread is not threading.current_thread()
    assert thread.daemon


@pytest.mark.parametrize("kind", [KeyError, SystemExit, KeyboardInterrupt])
async def test_an_exception_even_an_exit_comes_back_unchanged(kind):
    error = kind("out")

    def leaves():
        raise error

    with pytest.raises(kind) as caught:
        await run_in_thread(leaves)
    assert caught.value is error


async def test_a_function_sees_the_callers_context_variables_and_can_not_change_them():
    def function():
        seen = NAME.get()
        NAME.set("changed")
        return seen

    NAME.set("outer")
    assert await run_in_thread(function) == "outer"
    assert NAME.get() == "outer"


async def test_no_more_threads_than_the_cap_and_the_rest_waits():
    results = []

    async def call(function) -> None:
        results.append(await run_in_thread(function))

    await until(lambda: thread_statistics().abandoned == 0)  # by other tests
    with gate() as blocked:
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_THREADS + 10):
                tasks.start_soon(call, blocked)
            await blocked.wait_until_entered(MAX_THREADS)
            await until(lambda: thread_statistics().waiting == 10)
            now = thread_statistics()
            assert now.threads - now.idle == MAX_THREADS
            blocked.event.set()
    assert results == ["through"] * (MAX_THREADS + 10)
    assert thread_statistics().waiting == 0


async def test_a_cancelled_wait_for_a_free_thread_never_runs_the_function():
    ran = []
    await until(lambda: thread_statistics().abandoned == 0)  # by other tests
    with gate() as blocked:
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_THREADS):
                tasks.start_soon(run_in_thread, blocked)
            await blocked.wait_until_entered(MAX_THREADS)
            before = thread_statistics().abandoned_total
            with anyio.move_on_after(0.02) as scope:
                await run_in_thread(ran.append, 1)
            assert scope.cancelled_caught
            assert thread_statistics()[2:] == (0, 0, before)
            blocked.event.set()
    assert ran == []


async def test_an_abandoned_function_is_counted_and_logged_until_it_ends(caplog):
    before = thread_statistics()
    with gate() as stuck, caplog.at_level(logging.INFO, "mellea_like"):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_in_thread, stuck)
                await stuck.wait_until_entered()
                scope.cancel()
        now = thread_statistics()
        assert now.abandoned == before.abandoned + 1
        assert now.abandoned_total == before.abandoned_total + 1
        assert now.threads > now.idle
    await until(lambda: thread_statistics().abandoned == before.abandoned)
    assert thread_statistics().abandoned_total == before.abandoned_total + 1
    assert [record.message.split(" ")[0] for record in caplog.records] == ["abandoned"]
    assert "continues to run in its thread" in caplog.records[0].message


async def test_nothing_is_kept_of_a_function_that_ended():
    class Thing:
        pass

    def function(thing):
        return None

    thing = Thing()
    gone = weakref.ref(thing)
    await run_in_thread(function, thing)
    del thing
    await until(lambda: gone() is None)


def test_a_function_outlives_the_event_loop_that_left_it():
    with gate() as stuck:

        async def leave() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_in_thread, stuck)
                await stuck.wait_until_entered()
                tasks.cancel_scope.cancel()

        before = thread_statistics().abandoned
        anyio.run(leave)
        assert thread_statistics().abandoned == before + 1
    deadline = time.monotonic() + 10
    while thread_statistics().abandoned > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert thread_statistics().abandoned == before

    async def again() -> int:
        return await run_in_thread(lambda: 3)

    assert anyio.run(again) == 3


def test_a_thread_does_not_wait_for_an_event_loop_that_stands_still():
    def at_work() -> int:
        now = thread_statistics()
        return now.threads - now.idle

    loop = asyncio.new_event_loop()
    before = at_work()
    with gate() as stuck:

        async def begin() -> asyncio.Task[str]:
            task = asyncio.create_task(run_in_thread(stuck))
            await stuck.wait_until_entered()
            return task

        task = loop.run_until_complete(begin())
    try:
        deadline = time.monotonic() + 10
        while at_work() > before and time.monotonic() < deadline:
            time.sleep(0.001)
        assert at_work() <= before
        assert loop.run_until_complete(task) == "through"
    finally:
        loop.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stuck_function_does_not_keep_the_process_from_exiting(backend):
    program = f"""
import anyio, time
from mellea_like.runtime.threads import run_in_thread

async def main():
    with anyio.move_on_after(0.05):
        await run_in_thread(time.sleep, 1000)

anyio.run(main, backend={backend!r})
print("out")
"""
    assert python(program).stdout == "out\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own():
    program = """
import anyio, os
from mellea_like.runtime.threads import run_in_thread, thread_statistics

async def main():
    return await run_in_thread(lambda: 7)

assert anyio.run(main) == 7
child = os.fork()
if child == 0:
    ok = thread_statistics().threads == 0 and anyio.run(main) == 7
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = python(program, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr


def test_an_idle_thread_ends():
    program = """
import anyio, time
from mellea_like.runtime import threads
threads.IDLE_SECONDS = 0.02

async def main():
    await threads.run_in_thread(int)

anyio.run(main)
end = time.monotonic() + 10
while threads.thread_statistics().threads and time.monotonic() < end:
    time.sleep(0.005)
assert threads.thread_statistics() == (0, 0, 0, 0, 0)
anyio.run(main)
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
