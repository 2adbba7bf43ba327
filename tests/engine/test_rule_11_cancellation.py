"""Rule 11 of the engine: who leaves is let go."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest
from engine_kit import Unmetered, after, by_iteration, yes

from mellea_like import Generation, RejectionSamplingStrategy, Requirement, SamplingTimeout
from mellea_like.backends import ScriptedBackend
from mellea_like.backends.function import FunctionBackend
from mellea_like.errors import BackendUnavailable
from mellea_like.hooks import HookMode, HookType, hook
from mellea_like.limits import FallbackBackend, Retry, RetryBackend
from mellea_like.testing import RecordingPlugin

pytestmark = pytest.mark.anyio


@hook(HookType.SAMPLING_ITERATION, mode=HookMode.OBSERVE)
async def slow_hook(payload):
    await anyio.sleep(0.5)


@hook(HookType.SAMPLING_ITERATION, mode=HookMode.OBSERVE)
async def brief_hook(payload):
    await anyio.sleep(0.01)  # in real time


@pytest.mark.parametrize("plugins", [[], [slow_hook]], ids=["no hooks", "hooks"])
@pytest.mark.parametrize("selection", ["first", "ordered"])
@pytest.mark.parametrize("leave", [0, 0.5, 1, 1.5, 2, 2.5])
async def test_rule_11_a_cancelled_scope_catches_its_own_cancellation(
    virtual_clock, plugins, selection, leave
):
    backend = by_iteration({}, default=after(1, "no"))
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=5, concurrency_budget=2, plugins=plugins, selection=selection
    )
    with anyio.CancelScope(deadline=anyio.current_time() + leave) as scope:
        await strategy.sample("do", [yes])
        pytest.fail("it returned")
    assert scope.cancelled_caught
    assert backend.statistics().in_flight == 0


class Wrapping(Unmetered):
    """A backend that makes something else of its cancellation."""

    def __init__(self, ends):
        super().__init__(self.answer)
        self.ends = ends
        self.asked = 0

    async def answer(self, request):
        self.asked += 1
        try:
            await anyio.sleep(9)
        except BaseException as exc:
            if isinstance(self.ends, Generation):
                return self.ends
            raise self.ends from exc


SWALLOWED = [
    ConnectionError("lost"),
    ValueError("a bug"),
    BackendUnavailable("the connection broke"),
    Generation("no"),
    Generation("yes"),
]


def backends_of(ends):
    yield Wrapping(ends)
    yield RetryBackend(Wrapping(ends))
    yield FallbackBackend(Wrapping(ends), Wrapping(ends))


@pytest.mark.parametrize("plugins", [[], [brief_hook]], ids=["no hooks", "hooks"])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("ends", SWALLOWED, ids=repr)
def test_rule_11_a_backend_that_swallows_a_native_cancellation_does_not_defeat_it(
    ends, width, plugins
):
    async def main():
        for backend in backends_of(ends):
            strategy = RejectionSamplingStrategy(
                backend, loop_budget=3, concurrency_budget=width, plugins=plugins
            )
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await strategy.sample("do", [yes])
            first, *others = getattr(backend, "backends", [getattr(backend, "inner", backend)])
            assert first.asked == width
            # In a task of its own, what else is asked is cancelled again, at once.
            assert width == 2 or all(other.asked == 0 for other in others)

    asyncio.run(main())


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("ends", SWALLOWED, ids=repr)
async def test_rule_11_nor_does_it_defeat_a_scope(virtual_clock, ends, width):
    for backend in backends_of(ends):
        strategy = RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=width)
        with anyio.move_on_after(1) as scope:
            await strategy.sample("do", [yes])
        assert scope.cancelled_caught


@pytest.mark.parametrize("ends", SWALLOWED[:3], ids=repr)
async def test_rule_11_time_limits_that_a_backend_makes_errors_of_are_no_callers(
    virtual_clock, ends
):
    strategy = RejectionSamplingStrategy(
        Wrapping(ends), loop_budget=3, iteration_timeout=1, timeout=2.5, retry=None
    )
    with pytest.raises((type(ends), SamplingTimeout)):
        await strategy.sample("do", [yes])


async def cancelled_and_then(clean_up):
    """Cancel a task, which cleans up before it ends."""

    async def work():
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            await clean_up()
            raise

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_rule_11_a_call_while_its_task_cleans_up_after_a_cancellation_is_a_call_like_any():
    backend = by_iteration({1: BackendUnavailable("503"), 2: "no", 3: after(0.01, "yes")})
    strategy = RejectionSamplingStrategy(backend, retry=None)
    results = []

    async def clean_up():
        results.append(await strategy.sample("do", [yes]))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await RejectionSamplingStrategy(Wrapping(OSError("lost"))).sample("do", [yes])

    asyncio.run(cancelled_and_then(clean_up))
    [result] = results
    assert [str(s.outcome) for s in result.slices] == ["errored", "failed", "passed"]


def test_rule_11_requests_are_retried_while_a_task_cleans_up_after_a_cancellation():
    down = BackendUnavailable("503")
    policy = Retry(2, initial=0)
    strategies = [
        RejectionSamplingStrategy(ScriptedBackend([down, "good"]), loop_budget=1, retry=policy),
        RejectionSamplingStrategy(
            FallbackBackend(
                ScriptedBackend([down], cycle=True), ScriptedBackend([down, "good"]), retry=policy
            ),
            loop_budget=1,
        ),
    ]
    texts = []

    async def clean_up():
        texts.extend([(await strategy.sample("do")).text for strategy in strategies])

    asyncio.run(cancelled_and_then(clean_up))
    assert texts == ["good", "good"]


async def test_rule_11_a_lone_backends_group_of_cancellations_leaves_as_a_plain_one(virtual_clock):
    async def grouped(request):
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as exc:
            raise BaseExceptionGroup("a task group's", [exc]) from None

    left = []
    strategy = RejectionSamplingStrategy(Unmetered(grouped))
    with anyio.move_on_after(1) as scope:
        try:
            await strategy.sample("do", [yes])
        except anyio.get_cancelled_exc_class():
            left.append("plain")
            raise
    assert scope.cancelled_caught
    assert left == ["plain"]


@pytest.mark.parametrize("lanes", [1, 3])
async def test_rule_11_no_draw_starts_after_a_cancellation_that_its_backend_swallows(
    lanes, virtual_clock
):
    started = []

    async def deaf(request):
        started.append(anyio.current_time())
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5)
        return "no"

    strategy = RejectionSamplingStrategy(
        FunctionBackend(deaf), loop_budget=4, concurrency_budget=lanes
    )
    with anyio.move_on_after(1) as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught
    assert started == [0.0] * lanes


@pytest.mark.parametrize("lanes", [1, 3])
async def test_rule_11_no_draw_starts_after_a_check_has_cancelled_the_caller(lanes):
    late = []

    def leave(candidate):
        scope.cancel()
        return False

    async def answer(request):
        late.append(scope.cancel_called)
        return "no"

    strategy = RejectionSamplingStrategy(
        FunctionBackend(answer), loop_budget=4, concurrency_budget=lanes
    )
    with anyio.CancelScope() as scope:
        await strategy.sample("do", [Requirement("leave", leave, inline=True)])
    assert scope.cancelled_caught
    assert not any(late)


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("first", ["cancellation", "replies"])
async def test_rule_11_no_draw_starts_after_a_cancellation_that_comes_with_the_replies(
    first, swallows
):
    # trio runs the tasks that are ready in a random order: the lanes may come before the caller.
    never = Requirement("never", lambda _: False, inline=True)
    for _ in range(20):
        replies, late, asked = anyio.Event(), [], []

        async def answer(request, replies=replies, late=late, asked=asked):
            asked.append(request)
            if replies.is_set():
                late.append(request)
            try:
                await replies.wait()
            except anyio.get_cancelled_exc_class():
                if not swallows:
                    raise
            return Generation("no")

        strategy = RejectionSamplingStrategy(Unmetered(answer), loop_budget=4, concurrency_budget=3)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(strategy.sample, "do", [never])
            while len(asked) < 3:
                await anyio.lowlevel.checkpoint()
            steps = [tasks.cancel_scope.cancel, replies.set]
            for step in steps if first == "cancellation" else reversed(steps):
                step()
        assert (len(asked), late) == (3, [])


async def test_rule_11_a_backends_own_cancellation_while_the_caller_leaves_stays_in_the_scope():
    async def stray(request):
        scope.cancel()
        raise asyncio.CancelledError  # On trio nobody can make trio's by hand.

    strategy = RejectionSamplingStrategy(FunctionBackend(stray))
    with anyio.CancelScope() as scope:
        await strategy.sample("do", [yes])
    assert scope.cancelled_caught


@pytest.mark.parametrize("where", ["backend", "inline", "async"])
@pytest.mark.parametrize("lanes", [1, 2])
async def test_rule_11_an_interrupt_cancels_all_draws_and_leaves_as_it_is(
    virtual_clock, where, lanes
):
    recording = RecordingPlugin()

    async def stop(candidate):
        raise SystemExit

    def stop_inline(candidate):
        raise SystemExit

    check = {
        "backend": yes,
        "inline": Requirement("stop", stop_inline, inline=True),
        "async": Requirement("stop", stop),
    }[where]
    backend = by_iteration(
        {1: after(1, SystemExit if where == "backend" else "yes")}, default=after(2, "yes")
    )
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=lanes, plugins=[recording])
    with pytest.raises(SystemExit):
        await strategy.sample("do", [check])
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    assert [s.outcome for s in end.slices] == ["cancelled"] * lanes
    assert isinstance(end.slices[0].error, SystemExit)
