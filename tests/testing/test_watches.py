"""The watches in conftest: each must be able to fail a test."""

from __future__ import annotations

from pathlib import Path

CONFTEST = Path(__file__).parent.parent / "conftest.py"

PROGRAM = """
import time, warnings
import anyio, pytest
from mellea_like.backends.function import FunctionBackend
from mellea_like.core.backend import Request

pytestmark = pytest.mark.anyio

def sleep(request):
    time.sleep(0.001)
    return "slept"

async def test_sleeps():
    await FunctionBackend(sleep, inline=True).generate(Request(()))

@pytest.mark.allow_blocking
async def test_may_sleep():
    await FunctionBackend(sleep, inline=True).generate(Request(()))

async def test_sleeps_in_a_thread():
    await FunctionBackend(sleep).generate(Request(()))

async def test_leaves_a_task(leftover):
    leftover.start_soon(anyio.sleep, 1000)

async def test_leaves_none():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 0.001)

async def test_warns():
    warnings.warn("a warning")

@pytest.fixture
async def leftover():
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()
"""


def test_a_blocking_call_a_task_left_behind_and_a_warning_fail_a_test(pytester):
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile(PROGRAM)
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        filterwarnings = ["error"]
        markers = ["allow_blocking"]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:looptime_plugin", "-p", "no:randomly")
    result.assert_outcomes(passed=6, failed=6)
    output = result.stdout.str()
    assert "BlockingError: Blocking call to time.sleep" in output
    assert "time.sleep(0.001,) blocks the event loop" in output
    for name in ("sleeps", "leaves_a_task", "warns"):
        for loop in ("asyncio", "trio"):
            assert f"::test_{name}[{loop}]" in output
    assert output.count("left tasks behind") >= 2
