"""A call with tools in its draws, cancelled at any step, leaves nothing running and no win."""

from __future__ import annotations

import anyio
import pytest
from steps import run_stepped

from mellea_like import Generation, RejectionSamplingStrategy, Requirement, Tool
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import ToolCall

LOOK = tuple(ToolCall(f"c{n}", "look_up", f'{{"n": {n}}}') for n in (1, 2))
good = Requirement("good", lambda candidate: candidate.text == "good", inline=True)


def model(request):
    if request.messages[-1].role == "tool":
        return Reply("good" if request.meta.iteration == 2 else "bad", delay=1)
    return Reply(Generation("", tool_calls=LOOK), delay=1)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_cancelled_at_any_step_it_leaves_as_a_cancellation_and_nothing_runs_on(loop):
    begun, ended, running = [], [], []

    async def look_up(n: int) -> int:
        running.append(n)
        try:
            await anyio.sleep(n)
        finally:
            running.remove(n)
        return n

    async def main(stepper, at):
        backend = ScriptedBackend(model)
        strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=2)
        result = None
        with anyio.CancelScope() as scope:
            stepper.arm({at: scope.cancel})
            begun.append(at)
            result = await strategy.sample("go", [good], tools=[Tool.of(look_up, read_only=True)])
        stepper.disarm()
        assert not running
        statistics = backend.statistics()
        assert statistics.started == statistics.finished + statistics.cancelled
        assert scope.cancelled_caught == (result is None)
        if result is not None:
            assert result.unwrap() == "good"
            assert result.usage.requests == statistics.started
            ended.append(at)

    step = 0
    while not ended:
        step += 1
        run_stepped(lambda stepper, at=step: main(stepper, at), loop)
    assert 20 < len(begun) < 500
