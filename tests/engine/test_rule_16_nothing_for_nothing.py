"""Rule 16 of the engine: what nobody asked for costs nothing."""

from __future__ import annotations

import inspect

import anyio
import pytest
from anyio.lowlevel import checkpoint
from command_line import python
from engine_kit import Unmetered, yes

from mellea_like import Generation, RejectionSamplingStrategy
from mellea_like.backends.function import FunctionBackend
from mellea_like.testing import RecordingPlugin

pytestmark = pytest.mark.anyio


class Seen(FunctionBackend):
    """Notes the functions between a request and its backend."""

    frames = ()

    async def generate(self, request):
        frame, self.frames = inspect.currentframe(), ()
        while (frame := frame.f_back) is not None:
            self.frames += (frame.f_globals["__name__"],)
        return Generation("yes")


async def between(**arguments):
    backend = Seen(lambda request: "")
    await RejectionSamplingStrategy(backend, **arguments).sample("do", [yes])
    parts = [name.split(".") for name in backend.frames]
    return {".".join(path[1:]) for path in parts if path[1:2] in (["options"], ["hooks"])}


async def test_rule_16_without_plugins_and_telemetry_no_backend_of_theirs_is_around_it():
    assert await between() == {"options.retries"}


async def test_rule_16_with_a_plugin_one_is():
    around = await between(plugins=[RecordingPlugin()])
    assert around >= {"hooks.request", "hooks.repair", "options.deliveries"}


SCRIPT = """
import sys, anyio
from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
check = Requirement("never", lambda candidate: False, inline=True)
strategy = RejectionSamplingStrategy(ScriptedBackend(["a", "b"]), loop_budget=2)
anyio.run(strategy.sample, "do", [check])
print([name for name in ("mellea_like.hooks.payload", "pydantic.main") if name in sys.modules])
"""


def test_rule_16_a_call_without_plugins_never_loads_what_plugins_need():
    done = python(SCRIPT)
    assert done.stdout == "[]\n", done.stderr


async def test_rule_16_without_hooks_an_iteration_is_as_many_steps_as_its_backend_takes():
    steps = 0

    async def generate(request):
        await checkpoint()
        return Generation("no")

    async def count():
        nonlocal steps
        while True:
            await checkpoint()
            steps += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await checkpoint()
        steps = 0
        await RejectionSamplingStrategy(Unmetered(generate), loop_budget=500).sample("do", [yes])
        taken = steps
        tasks.cancel_scope.cancel()
    # One checkpoint an iteration is the backend's; a few belong to the call.
    assert taken < 500 * 1.2 + 20
