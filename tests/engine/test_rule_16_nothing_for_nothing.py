"""Rule 16 of the engine: what nobody asked for costs nothing."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest
from anyio.lowlevel import checkpoint
from engine_kit import Unmetered, by_iteration, yes

from mellea_like import Generation, RejectionSamplingStrategy
from mellea_like.sampling.call import Call
from mellea_like.sampling.events import ObservedBackend
from mellea_like.sampling.prepare import prepare_call
from mellea_like.testing import RecordingPlugin

pytestmark = pytest.mark.anyio


def call_of(strategy, backend):
    plan = prepare_call(strategy.settings, "do", [yes], backend=backend)
    return Call(strategy, plan, None).context


async def test_rule_16_without_plugins_and_telemetry_the_backend_is_called_directly():
    backend = by_iteration({})
    call = call_of(RejectionSamplingStrategy(backend), backend)
    assert call.sender.backend is backend
    assert call.telemetry is None
    assert not call.validation_observed
    assert not call.events.hooks.types


async def test_rule_16_with_a_plugin_it_is_not():
    backend = by_iteration({})
    call = call_of(RejectionSamplingStrategy(backend, plugins=[RecordingPlugin()]), backend)
    assert isinstance(call.sender.backend, ObservedBackend)
    assert call.validation_observed


SCRIPT = """
import sys, anyio
from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
check = Requirement("never", lambda candidate: False, inline=True)
strategy = RejectionSamplingStrategy(ScriptedBackend(["a", "b"]), loop_budget=2)
anyio.run(strategy.sample, "do", [check])
print([name for name in ("mellea_like.hooks.payloads", "pydantic.main") if name in sys.modules])
"""


def test_rule_16_a_call_without_plugins_never_loads_what_plugins_need():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
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
