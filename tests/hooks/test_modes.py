"""How handlers run: sequential, observing, in the background; and what their failures do."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest
from engine_kit import after, by_iteration, yes

from mellea_like import RejectionSamplingStrategy, Requirement, SamplingFailed, Vote
from mellea_like.core import StopReason
from mellea_like.errors import Blocked, HookError, InvalidRequest
from mellea_like.hooks import HookMode, HookType, Plugin, PluginSet, hook
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

LOOKING = [HookMode.OBSERVE, HookMode.BACKGROUND]
BEFORE_THE_END = [
    hook_type for hook_type in HookType if hook_type is not HookType.SAMPLING_LOOP_END
]


def strategy_with(*plugins, replies=None, default="no", **settings):
    return RejectionSamplingStrategy(
        by_iteration(replies or {}, default), plugins=plugins, **settings
    )


# --- sequential -------------------------------------------------------------------------------


async def test_sequential_handlers_run_by_priority_one_after_the_other():
    order = []

    def handler(name, priority):
        @hook(HookType.SAMPLING_LOOP_START, priority=priority)
        async def run(payload):
            order.append(f"{name} begins")
            await anyio.sleep(1)
            order.append(f"{name} ends")

        return run

    plugins = [handler("late", 90), handler("early", 10), handler("middle", 50)]
    await strategy_with(*plugins).sample("do", [yes])
    assert order == [
        f"{name} {what}" for name in ("early", "middle", "late") for what in ("begins", "ends")
    ]


@pytest.mark.parametrize("when", BEFORE_THE_END)
@pytest.mark.parametrize(
    ("raised", "what"),
    [
        (LookupError("bug"), "failed at {}: LookupError: bug"),
        (Blocked("no"), "blocked the call at {}: no"),
    ],
    ids=["bug", "Blocked"],
)
async def test_a_failure_ends_the_call_with_an_error_that_names_plugin_and_hook(when, raised, what):
    class Guard(Plugin):
        name = "the guard"

        @hook(when)
        async def run(self, payload):
            raise raised

    recording = RecordingPlugin()
    backend = by_iteration({1: InvalidRequest("x")} if "error" in when else {})
    strategy = RejectionSamplingStrategy(backend, plugins=[Guard(), recording])
    with pytest.raises(HookError) as caught:
        await strategy.sample("do", [yes])
    error = caught.value
    assert isinstance(error, Blocked) is isinstance(raised, Blocked)
    assert str(error) == f"plugin the guard {what.format(when)}"
    assert (error.plugin, error.hook) == ("the guard", when)
    assert error.__cause__ is raised
    assert error.result.stop_reason is StopReason.HOOK
    assert not error.result.success
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    assert end.error is error
    assert end.slices == error.result.slices
    assert len(backend.requests) <= 1 or when is HookType.SAMPLING_ITERATION


# --- observing --------------------------------------------------------------------------------


async def test_observers_run_all_together_and_are_awaited():
    ended = []

    def observer(name):
        @hook(HookType.SAMPLING_LOOP_START, mode=HookMode.OBSERVE)
        async def run(payload):
            await anyio.sleep(1)
            ended.append((name, anyio.current_time()))

        return run

    backend = by_iteration({1: "yes"})
    strategy = RejectionSamplingStrategy(backend, plugins=[observer(i) for i in range(3)])
    result = await strategy.sample("do", [yes])
    assert sorted(name for name, _ in ended) == [0, 1, 2]
    assert [at for _, at in ended] == pytest.approx([1, 1, 1])
    assert result.slices[0].started_at == pytest.approx(1)


@pytest.mark.parametrize("mode", LOOKING)
async def test_what_those_that_only_look_return_changes_nothing(mode):
    @hook(HookType.SAMPLING_LOOP_START, mode=mode)
    async def meddler(payload):
        return payload.model_copy(update={"loop_budget": 1})

    result = await strategy_with(meddler, loop_budget=3).sample("do", [yes])
    assert len(result.slices) == 3


class Flaky(Plugin):
    def __init__(self, fails, mode=HookMode.OBSERVE):
        self.calls = 0
        self.fails = fails

    @hook(HookType.SAMPLING_ITERATION, mode=HookMode.OBSERVE)
    async def run(self, payload):
        self.calls += 1
        if self.fails(self.calls):
            raise LookupError("bug")

    @hook(HookType.SAMPLING_LOOP_END, mode=HookMode.OBSERVE)
    async def end(self, payload):
        self.calls += 100


async def test_an_observing_plugin_is_silenced_after_three_failures_in_a_row(caplog):
    flaky = Flaky(lambda call: True)
    await strategy_with(flaky, loop_budget=9).sample("do", [yes])
    assert flaky.calls == 3  # neither the other six slices nor the end
    failures = [r.getMessage() for r in caplog.records if "Flaky" in r.getMessage()]
    assert len(failures) == 3
    assert failures[-1].endswith("silenced for this call after 3 failures in a row")
    assert "silenced" not in "".join(failures[:2])


async def test_a_success_in_between_starts_the_count_anew_and_so_does_another_call():
    flaky, broken = Flaky(lambda call: call % 3), Flaky(lambda call: True)
    strategy = strategy_with(flaky, broken, loop_budget=9)
    await strategy.sample("do", [yes])
    assert (flaky.calls, broken.calls) == (109, 3)
    await strategy.sample("do", [yes])
    assert broken.calls == 6


# --- in the background ------------------------------------------------------------------------


async def test_background_handlers_are_not_waited_for():
    ended = []

    @hook(HookType.GENERATION_PRE_CALL, mode=HookMode.BACKGROUND)
    async def slow(payload):
        await anyio.sleep(1)
        ended.append(anyio.current_time())

    result = await strategy_with(slow, default=after(0.1, "no"), loop_budget=3).sample("do", [yes])
    assert [s.started_at for s in result.slices] == pytest.approx([0, 0.1, 0.2])
    assert ended == pytest.approx([1, 1.1, 1.2])
    assert result.elapsed == pytest.approx(1.2)  # the call's own end waits for them


async def test_a_background_handler_is_never_silenced(caplog):
    calls = []

    @hook(HookType.SAMPLING_ITERATION, mode=HookMode.BACKGROUND)
    async def broken(payload):
        calls.append(payload.iteration)
        raise LookupError("bug")

    await strategy_with(broken, loop_budget=5).sample("do", [yes])
    assert sorted(calls) == [1, 2, 3, 4, 5]
    assert "silenced for this call" not in caplog.text


# --- delivery ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [HookMode.SEQUENTIAL, HookMode.OBSERVE])
async def test_what_could_not_be_delivered_in_two_seconds_is_counted_and_logged(mode, caplog):
    told = []

    @hook(HookType.SAMPLING_ITERATION, mode=mode)
    async def slow(payload):
        await anyio.sleep(0.9)
        told.append(payload.iteration)

    result = await strategy_with(slow, loop_budget=5).sample("do", [yes])
    assert told == [1, 2]
    assert result.undelivered == 3
    assert result.elapsed == pytest.approx(2)
    [record] = [r for r in caplog.records if "gave up after 2 s" in r.getMessage()]
    assert "3 draws were not passed to hooks" in record.getMessage()
    assert record.sampling_id == result.sampling_id


async def test_the_two_seconds_are_for_deliveries_and_background_handlers_together(caplog):
    class Slow(Plugin):
        @hook(HookType.SAMPLING_ITERATION)
        async def told(self, payload):
            await anyio.sleep(1.5)

        @hook(HookType.SAMPLING_LOOP_END, mode=HookMode.BACKGROUND)
        async def end(self, payload):
            await anyio.sleep(1)

    result = await strategy_with(Slow(), replies={1: "yes"}).sample("do", [yes])
    assert result.undelivered == 0
    assert anyio.current_time() == pytest.approx(2)
    assert "0 draws were not passed to hooks, and 1 background hooks were cut off" in caplog.text


# --- after a win ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LookupError("bug"), Blocked("stop")], ids=["bug", "Blocked"])
@pytest.mark.parametrize("when", [HookType.SAMPLING_ITERATION, HookType.SAMPLING_LOOP_END])
async def test_after_a_win_a_failing_hook_is_logged_once_and_changes_nothing(when, error, caplog):
    class Late(Plugin):
        @hook(when)
        async def run(self, payload):
            if when is HookType.SAMPLING_LOOP_END or payload.slice.passed:
                raise error

    strategy = strategy_with(Late(), replies={1: after(1, "yes"), 4: "no"}, concurrency_budget=2)
    result = await strategy.sample("do", [yes])
    assert result.success
    assert result.stop_reason is StopReason.PASSED
    records = [r for r in caplog.records if "plugin Late" in r.getMessage()]
    assert len(records) == 1
    assert when in records[0].getMessage()
    assert records[0].sampling_id == result.sampling_id


async def test_at_the_end_a_failing_handler_does_not_keep_the_next_from_running(caplog):
    told = []

    @hook(HookType.SAMPLING_LOOP_END, priority=1)
    async def broken(payload):
        raise LookupError("bug")

    @hook(HookType.SAMPLING_LOOP_END, priority=2)
    async def sound(payload):
        told.append(payload.stop_reason)

    await strategy_with(broken, sound).sample("do", [yes])
    assert told == [StopReason.EXHAUSTED]
    assert "failed at sampling_loop_end: LookupError: bug" in caplog.text


# --- calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [HookMode.SEQUENTIAL, HookMode.OBSERVE])
async def test_a_caller_who_leaves_while_handlers_run_leaves_as_a_cancellation(mode):
    cut_short = []

    def handler(name):
        @hook(HookType.GENERATION_PRE_CALL, mode=mode)
        async def slow(payload):
            try:
                await anyio.sleep(4)
            except anyio.get_cancelled_exc_class():
                cut_short.append(name)
                raise

        return slow

    strategy = strategy_with(handler("a"), handler("b"), replies={1: "yes"})
    with anyio.move_on_after(1) as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught
    assert sorted(cut_short) == (["a"] if mode is HookMode.SEQUENTIAL else ["a", "b"])


@pytest.mark.parametrize("purpose", ["generate", "judge"])
@pytest.mark.parametrize("on_error", ["error", "fail", "raise"])
async def test_a_request_that_a_plugin_stopped_was_never_sent_whatever_on_error_says(
    purpose, on_error
):
    @hook(HookType.GENERATION_PRE_CALL)
    async def guard(payload):
        if payload.purpose == purpose:
            raise Blocked("not this one")

    with pytest.raises(Blocked, match="not this one") as caught:
        await strategy_with(guard).sample("do", [Requirement("be kind", on_error=on_error)])
    assert caught.value.result.usage.requests == (purpose == "judge")


class Slow(Plugin):
    """Fails at the last draw, when the call is long decided."""

    @hook(HookType.SAMPLING_ITERATION)
    async def looks(self, payload):
        await anyio.sleep(0.5)
        if payload.iteration == 2:
            raise ValueError("too late")


async def test_a_failure_after_the_decision_changes_nothing_even_if_nobody_has_won(caplog):
    divided = strategy_with(
        Slow(), replies={1: "one", 2: "two"}, loop_budget=2, selection=Vote(n=2, at_least=0.9)
    )
    result = await divided.sample("do")
    assert not result.success
    assert "after the call was decided: HookError: plugin Slow failed" in caplog.text


async def test_an_interrupt_in_a_background_handler_ends_the_call_at_once():
    class Interrupt(BaseException):
        pass

    @hook(HookType.SAMPLING_LOOP_START, mode=HookMode.BACKGROUND)
    async def strike(payload):
        await anyio.sleep(1)
        raise Interrupt

    begun = anyio.current_time()
    with pytest.raises(Interrupt):
        await strategy_with(strike, default=after(100, "yes")).sample("do", [yes])
    assert anyio.current_time() - begun == pytest.approx(1)


# --- calls that handlers make -----------------------------------------------------------------


@pytest.mark.parametrize("mode", HookMode)
@pytest.mark.parametrize("when", HookType)
async def test_a_handler_does_not_run_for_the_calls_that_it_makes(when, mode):
    asked = []
    recording = RecordingPlugin()

    class Asking(Plugin):
        @hook(when, mode=mode)
        async def ask(self, payload):
            asked.append(payload.sampling_id)
            failing = strategy_with(loop_budget=2, replies={2: InvalidRequest("no")})
            with pytest.raises(SamplingFailed):
                (await failing.sample("Is it good?", [yes])).unwrap()

    replies = {1: InvalidRequest("no")} if when is HookType.GENERATION_ERROR else {2: "yes"}
    call = strategy_with(replies=replies, loop_budget=2, retry=None)
    with PluginSet("house rules", [Asking(), recording]):
        with suppress(InvalidRequest):
            await call.sample("do", [yes])
        ids = {payload.sampling_id for payload in recording.payloads}
        assert len(set(asked)) == 1  # Only the outer call.
        assert len(ids) == 1 + len(asked)  # The other handlers see the inner calls, too.
        before = len(asked)
        with suppress(InvalidRequest):
            await strategy_with(replies=replies, loop_budget=2, retry=None).sample("do", [yes])
        assert len(asked) == 2 * before  # It is active again.
