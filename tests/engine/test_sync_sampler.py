"""`SyncSampler`: many threads, one event loop."""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from anyio.lowlevel import checkpoint
from command_line import python
from engine_kit import by_iteration, yes

from mellea_like import RejectionSamplingStrategy, Requirement, SyncSampler
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.hooks import HookType, PluginSet, hook
from mellea_like.limits import Budget, ConcurrencyLimiter, LimitedBackend

NEVER = Reply("yes", delay=math.inf)


def loop_threads():
    return [t for t in threading.enumerate() if t.name == "mellea_like loop"]


def test_32_threads_share_one_limiter_and_one_budget():
    in_flight = []

    def reply(request):
        in_flight.append(backend.statistics().in_flight)
        return Reply("yes", delay=0.001)

    backend = ScriptedBackend(reply)
    limiter, budget = ConcurrencyLimiter(4), Budget(requests=40)
    one = RejectionSamplingStrategy(LimitedBackend(backend, limiter), budget=budget)
    other = RejectionSamplingStrategy(LimitedBackend(backend, limiter), budget=budget)
    ready = threading.Barrier(32, timeout=20)

    def ask(i):
        ready.wait()
        return sampler.sample(f"do {i}", [yes], strategy=other if i % 2 else None)

    with SyncSampler(one) as sampler, ThreadPoolExecutor(32) as pool:
        results = list(pool.map(ask, range(32)))
        assert len(loop_threads()) == 1
    assert [r.best.action.description for r in results] == [f"do {i}" for i in range(32)]
    assert all(result.success for result in results)
    assert max(in_flight) == 4
    assert budget.statistics().spent.requests == 32
    assert loop_threads() == []


def test_a_timeout_cancels_the_call_and_frees_what_it_held():
    backend = ScriptedBackend([NEVER, NEVER, "yes"])
    limiter = ConcurrencyLimiter(2)
    strategy = RejectionSamplingStrategy(LimitedBackend(backend, limiter), concurrency_budget=2)
    with SyncSampler(strategy) as sampler:
        with pytest.raises(TimeoutError, match=r"longer than 0\.05 s"):
            sampler.sample("do", [yes], timeout=0.05)
        assert backend.statistics().in_flight == limiter.statistics().in_flight == 0
        assert sampler.sample("do", [yes], timeout=20).success


def test_closing_cancels_the_calls_in_flight_and_ends_the_thread():
    started = threading.Semaphore(0)

    def reply(request):
        started.release()
        return NEVER

    backend = ScriptedBackend(reply)
    with ThreadPoolExecutor(3) as pool:
        with SyncSampler(RejectionSamplingStrategy(backend)) as sampler:
            calls = [pool.submit(sampler.sample, "do") for _ in range(3)]
            for _ in calls:
                assert started.acquire(timeout=20)
        assert loop_threads() == []
        assert backend.statistics().in_flight == 0
        for call in calls:
            with pytest.raises(CancelledError, match="was closed"):
                call.result(20)
    with pytest.raises(RuntimeError, match="is closed"):
        sampler.sample("do")


def test_a_call_has_the_context_of_its_thread_and_raises_what_sample_raises():
    seen = []

    @hook(HookType.SAMPLING_LOOP_START)
    async def look(payload):
        seen.append(payload.action.description)

    backend = ScriptedBackend(["a", LookupError("x")])
    with SyncSampler(RejectionSamplingStrategy(backend, loop_budget=1)) as sampler:
        assert sampler.sample("before").success
        with PluginSet("scope", [look]), pytest.raises(LookupError):
            sampler.sample("inside")
        with pytest.raises(ValueError, match="timeout"):
            sampler.sample("do", timeout=0)
    assert seen == ["inside"]


def test_a_validator_in_a_thread_may_use_the_sampler_and_an_inline_one_is_refused():
    inner = RejectionSamplingStrategy(by_iteration({}, default="yes"))

    def ask(candidate):
        return sampler.sample("inner", strategy=inner).success

    with SyncSampler(RejectionSamplingStrategy(by_iteration({}), loop_budget=1)) as sampler:
        assert sampler.sample("do", [Requirement("ask", ask)]).success
        with pytest.raises(Exception, match="would wait for itself"):
            sampler.sample("do", [Requirement("ask", ask, inline=True)])


def test_what_is_no_strategy_is_named():
    for wrong in (3, RejectionSamplingStrategy):
        with pytest.raises(TypeError, match=r"needs a strategy, such as Rej.*, not"):
            SyncSampler(wrong)
    sampler = SyncSampler(RejectionSamplingStrategy(by_iteration({})))
    with sampler, pytest.raises(TypeError, match="needs a strategy"):
        sampler.sample("do", strategy=3)


@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_it_works_where_a_loop_runs():
    with SyncSampler(RejectionSamplingStrategy(by_iteration({}, default="yes"))) as sampler:
        assert sampler.sample("do", [yes]).success
    await checkpoint()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_loop_of_its_own():
    program = """
import os, signal
from mellea_like import RejectionSamplingStrategy, SyncSampler
from mellea_like.backends import ScriptedBackend

with SyncSampler(RejectionSamplingStrategy(ScriptedBackend(["one", "two"]))) as sampler:
    assert sampler.sample("Say it.").value == "one"
    if (child := os.fork()) == 0:
        signal.alarm(10)
        value = sampler.sample("Say it.").value
        sampler.close()
        os._exit(0 if value == "two" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sampler.sample("Say it.").value == "two"
"""
    done = python(program, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr
