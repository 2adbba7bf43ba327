"""Faults of plugins, repairs and selections, and the outcome of the call.

Each mode of a hook has its own outcome: ``SEQUENTIAL`` fails closed, the others are logged. See
``tests/hooks/test_modes.py`` and ``tests/engine/test_rule_10_loop_hooks.py`` for each rule alone.
"""

from __future__ import annotations

import anyio
import pytest
from aftermath import aftermath
from anyio.lowlevel import checkpoint
from engine_kit import after as later
from engine_kit import by_iteration, outcomes, yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.result import StopReason
from mellea_like.errors import BackendUnavailable, HookError
from mellea_like.hooks import HookMode, HookType, Plugin, hook

pytestmark = pytest.mark.anyio
virtual = pytest.mark.usefixtures("virtual_clock")

EVERY = tuple(HookType)
DURING = [kind for kind in HookType if kind is not HookType.SAMPLING_LOOP_END]


def on(kind: HookType, act, mode=HookMode.SEQUENTIAL, **arguments):
    class Faulty(Plugin):
        def __init__(self) -> None:
            self.calls = 0

        @hook(kind, mode=mode, **arguments)
        async def run(self, payload):
            self.calls += 1
            return await act(payload)

    return Faulty()


def all_kinds() -> ScriptedBackend:
    """Make a backend that causes a retry, a failure, a repair and a win, so every hook fires."""

    def rule(request):
        if request.meta.iteration == 1 and request.meta.retry == 0:
            return BackendUnavailable("again")
        return later(5, "yes") if request.meta.iteration == 2 else "no"

    return ScriptedBackend(rule)


async def raises(payload):
    await checkpoint()
    raise LookupError("bug")


async def hangs(payload):
    await anyio.sleep_forever()


# --- it raises, or hangs -------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("kind", DURING)
@pytest.mark.parametrize("act", [raises, hangs])
async def test_a_sequential_hook_that_fails_ends_the_call_and_the_error_names_it(kind, act):
    backend, plugin = all_kinds(), on(kind, act, timeout=3)
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=2, plugins=[plugin])
        with pytest.raises(HookError) as caught:
            await after.sample(call, "do", [yes])
    # Of what was cancelled then, it is told too.
    assert plugin.calls == (2 if kind is HookType.SAMPLING_ITERATION else 1)
    assert (caught.value.plugin, caught.value.hook) == ("Faulty", kind)
    assert ("bug" in str(caught.value)) == (act is raises)
    assert ("3 s" in str(caught.value)) == (act is hangs)
    assert caught.value.result is not None
    assert caught.value.result.stop_reason is StopReason.HOOK


@virtual
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("mode", [HookMode.OBSERVE, HookMode.BACKGROUND])
@pytest.mark.parametrize("act", [raises, hangs])
async def test_a_hook_that_only_looks_on_may_fail(kind, mode, act, caplog):
    backend, plugin = all_kinds(), on(kind, act, mode=mode, timeout=1.5)
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=2, plugins=[plugin])
        result = await after.sample(call, "do", [yes], options={"seed": 1})
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert plugin.calls >= 1
    told = [r for r in caplog.records if f"plugin Faulty failed at {kind}: " in r.getMessage()]
    assert told
    assert {r.sampling_id for r in told} == {result.sampling_id}


# --- it blocks the loop, or is still running at the end ------------------------------------------


@virtual
@pytest.mark.parametrize("ends", ["a win", "exhaustion", "an error", "the time", "the caller"])
@pytest.mark.parametrize("mode", list(HookMode))
async def test_what_still_runs_at_the_end_is_drained_within_two_seconds(mode, ends, caplog):
    replies = {"a win": "yes", "exhaustion": "no", "an error": LookupError("bug")}
    backend = by_iteration({}, default=later(1, replies.get(ends, "no")))
    if ends in {"the time", "the caller"}:
        backend = by_iteration({1: later(1, "no")}, default=later(99, "no"))
    async with aftermath(backend) as after:
        plugin = on(HookType.SAMPLING_ITERATION, hangs, mode=mode, timeout=60)
        call = RejectionSamplingStrategy(
            backend,
            loop_budget=2 if ends in {"the time", "the caller"} else 1,
            plugins=[plugin],
            timeout=3 if ends == "the time" else None,
        )
        with anyio.move_on_after(3 if ends == "the caller" else 99) as scope:
            try:
                await after.sample(call, "do", [yes])
            except LookupError:
                assert ends == "an error"
        assert scope.cancelled_caught == (ends == "the caller")
    over = 3 if ends in {"the time", "the caller"} else 1
    assert over + 1.9 < anyio.current_time() < over + 2.1
    assert "gave up after 2 s" in caplog.text
