"""The progress callback."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import pytest
from engine_kit import after, by_iteration, yes

from mellea_like import BestOf, Collect, RejectionSamplingStrategy
from mellea_like.errors import HookError
from mellea_like.hooks import HookType, hook

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_its_exception_ends_the_call_and_is_raised(form):
    class Enough(Exception):
        pass

    def stop(slice_):
        raise Enough

    async def stop_async(slice_):
        await anyio.sleep(0.1)
        raise Enough

    backend = by_iteration({1: after(1, "no")}, default=after(9, "no"))
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=3)
    with pytest.raises(Enough):
        await strategy.sample("do", [yes], on_slice=stop if form == "sync" else stop_async)
    assert anyio.current_time() < 2
    assert backend.statistics().in_flight == 0


async def test_its_exception_after_a_pass_is_logged_and_changes_nothing(caplog):
    def complain(slice_):
        raise LookupError("too late")

    backend = by_iteration({1: after(1, "yes")}, default=after(9, "no"))
    result = await RejectionSamplingStrategy(backend, concurrency_budget=2).sample(
        "do", [yes], on_slice=complain
    )
    assert result.success
    messages = [r.getMessage() for r in caplog.records]
    assert messages == ["after the call was decided: LookupError: too late"] * 2
    assert {r.sampling_id for r in caplog.records} == {result.sampling_id}


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("who", ["callback", "plugin"])
@pytest.mark.parametrize(
    ("selection", "raises"), [(Collect(4), True), (BestOf(lambda _: 1, n=4, inline=True), False)]
)
async def test_its_exception_on_the_last_draw_is_raised_unless_there_is_an_answer(
    selection, raises, who, concurrency, caplog
):
    bug, ends = LookupError("on the last draw"), []

    def complain(slice_):
        if slice_.iteration == 4:
            raise bug

    @hook(HookType.SAMPLING_ITERATION)
    async def told(payload):
        complain(payload.slice)

    @hook(HookType.SAMPLING_LOOP_END)
    async def end(payload):
        ends.append((payload.success, payload.error))

    backend = by_iteration({4: after(9, "no")}, default=after(1, "yes"))
    strategy = RejectionSamplingStrategy(
        backend,
        loop_budget=4 // concurrency,
        concurrency_budget=concurrency,
        selection=selection,
        plugins=[end, told] if who == "plugin" else [end],
    )
    sampling = partial(strategy.sample, "do", [yes])
    if who == "callback":
        sampling = partial(sampling, on_slice=complain)
    if not raises:
        assert (await sampling()).value == "yes"
        assert "after the call was decided: " in caplog.text
        assert ends == [(True, None)]
        return
    with pytest.raises(LookupError if who == "callback" else HookError) as caught:
        await sampling()
    assert bug in (caught.value, caught.value.__cause__)
    assert ends == [(False, caught.value)]
    if who == "plugin":
        assert len(caught.value.result.candidates) == 3
        assert not caught.value.result.success


async def test_of_several_exceptions_after_the_last_draw_none_takes_an_answer_away(caplog):
    async def complain(slice_):
        await anyio.sleep(0.1)
        raise LookupError(f"of {slice_.iteration}")

    backend = by_iteration({4: after(1, "no")}, default=after(1, "yes"))
    made = {"loop_budget": 1, "concurrency_budget": 4}
    strategy = RejectionSamplingStrategy(
        backend, selection=BestOf(lambda _: 1, n=4, inline=True), **made
    )
    result = await strategy.sample("do", [yes], on_slice=complain)
    assert result.value == "yes"
    logged = [r.getMessage() for r in caplog.records if "decided" in r.getMessage()]
    assert sorted(logged) == [
        f"after the call was decided: LookupError: of {i}" for i in range(1, 5)
    ]
    # Without an answer, the first is raised, and the others are logged.
    caplog.clear()
    with pytest.raises(LookupError, match="of") as caught:
        await RejectionSamplingStrategy(backend, selection=Collect(4), **made).sample(
            "do", [yes], on_slice=complain
        )
    logged = [r.getMessage() for r in caplog.records if "decided" in r.getMessage()]
    assert len(logged) == 3
    assert str(caught.value) not in " ".join(logged)


async def test_a_listener_hears_of_a_slice_at_which_a_plugin_fails():
    heard = []

    @hook(HookType.SAMPLING_ITERATION)
    async def broken(payload):
        if payload.slice.passed:
            raise LookupError("bug")

    backend = by_iteration({2: "yes"}, default="no")
    strategy = RejectionSamplingStrategy(backend, plugins=[broken])
    result = await strategy.sample("do", [yes], on_slice=heard.append)
    assert result.success
    assert heard == list(result.slices)


async def test_what_is_no_function_is_refused_before_the_first_request():
    backend = by_iteration({})
    with pytest.raises(TypeError, match="on_slice must be a function of one slice, not 3"):
        await RejectionSamplingStrategy(backend).sample("do", [yes], on_slice=3)
    assert backend.requests == []


@pytest.mark.parametrize("form", ["async", "sync", "object"])
async def test_a_generator_would_never_run_and_is_refused_before_the_first_request(form):
    async def asynchronous(slice_):
        yield slice_

    class Callable:
        def __call__(self, slice_):
            yield slice_

    odd = {"async": asynchronous, "sync": Callable.__call__.__get__(0), "object": Callable()}[form]
    backend = by_iteration({})
    with pytest.raises(TypeError, match="on_slice is a generator function, which would never run"):
        await RejectionSamplingStrategy(backend).sample("do", [yes], on_slice=odd)
    assert backend.requests == []


async def test_a_cancellation_that_no_one_asked_for_is_an_error_of_the_callback():
    def odd(slice_):
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="on_slice raised a cancellation that no one asked for"):
        await RejectionSamplingStrategy(by_iteration({})).sample("do", [yes], on_slice=odd)


class Listener:
    def __init__(self, fails=False):
        self.heard = []
        self.fails = fails

    def __call__(self, slice_):
        self.heard.append((slice_, anyio.current_time()))
        if self.fails:
            raise ValueError("not this one")


async def test_a_listener_hears_of_each_slice_as_it_is_recorded_also_when_the_caller_leaves():
    listener = Listener()
    backend = by_iteration({1: after(1, "no"), 2: after(9, "yes"), 3: after(4, "no")})
    strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=2)
    with anyio.move_on_after(6):
        await strategy.begin("do", [yes]).run(heard=listener)
    assert [(s.iteration, str(s.outcome), at) for s, at in listener.heard] == [
        (1, "failed", 1),
        (3, "failed", 4),
        (4, "failed", 4),
        (2, "cancelled", 6),
    ]


async def test_a_listeners_exception_ends_the_call():
    listener = Listener(fails=True)
    strategy = RejectionSamplingStrategy(by_iteration({}), loop_budget=3)
    with pytest.raises(ValueError, match="not this one"):
        await strategy.begin("do", [yes]).run(heard=listener)
    assert len(listener.heard) == 1
