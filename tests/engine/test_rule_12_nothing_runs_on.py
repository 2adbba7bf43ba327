"""Rule 12 of the engine: when a call is over, nothing of it runs on."""

from __future__ import annotations

import contextlib
import logging
import threading

import anyio
import pytest
from engine_kit import Unmetered, after, by_iteration, outcomes, yes
from leftovers import running

from mellea_like import Generation, RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.hooks import HookMode, HookType, hook
from mellea_like.runtime.threads import run_in_thread, thread_statistics

pytestmark = pytest.mark.anyio


@hook(HookType.SAMPLING_ITERATION, mode=HookMode.BACKGROUND)
async def endless(payload):
    await anyio.sleep_forever()


@pytest.mark.parametrize("plugins", [[], [endless]], ids=["no hooks", "hooks"])
@pytest.mark.parametrize("reply", ["yes", "no", ValueError("bug"), after(99, "no")], ids=repr)
async def test_rule_12_no_task_is_left_whatever_the_end(virtual_clock, plugins, reply):
    backend = by_iteration({1: reply}, default=after(9, "no"))
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=3, plugins=plugins, timeout=20
    )
    before = running()
    with contextlib.suppress(ValueError):
        await strategy.sample("do", [yes])
    assert running() == before
    now = backend.statistics()
    assert now.in_flight == 0
    await anyio.sleep(100)
    assert backend.statistics() == now


async def test_rule_12_a_backend_that_ignores_cancellation_is_waited_for_and_its_stack_logged(
    virtual_clock, caplog
):
    async def stubborn_request(request):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(30 if request.meta.iteration == 2 else 1)
        return Generation("yes")

    strategy = RejectionSamplingStrategy(
        Unmetered(stubborn_request), loop_budget=1, concurrency_budget=2, cancel_grace=3.0
    )
    result = await strategy.sample("do", [yes])
    assert result.best.iteration == 1
    assert result.elapsed == pytest.approx(30)
    assert len(result.slices) == 2
    [record] = [r for r in caplog.records if "still runs" in r.getMessage()]
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert record.sampling_id == result.sampling_id
    assert "lane 2 was cancelled 3 s ago" in message
    assert "stubborn_request" in message
    assert __file__.rsplit("/", 1)[-1] in message
    assert "await anyio.sleep(30" in message


async def test_rule_12_an_abandoned_validators_thread_is_counted_and_logged(caplog):
    caplog.set_level(logging.INFO, "mellea_like")
    release = threading.Event()

    def stuck(candidate):
        release.wait(20)
        return True

    await run_in_thread(int)  # Now a thread is idle, and the validator really begins in time.
    before = thread_statistics()
    try:
        check = Requirement("stuck", stuck, timeout=0.1, on_error="fail")
        result = await RejectionSamplingStrategy(ScriptedBackend(["no"]), loop_budget=1).sample(
            "do", [check]
        )
        during = thread_statistics()
    finally:
        release.set()
    assert outcomes(result) == {1: "failed"}
    assert "took longer than 0.1 s" in result.best.problems[0]
    assert during.abandoned == before.abandoned + 1
    assert during.abandoned_total == before.abandoned_total + 1
    assert any("abandoned" in r.getMessage() and "stuck" in r.getMessage() for r in caplog.records)
    with anyio.fail_after(5):
        while thread_statistics().abandoned > before.abandoned:  # noqa: ASYNC110 (a thread ends)
            await anyio.sleep(0.01)
