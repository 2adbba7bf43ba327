"""Virtual time: sleeps jump, standstills are errors."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time

import anyio
import pytest
from command_line import python

from mellea_like.runtime.threads import run_in_thread
from mellea_like.testing import virtual_clock as virtual_clock_module
from mellea_like.testing.virtual_clock import DeadlockError, VirtualClock, run_virtual

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@pytest.fixture
def impatient(monkeypatch):
    """Threads that other tests left idle might wake a loop: don't wait a second for them."""
    monkeypatch.setattr(virtual_clock_module, "PATIENCE", 0.02)


@pytest.mark.anyio
async def test_an_hour_passes_at_once(virtual_clock):
    began = time.monotonic()
    await anyio.sleep(3600)
    assert virtual_clock.now == anyio.current_time() == 3600
    assert time.monotonic() - began < 5


@both
@pytest.mark.usefixtures("impatient")
def test_a_standstill_is_an_error_that_names_the_tasks(backend):
    async def waiter(event: anyio.Event) -> None:
        await event.wait()

    async def stuck() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter, anyio.Event(), name="the waiter")

    with pytest.raises(DeadlockError, match=r"no timer is set.*the waiter"):
        run_virtual(stuck, backend=backend)


async def swallowed() -> str:
    with anyio.CancelScope() as scope:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            scope.cancel()
            raise
    return "fine"


async def shielded() -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("standstill", "backend"),
    [(swallowed, "asyncio"), (swallowed, "trio"), (shielded, "asyncio")],
)
@pytest.mark.usefixtures("impatient")
def test_a_standstill_that_is_swallowed_or_shielded_is_still_an_error(standstill, backend):
    with pytest.raises(DeadlockError):
        run_virtual(standstill, backend=backend)


@both
def test_a_thread_may_end_a_standstill(backend):
    async def waits_for_a_thread() -> str:
        return await run_in_thread(lambda: time.sleep(0.05) or "done")

    assert run_virtual(waits_for_a_thread, backend=backend) == "done"


def test_the_end_of_a_run_waits_for_a_thread_of_the_executor():
    async def leave_a_thread() -> None:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.05)

    run_virtual(leave_a_thread)  # Since Python 3.12, asyncio warns after 300 seconds.


def test_another_loop_is_refused():
    with pytest.raises(ValueError, match="not on 'curio'"):
        VirtualClock().backend("curio")


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(ImportError, match=r"trio needs trio: pip install 'mellea-like\[testing\]'"):
        VirtualClock().backend("trio")
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "mellea_like.testing.pytest_plugin", raising=False)
    with pytest.raises(ImportError, match=r"need pytest: pip install 'mellea-like\[testing\]'"):
        importlib.import_module("mellea_like.testing.pytest_plugin")


def test_virtual_time_on_asyncio_needs_no_trio():
    program = """
import sys; sys.modules["trio"] = sys.modules["pytest"] = None
import anyio
from mellea_like.testing import run_virtual
run_virtual(lambda: anyio.sleep(3600))
"""
    done = python(program)
    assert done.returncode == 0, done.stderr


def test_the_plugin_fails_a_test_that_stands_still(pytester, impatient):
    pytester.makeconftest('pytest_plugins = ["mellea_like.testing.pytest_plugin"]')
    pytester.makepyfile(
        """
        import anyio, pytest
        pytestmark = pytest.mark.anyio

        async def test_stuck(virtual_clock):
            await anyio.Event().wait()

        async def test_fine(virtual_clock):
            await anyio.sleep(1e6)
            assert virtual_clock.now == 1e6
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:looptime_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*DeadlockError: deadlock: every task is waiting*"])


def test_a_test_that_chooses_its_own_loops_is_told_how_not_to(pytester):
    pytester.makepyfile(
        """
        import pytest

        pytest_plugins = ["mellea_like.testing.pytest_plugin"]


        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_it(virtual_clock):
            raise AssertionError
        """
    )
    without = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist")
    ran = pytester.runpytest_inprocess(*without)
    ran.stdout.fnmatch_lines(["*virtual_clock needs this plugin's anyio_backend: don't param*"])
