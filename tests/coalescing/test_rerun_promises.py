"""What all coalescers promise, S1 to S8, kept by `RerunGate`."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like.coalescing import RerunGate, Tick
from mellea_like.coalescing.rerun.gate import Submission
from mellea_like.coalescing.ticket import Ticket
from mellea_like.errors import Expired, ShutdownError

pytestmark = pytest.mark.anyio


class Gated:
    """A tick that lasts as long as it is told to, 1 s by default."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.began: list[float] = []
        self.cancelled: list[float] = []

    async def __call__(self, tick: Tick) -> int:
        self.began.append(anyio.current_time())
        try:
            await anyio.sleep(self.seconds.pop(0) if self.seconds else 1.0)
        except BaseException:
            self.cancelled.append(anyio.current_time())
            raise
        return tick.number


class Outcomes:
    """Requests side by side; each outcome is noted once, with its time."""

    def __init__(self, gate: RerunGate[int]) -> None:
        self.gate = gate
        self.seen: list[tuple[str, float, object]] = []

    async def ask(self, name: str, at: float = 0.0, **more) -> None:
        await anyio.sleep_until(at)
        try:
            got: object = await self.gate.request(name, **more)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is noted)
            got = type(error)
        self.seen.append((name, anyio.current_time(), got))


# --- S1, S2 ---------------------------------------------------------------------------------------


async def test_s2_the_tick_runs_in_the_gates_own_task_and_outlives_its_requester(virtual_clock):
    tasks_seen = []

    async def tick():
        tasks_seen.append(anyio.get_current_task())
        await anyio.sleep(1)
        tasks_seen.append(None)

    async with RerunGate(tick, name="mine") as gate:
        with anyio.move_on_after(0.5):
            await gate.request()
        here = anyio.get_current_task()
        assert tasks_seen[0].id != here.id
        assert tasks_seen[0].name == "ticks of mine"
        assert tasks_seen[0].parent_id == here.id
        await anyio.sleep(1)
    assert tasks_seen[1:] == [None]


async def test_the_span_of_a_tick_links_to_those_who_asked_and_stands_in_none(
    virtual_clock, monkeypatch
):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    tracer = provider.get_tracer("test")
    inside = []

    async def tick():
        inside.append(trace.get_current_span().get_span_context().span_id)

    async def ask():
        with tracer.start_as_current_span("caller"):
            await gate.request()

    async with RerunGate(tick, name="mine") as gate, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        tasks.start_soon(gate.request)
    spans = exporter.get_finished_spans()
    (shared_one,) = [span for span in spans if span.name == "rerun_tick"]
    callers = {span.context.span_id for span in spans if span.name == "caller"}
    assert shared_one.parent is None
    assert {link.context.span_id for link in shared_one.links} == callers
    assert len(callers) == 2
    assert dict(shared_one.attributes) == {"mellea_like.gate": "mine", "mellea_like.tick": 1}
    assert inside == [shared_one.context.span_id]


# --- S3 -------------------------------------------------------------------------------------------


async def test_s3_a_tick_under_way_goes_on_without_anybody(virtual_clock):
    tick = Gated()
    async with RerunGate(tick) as gate:
        with anyio.move_on_after(0.5):
            await gate.request()
        await anyio.sleep(1)
    assert not tick.cancelled
    assert virtual_clock.now == 1.5


# --- S4 -------------------------------------------------------------------------------------------


async def test_s4_nobody_waits_for_a_block_that_takes_its_time_to_end(virtual_clock):
    gate = RerunGate(Gated(10))
    outcomes = Outcomes(gate)
    async with anyio.create_task_group() as outside:
        with anyio.move_on_after(2):
            async with gate:
                outside.start_soon(outcomes.ask, "in flight")
                outside.start_soon(outcomes.ask, "queued", 1)
                try:
                    await anyio.sleep(100)
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(5)
    assert {at for _, at, _ in outcomes.seen} == {2}
    assert {got for _, _, got in outcomes.seen} == {ShutdownError}


# --- S5 -------------------------------------------------------------------------------------------


async def test_s5_a_restart_while_draining_still_answers_everyone(virtual_clock):
    tick = Gated(5, 1)
    gate = RerunGate(tick, on_busy="restart")
    outcomes = Outcomes(gate)
    async with anyio.create_task_group() as outside, gate:
        outside.start_soon(outcomes.ask, "old")
        outside.start_soon(outcomes.ask, "new", 0.5)
        await anyio.sleep_until(0.5)
        await anyio.wait_all_tasks_blocked()
    assert sorted(outcomes.seen) == [("new", 1.5, 2), ("old", 1.5, 2)]


async def test_s5_abort_while_the_interval_is_waited_for(virtual_clock):
    gate = RerunGate(Gated(1), min_interval=100)
    outcomes = Outcomes(gate)
    async with anyio.create_task_group() as outside, gate:
        await gate.request()
        outside.start_soon(outcomes.ask, "queued", 2)
        await anyio.sleep(5)
        await gate.abort()
    assert outcomes.seen == [("queued", 6, ShutdownError)]


async def test_s5_what_a_tick_raises_after_the_abort_is_logged(virtual_clock, caplog):
    async def tick():
        try:
            await anyio.sleep(10)
        finally:
            raise OSError("while it was cleaning up")

    outcomes = Outcomes(gate := RerunGate(tick))
    async with anyio.create_task_group() as outside, gate:
        outside.start_soon(outcomes.ask, "in flight")
        await anyio.sleep(1)
        await gate.abort()
    assert outcomes.seen == [("in flight", 1, ShutdownError)]
    assert "while it was cleaning up" in caplog.text


# --- S6, S8 -----------------------------------------------------------------------------------


async def test_s6_the_oldest_request_is_answered_in_time_under_a_steady_stream(virtual_clock):
    gate = RerunGate(Gated(*[1] * 99), min_interval=3, on_busy="restart", max_wait=5)
    outcomes = Outcomes(gate)
    async with gate, anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(outcomes.ask, str(number), number / 2)
    for name, at, got in outcomes.seen:
        assert isinstance(got, int)
        # At the latest: what may restart, the rest of the interval, and a tick of its own.
        assert at - int(name) / 2 <= 5 + 3 + 1 + 1


async def test_s8_one_that_expires_as_the_tick_would_begin_is_not_sent(virtual_clock):
    tick = Gated()
    gate = RerunGate(tick, min_interval=5)
    outcomes = Outcomes(gate)
    async with gate, anyio.create_task_group() as tasks:
        tasks.start_soon(outcomes.ask, "first")
        await anyio.sleep(2)
        tasks.start_soon(lambda: outcomes.ask("just not", deadline=5))
    assert sorted(outcomes.seen) == [("first", 1, 1), ("just not", 5, Expired)]
    assert tick.began == [0]


async def test_s8_a_deadline_holds_for_the_tick_too_which_goes_on(virtual_clock):
    tick = Gated(10)
    async with RerunGate(tick) as gate:
        with pytest.raises(Expired, match="passed before a tick answered it"):
            await gate.request(deadline=4)
        assert virtual_clock.now == 4
        assert gate.in_flight
    assert not tick.cancelled


async def test_nothing_of_a_request_waits_for_the_garbage_collector(virtual_clock):
    async def tick(tick):
        if tick.number % 2:
            raise OSError("odd")

    def left() -> int:
        return sum(isinstance(thing, Submission | Ticket) for thing in gc.get_objects())

    gc.collect()
    before = left()  # The errors of other tests have kept some.
    gc.disable()
    try:
        async with RerunGate(tick) as gate:
            for number in range(10):
                with nullcontext() if number % 2 else pytest.raises(OSError, match="odd"):
                    await gate.request()
            assert left() == before
    finally:
        gc.enable()
