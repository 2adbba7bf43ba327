"""`sample_sync`: the same, for scripts."""

from __future__ import annotations

import math
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint
from engine_kit import yes

from mellea_like import Generation, RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.hooks import HookType, PluginSet, hook
from mellea_like.limits import Budget, ConcurrencyLimiter, LimitedBackend


@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_where_a_loop_runs_already_it_works_with_the_same_objects_and_in_the_same_scope():
    seen = []

    @hook(HookType.SAMPLING_LOOP_START)
    async def look(payload):
        seen.append(payload.sampling_id)

    budget = Budget(requests=6)
    limited = LimitedBackend(ScriptedBackend(["no", "yes"], cycle=True), ConcurrencyLimiter(1))
    strategy = RejectionSamplingStrategy(limited, budget=budget)
    with PluginSet("scope", [look]):
        results = [
            await strategy.sample("do", [yes]),
            strategy.sample_sync("do", [yes]),
            await strategy.sample("do", [yes]),
        ]
    assert [result.success for result in results] == [True] * 3
    assert seen == [result.sampling_id for result in results]
    assert budget.statistics().spent.requests == 6
    assert "mellea_like loop" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_where_a_loop_runs_already_a_limiter_in_use_there_is_refused_not_waited_for():
    limiter = ConcurrencyLimiter(1)
    slow = ScriptedBackend([Reply("yes", delay=math.inf)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(RejectionSamplingStrategy(LimitedBackend(slow, limiter)).sample, "do")
        while not limiter.statistics().in_flight:
            await checkpoint()
        other = RejectionSamplingStrategy(LimitedBackend(ScriptedBackend(["yes"]), limiter))
        with pytest.raises(RuntimeError, match="in use in another event loop"):
            other.sample_sync("do")
        tasks.cancel_scope.cancel()


class Closing:
    """A backend with idle connections, which belong to the event loop that they were made on."""

    def __init__(self, text="yes"):
        self.text = text
        self.closed = 0

    async def generate(self, request):
        return Generation(self.text)

    async def aclose(self):
        self.closed += 1


def test_idle_connections_are_closed_with_their_loop():
    backend, judge = Closing(), Closing('{"passed": true, "reason": ""}')
    strategy = RejectionSamplingStrategy(backend, judge=judge)
    strategy.sample_sync("do", ["be kind"])
    assert (backend.closed, judge.closed) == (1, 1)
    strategy.sample_sync("do", ["be kind"])
    assert (backend.closed, judge.closed) == (2, 2)


def test_the_backend_of_the_call_is_closed_too_and_each_once():
    backend = Closing()
    RejectionSamplingStrategy(judge=backend).sample_sync("do", [yes], backend=backend)
    assert backend.closed == 1


def test_connections_are_closed_after_an_error_too():
    class Failing(Closing):
        async def generate(self, request):
            raise LookupError

    backend = Failing()
    with pytest.raises(LookupError):
        RejectionSamplingStrategy(backend).sample_sync("do")
    assert backend.closed == 1


def test_connections_that_fail_to_close_do_not_replace_the_result(caplog):
    class Broken(Closing):
        async def aclose(self):
            raise OSError("broken pipe")

    judge = Closing('{"passed": true, "reason": ""}')
    result = RejectionSamplingStrategy(Broken(), judge=judge).sample_sync("do", ["be kind"])
    assert result.success
    assert judge.closed == 1
    assert "closing idle connections: OSError: broken pipe" in caplog.text


def test_the_judges_that_requirements_bring_along_are_closed_too():
    own, inner = (
        Closing('{"passed": true, "reason": ""}'),
        Closing('{"passed": true, "reason": ""}'),
    )
    checks = [Requirement("kind", judge=own), yes | ~Requirement("brief", judge=inner)]
    RejectionSamplingStrategy(Closing()).sample_sync("do", checks)
    assert (own.closed, inner.closed) == (1, 1)
