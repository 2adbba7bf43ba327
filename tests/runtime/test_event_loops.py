"""Was this code asked to stop? The same answer on both event loops."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import anyio
import pytest
from anyio.lowlevel import checkpoint, current_token

from mellea_like.runtime.event_loops import (
    WatchedEvent,
    cancel_requested,
    foreign,
    loop_runs,
    native_cancel_requests,
    running_loop,
)

pytestmark = pytest.mark.anyio


async def test_a_cancelled_scope_asks():
    seen = []
    with anyio.CancelScope() as scope:  # noqa: ASYNC100 (it only asks)
        scope.cancel()
        seen.append(cancel_requested())
        with anyio.CancelScope(shield=True):  # noqa: ASYNC100
            seen.append(cancel_requested())
    assert seen == [True, False]
    assert not cancel_requested()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_asks(anyio_backend):
    seen = []

    async def work() -> None:
        try:
            await anyio.sleep(10)
        finally:
            seen.append((native_cancel_requests(), cancel_requested()))

    task = asyncio.ensure_future(work())
    await checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [(1, True)]


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_an_event_loop_runs_until_it_has_ended(library):
    async def look():
        token = current_token()
        assert loop_runs(token)
        return token

    assert not loop_runs(anyio.run(look, backend=library))


def test_no_loop_runs_here_while_another_thread_is_still_importing_its_library(monkeypatch):
    for name in ("asyncio", "trio"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert running_loop() is None
    assert native_cancel_requests() == 0


async def test_a_cancellation_that_no_one_asked_for_is_an_error_of_foreign_code():
    stray = asyncio.CancelledError()  # On trio too: a thread's code may raise it.
    with (
        pytest.raises(ValueError, match="the judge raised") as raised,
        foreign("the judge", ValueError),
    ):
        raise stray
    assert raised.value.__cause__ is stray


async def test_what_failed_along_with_a_stray_cancellation_is_raised_instead():
    with pytest.raises(ExceptionGroup) as raised, foreign("the judge"):
        raise BaseExceptionGroup("both", [asyncio.CancelledError(), OSError("full")])
    assert [str(error) for error in raised.value.exceptions] == ["full"]


async def test_a_cancellation_that_was_asked_for_leaves_foreign_code():
    with anyio.CancelScope() as scope:
        scope.cancel()
        with foreign("the judge"):
            await checkpoint()
    assert scope.cancelled_caught


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
async def test_any_other_exception_leaves_foreign_code_as_it_is(error):
    with pytest.raises(type(error)) as raised, foreign("the judge"):
        raise error
    assert raised.value is error


async def test_a_watched_event_wakes_its_task():
    event, woken = WatchedEvent(lambda: pytest.fail("nobody cancelled it")), []

    async def wait() -> None:
        await event.wait()
        woken.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not woken
        event.set()
        event.set()
    assert woken
    await event.wait()


async def test_a_watched_event_tells_of_a_cancellation_in_the_same_step():
    told = []
    event = WatchedEvent(lambda: told.append(True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(event.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        assert told == [True]
        event.set()  # Too late, and harmless.


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_watched_event_tells_of_a_native_cancellation(anyio_backend):
    told = []
    task = asyncio.ensure_future(WatchedEvent(lambda: told.append(True)).wait())
    await checkpoint()
    task.cancel()
    assert told == [True]
    with pytest.raises(asyncio.CancelledError):
        await task
