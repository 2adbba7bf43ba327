"""Rule 10 of the engine: the hooks at the start and at the end of a call."""

from __future__ import annotations

import contextlib

import anyio
import pytest
from engine_kit import after, by_iteration, outcomes, yes

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.core import StopReason
from mellea_like.errors import Blocked, HookError, InvalidRequest, SamplingTimeout
from mellea_like.hooks import HookType, Plugin, hook
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def budget(value):
    class Budgeteer(Plugin):
        @hook(HookType.SAMPLING_LOOP_START)
        async def start(self, payload):
            return payload.model_copy(update={"loop_budget": value})

    return Budgeteer()


@pytest.mark.parametrize(("value", "expected"), [(1, {1, 2}), (3, {1, 2, 3, 4, 5, 6})])
async def test_rule_10_the_start_hook_changes_the_loop_budget_of_this_call_only(value, expected):
    plain = RejectionSamplingStrategy(by_iteration({}), loop_budget=2, concurrency_budget=2)
    strategy = RejectionSamplingStrategy(
        by_iteration({}), loop_budget=2, concurrency_budget=2, plugins=[budget(value)]
    )
    assert set(outcomes(await strategy.sample("do", [yes]))) == expected
    assert strategy.settings.loop_budget == 2
    assert len((await plain.sample("do", [yes])).slices) == 4


@pytest.mark.parametrize("value", [0, -1, True, False, 2.0, "3", None, 501, 10**9])
async def test_rule_10_an_impossible_loop_budget_is_a_value_error_that_names_the_plugin(value):
    backend = by_iteration({})
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=2, plugins=[budget(value)])
    with pytest.raises(ValueError, match="plugin Budgeteer set loop_budget to"):
        await strategy.sample("do", [yes])
    assert backend.requests == []


# --- exactly one end -----------------------------------------------------------------------------


def broken(candidate):
    raise LookupError


@hook(HookType.SAMPLING_LOOP_START)
async def blocking(payload):
    raise Blocked("not today")


@hook(HookType.GENERATION_PRE_CALL)
async def failing(payload):
    raise LookupError("bug")


LATE = after(9, "no")
RAISES = Requirement("b", broken, inline=True, on_error="raise")
ENDS = {
    "success": ("yes", {}, None, StopReason.PASSED),
    "exhaustion": ("no", {}, None, StopReason.EXHAUSTED),
    "error": (InvalidRequest, {}, InvalidRequest, StopReason.ERROR),
    "bug": ("no", {"requirements": [RAISES]}, LookupError, StopReason.ERROR),
    "timeout": (LATE, {"timeout": 1.5}, SamplingTimeout, StopReason.TIMEOUT),
    "blocked": ("no", {"plugins": [blocking]}, Blocked, StopReason.HOOK),
    "hook": ("no", {"plugins": [failing]}, HookError, StopReason.HOOK),
    "budget": ("no", {"plugins": [budget(0)]}, ValueError, StopReason.ERROR),
    "cancellation": (LATE, {}, None, StopReason.CANCELLED),
}


@pytest.mark.parametrize(("reply", "settings", "error", "reason"), ENDS.values(), ids=ENDS)
async def test_rule_10_the_end_hook_fires_once_whatever_the_end(reply, settings, error, reason):
    recording = RecordingPlugin()
    plugins = [recording, *settings.get("plugins", ())]
    strategy = RejectionSamplingStrategy(
        by_iteration({}, reply), **{"requirements": [yes], **settings, "plugins": plugins}
    )
    with pytest.raises(error) if error else contextlib.nullcontext(), anyio.move_on_after(2):
        await strategy.sample("do")
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    assert end.stop_reason is reason
    assert end.success is (reason is StopReason.PASSED)
    assert isinstance(end.error, error) if error else end.error is None
    assert {payload.sampling_id for payload in recording.payloads} == {end.sampling_id}
    assert recording.payloads[-1] is end


async def test_rule_10_the_end_hook_is_shielded_from_the_cancellation_of_the_caller():
    done = []

    @hook(HookType.SAMPLING_LOOP_END)
    async def slow(payload):
        await anyio.sleep(3)
        done.append(payload.stop_reason)

    strategy = RejectionSamplingStrategy(by_iteration({}, default=after(9, "no")), plugins=[slow])
    with anyio.move_on_after(1) as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught
    assert done == ["cancelled"]
    assert anyio.current_time() == pytest.approx(4)


async def test_rule_10_the_end_hook_is_bounded_in_time(caplog):
    @hook(HookType.SAMPLING_LOOP_END)
    async def endless(payload):
        await anyio.sleep_forever()

    strategy = RejectionSamplingStrategy(by_iteration({1: "yes"}), plugins=[endless])
    result = await strategy.sample("do", [yes])
    assert result.success
    assert anyio.current_time() == pytest.approx(5)
    assert "sampling_loop_end: TimeoutError: it took longer than 5 s" in caplog.text


class FailsAtTheEnd(Plugin):
    @hook(HookType.SAMPLING_LOOP_END)
    async def end(self, payload):
        raise ValueError("at the end")


@pytest.mark.parametrize("ends", ["an error", "a cancellation"])
async def test_rule_10_a_failing_end_hook_does_not_replace_what_leaves_the_call(ends):
    reply = InvalidRequest if ends == "an error" else after(9, "no")
    strategy = RejectionSamplingStrategy(by_iteration({}, reply), plugins=[FailsAtTheEnd()])
    error = pytest.raises(InvalidRequest) if ends == "an error" else contextlib.nullcontext()
    with error, anyio.move_on_after(1) as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught == (ends == "a cancellation")
