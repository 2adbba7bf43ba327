"""Rule 17 of the engine: no exception group made by us reaches a caller."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import anyio
import pytest
from anyio.lowlevel import checkpoint
from engine_kit import Unmetered, after, by_iteration, outcomes, yes

from mellea_like import BaseSamplingStrategy, Generation, RejectionSamplingStrategy, Requirement
from mellea_like.backends.function import FunctionBackend
from mellea_like.errors import (
    BackendTimeout,
    BackendUnavailable,
    HookError,
    RequirementError,
    SamplingTimeout,
)
from mellea_like.hooks import HookType, hook
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def breaks(_):
    await anyio.sleep(1)
    raise LookupError("bug")


class Broken(BaseSamplingStrategy):
    def repair(self, history):
        raise RuntimeError("bug")


CHECKS = [Requirement(f"broken {i}", breaks, on_error="raise") for i in range(3)]
SECOND = {"default": after(1, "no")}


@pytest.mark.parametrize(
    ("error", "backend", "requirements", "settings"),
    [
        (ValueError, {"default": after(1, ValueError("bug"))}, [yes], {}),
        (LookupError, SECOND, CHECKS, {}),
        (RuntimeError, SECOND, [yes], {"strategy": Broken}),
        (HookError, SECOND, [yes], {"plugins": [hook(HookType.GENERATION_PRE_CALL)(breaks)]}),
    ],
    ids=["backend", "validators", "repair", "hooks"],
)
async def test_rule_17_errors_of_many_lanes_at_once_come_out_as_one_plain_error(
    error, backend, requirements, settings
):
    settings = {"strategy": RejectionSamplingStrategy, "concurrency_budget": 4} | settings
    broken = settings.pop("strategy")(by_iteration({}, **backend), **settings)
    with pytest.raises(error, match="bug"):
        await broken.sample("do", requirements)


async def fails_twice(_):
    async def fail():
        await checkpoint()
        raise ValueError("inside")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
        tasks.start_soon(fail)
    return Generation("never")


@pytest.mark.parametrize("where", ["reply", "task group", "validator"])
async def test_rule_17_a_users_own_group_passes_unchanged(where):
    group = ExceptionGroup("mine", [ValueError("a"), ValueError("b")])

    async def check(candidate):
        raise group

    backend = Unmetered(fails_twice) if where == "task group" else by_iteration({})
    if where == "reply":
        backend = by_iteration({1: group})
    checks = [Requirement("check", check, on_error="raise")] if where == "validator" else [yes]
    with pytest.raises(ExceptionGroup) as caught:
        await RejectionSamplingStrategy(backend, loop_budget=1).sample("do", checks)
    assert caught.value is group or where == "task group"
    assert {type(e) for e in caught.value.exceptions} == {ValueError}


async def stray():
    """Raise a cancellation that no one asked for, as code does that keeps one for later."""
    kind = anyio.get_cancelled_exc_class()
    if kind is asyncio.CancelledError:
        raise kind
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await checkpoint()
        except kind as exc:
            kept = exc
    raise kept


async def test_rule_17_a_cancellation_that_no_one_asked_for_is_an_errored_slice():
    async def generate(request):
        if request.meta.iteration == 1:
            await stray()
        return Generation("yes")

    result = await RejectionSamplingStrategy(Unmetered(generate)).sample("do", [yes])
    assert outcomes(result) == {1: "errored", 2: "passed"}
    error = result.slices[0].error
    assert isinstance(error, BackendUnavailable)
    assert "Unmetered raised a cancellation that no one asked for" in str(error)
    assert isinstance(error.__cause__, anyio.get_cancelled_exc_class())


@pytest.mark.parametrize("selection", ["first", "ordered"])
async def test_rule_17_a_loser_may_raise_a_cancellation_of_its_own(selection):
    async def generate(request):
        if request.meta.subsample == 0:
            await anyio.sleep(1)
            return Generation("yes")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2)
        return await stray()

    strategy = RejectionSamplingStrategy(
        Unmetered(generate), loop_budget=2, concurrency_budget=2, selection=selection
    )
    result = await strategy.sample("do", [yes])
    assert outcomes(result) == {1: "passed", 3: "cancelled"}


async def test_rule_17_such_a_cancellation_in_a_validator_is_an_errored_slice():
    async def check(candidate):
        if candidate.text == "no":
            await stray()
        return True

    result = await RejectionSamplingStrategy(by_iteration({2: "yes"})).sample(
        "do", [Requirement("check", check)]
    )
    assert outcomes(result) == {1: "errored", 2: "passed"}
    assert isinstance(result.slices[0].error, RequirementError)


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "thread"])
async def test_rule_17_asyncios_cancellation_in_a_plain_validator_is_an_errored_slice(inline):
    def check(candidate):
        if candidate.text == "no":
            raise asyncio.CancelledError
        return True

    result = await RejectionSamplingStrategy(by_iteration({2: "yes"})).sample(
        "do", [Requirement("check", check, inline=inline)]
    )
    assert outcomes(result) == {1: "errored", 2: "passed"}
    assert isinstance(result.slices[0].error, RequirementError)
    said = "a validator" if inline else "'check' could not be decided: RuntimeError: it"
    assert f"{said} raised a cancellation" in str(result.slices[0].error)


async def test_rule_17_such_a_cancellation_in_a_hook_is_a_hook_error():
    @hook(HookType.SAMPLING_ITERATION)
    async def odd(payload):
        await stray()

    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(by_iteration({}), plugins=[odd, recording])
    with pytest.raises(HookError, match="a cancellation that no one asked for"):
        await strategy.sample("do", [yes])
    assert len(recording.of(HookType.SAMPLING_LOOP_END)) == 1


class Cancelling(RejectionSamplingStrategy):
    """A strategy whose repair raises a cancellation by mistake."""

    def repair(self, history):
        raise asyncio.CancelledError


async def test_rule_17_a_stray_cancellation_in_repair_leaves_as_an_error(anyio_backend_name):
    if anyio_backend_name == "trio":
        pytest.skip("on trio a cancellation can't come from code that does not wait")
    with pytest.raises(RuntimeError, match="the strategy raised a cancellation") as raised:
        await Cancelling(by_iteration({})).sample("do", [yes])
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize(
    "raised",
    [
        asyncio.CancelledError(),
        BaseExceptionGroup("mine", [asyncio.CancelledError(), ValueError("beside it")]),
    ],
    ids=["alone", "group"],
)
@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"iteration_timeout": 0.5}, BackendTimeout, r"the draw took longer than 0\.5 s"),
        ({"timeout": 0.5}, SamplingTimeout, "time ran out before any draw was judged"),
        ({"timeout": 0.5, "concurrency_budget": 2}, SamplingTimeout, "time ran out"),
    ],
)
async def test_rule_17_a_timeout_answered_with_a_stray_cancellation_is_a_timeout(
    anyio_backend_name, virtual_clock, how, error, message, raised
):
    if anyio_backend_name == "trio":
        pytest.skip("on trio a cancellation can't come from code that does not wait")

    async def reply(request):
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep(9)
        raise raised

    strategy = RejectionSamplingStrategy(FunctionBackend(reply), loop_budget=2, **how)
    with pytest.raises(error, match=message):
        await strategy.sample("do", [yes])


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Allows no new attributes, and so no notes."""

    code: int = 3


class Mute(Exception):
    """Can't be shown."""

    def __str__(self):
        raise TypeError("no text")


@dataclasses.dataclass(frozen=True)
class FrozenOutage(BackendUnavailable):
    retryable: bool = True
    retry_after: float | None = None
    status: int = 503


def raising(error):
    def check(candidate):
        raise error

    return check


@pytest.mark.parametrize(
    "error", [Frozen(), Mute(), FrozenOutage()], ids=lambda e: type(e).__name__
)
async def test_rule_17_an_exception_that_takes_no_notes_or_has_no_text_comes_out_all_the_same(
    error,
):
    kind = type(error)
    with pytest.raises(kind) as backends:
        await RejectionSamplingStrategy(FunctionBackend(raising(error))).sample("do")
    assert any("no draw was judged" in note for note in backends.value.__notes__)
    strategy = RejectionSamplingStrategy(by_iteration({}), loop_budget=1)

    async def with_check(on_error):
        check = Requirement("it is fine", raising(error), on_error=on_error)
        return await strategy.sample("do", [check])

    with pytest.raises(kind) as raised:
        await with_check("raise")
    assert any("'raise'" in note for note in raised.value.__notes__)
    with pytest.raises(RequirementError, match=kind.__name__) as errored:
        await with_check("error")
    assert errored.value.__cause__ is error
    failed = await with_check("fail")
    assert f"it could not be checked: {kind.__name__}" in failed.best.problems[0]
    assert failed.best.verdicts[0].error is error
    back = type(failed).from_dict(failed.to_dict())
    assert kind.__name__ in str(back.best.verdicts[0].error.type)

    @hook("generation_pre_call")
    async def breaks(payload):
        raise error

    with pytest.raises(HookError, match=kind.__name__) as hooked:
        await RejectionSamplingStrategy(by_iteration({}), plugins=[breaks]).sample("do")
    assert hooked.value.__cause__ is error
