"""`RerunGate`: one tick for all who ask meanwhile, never two at a time."""

from __future__ import annotations

import gc
import math
from contextlib import nullcontext
from datetime import UTC, datetime

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mellea_like.coalescing import RerunGate, Tick, Ticket
from mellea_like.coalescing.rerun.gate import MAX_REASONS, Submission
from mellea_like.errors import ShutdownError

pytestmark = pytest.mark.anyio


class Ticks:
    """A tick that takes its time, and notes when and for what it ran."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.began: list[tuple[float, tuple[str, ...]]] = []
        self.ended: list[float] = []
        self.fail: list[Exception | None] = []

    async def __call__(self, tick: Tick) -> int:
        self.began.append((anyio.current_time(), tick.reasons))
        await anyio.sleep(self.seconds)
        error = self.fail.pop(0) if self.fail else None
        if error is not None:
            raise error
        self.ended.append(anyio.current_time())
        return tick.number


class Requests:
    """Requests at given times; notes when each came back, and with what."""

    def __init__(self, gate: RerunGate[int]) -> None:
        self.gate = gate
        self.back: dict[str, tuple[float, object]] = {}

    async def ask(self, at: float, name: str, **more) -> None:
        await anyio.sleep_until(at)
        try:
            got: object = await self.gate.request(name, **more)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is noted)
            got = error
        self.back[name] = anyio.current_time(), got

    async def all(self, *asked: tuple[float, str]) -> None:
        async with anyio.create_task_group() as tasks:
            for at, name in asked:
                tasks.start_soon(self.ask, at, name)


# --- queue --------------------------------------------------------------------------------------


async def test_ticks_that_never_wait_keep_nobody_waiting(virtual_clock):
    async def tick(tick):
        if tick.number < 1000:
            gate.poke()

    turns = 0
    async with RerunGate(tick) as gate:
        gate.poke()
        while gate.status().ticks < 1000:
            await checkpoint()
            turns += 1
    assert turns > 100


async def test_a_tick_that_would_wait_for_its_own_end_is_told(virtual_clock):
    async def tick():
        await gate.request("myself")

    async with RerunGate(tick, name="mine") as gate:
        with pytest.raises(RuntimeError, match=r"the tick of mine can't wait .* use poke"):
            await gate.request()


# --- ignore and restart -----------------------------------------------------------------------


async def test_restart_cancels_the_tick_and_the_next_one_answers_all(virtual_clock):
    tick = Ticks()
    async with RerunGate(tick, on_busy="restart") as gate:
        asked = Requests(gate)
        await asked.all((0, "old"), (0.4, "new"))
    assert tick.began == [(0, ("old",)), (0.4, ("old", "new"))]
    assert tick.ended == [1.4]
    assert asked.back == {"old": (1.4, 2), "new": (1.4, 2)}
    assert gate.status().coalesced == 1


async def test_a_request_that_left_before_the_restart_is_not_answered(virtual_clock):
    tick = Ticks()
    async with RerunGate(tick, on_busy="restart") as gate:
        with anyio.move_on_after(0.2):
            await gate.request("gone")
        await anyio.sleep(0.2)
        await gate.request("here")
    assert tick.began == [(0, ("gone",)), (0.4, ("here",))]


# --- errors -----------------------------------------------------------------------------------


async def test_an_error_goes_to_who_requested_the_tick_and_frees_the_place(virtual_clock, caplog):
    tick = Ticks()
    tick.fail = [ValueError("broken"), None]
    async with RerunGate(tick) as gate:
        asked = Requests(gate)
        await asked.all((0, "a"), (0, "b"), (0.5, "c"))
        assert not gate.in_flight
    for name in "ab":
        assert asked.back[name][0] == 1
        assert isinstance(asked.back[name][1], ValueError)
    assert asked.back["c"] == (2, 2)
    assert gate.status().failed == 1
    assert not caplog.records


async def test_a_tick_that_is_no_async_function_says_so(virtual_clock):
    async with RerunGate(lambda: 3) as gate:  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match="must be an async function; it returned 3"):
            await gate.request()


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"reason": ["a.txt"]}, TypeError, "a reason must be a string, not \\['a.txt'\\]"),
        ({"deadline": "soon"}, TypeError, "a request's deadline must be a number"),
        ({"deadline": math.nan}, ValueError, "a request's deadline"),
    ],
)
async def test_a_wrong_request_is_refused_and_nothing_comes_of_it(
    virtual_clock, arguments, kind, says
):
    async with RerunGate(Ticks()) as gate:
        with pytest.raises(kind, match=says):
            await gate.request(**arguments)
        with pytest.raises(TypeError, match="a reason must be a string"):
            gate.poke(3)
        assert gate.status().pending == 0
        assert await gate.request("a.txt") == 1


# --- how it is called, and what it shows --------------------------------------------------------


async def test_the_status_shows_the_coalescing_state(virtual_clock):
    tick = Ticks(seconds=1)
    async with RerunGate(tick, min_interval=5) as gate:
        assert gate.status() == (False, 0, 0, 0, 0, "", None, 0, 0)
        began = datetime.now(UTC)
        gate.poke("a")
        assert gate.status()[:6] == (False, 1, 0, 0, 0, "")
        await anyio.sleep(0.5)
        assert gate.status()[:6] == (True, 0, 0, 0, 1, "a")
        assert gate.in_flight
        first = gate.status().last_event
        gate.poke("b")
        gate.poke("c")
        assert gate.status()[:6] == (True, 2, 4.5, 0, 1, "a")
        assert began <= first <= gate.status().last_event <= datetime.now(UTC)
        await anyio.sleep(2)
        assert gate.status()[:6] == (False, 2, 2.5, 0, 1, "a")
        await anyio.sleep(5)
        assert gate.status()[:6] == (False, 0, 0, 1, 2, "b")


async def test_the_status_is_told_when_something_is_submitted_begins_and_ends(
    virtual_clock, caplog
):
    told = []

    def tell(status):
        told.append((status.in_flight, status.pending, status.ticks))
        raise ValueError("the listener is broken")

    async with RerunGate(Ticks(seconds=1), on_status=tell) as gate:
        gate.poke("a")
        await anyio.sleep(0.5)
        await gate.request("b")
    submitted, ended = (False, 1, 0), (False, 0, 2)
    assert told == [submitted, (True, 0, 1), (True, 1, 1), (False, 1, 1), (True, 0, 2), ended]
    assert "on_status of rerun failed: ValueError: the listener is broken" in caplog.text
    with pytest.raises(TypeError, match="on_status must be a plain function"):
        RerunGate(Ticks(), on_status=gate.request)


async def test_reasons_are_bounded(virtual_clock):
    seen = []

    async def tick(tick):
        seen.append(tick)

    async with RerunGate(tick) as gate:
        for number in range(1000):
            gate.poke(str(number))
    ((_, reasons, submissions),) = seen
    assert reasons == tuple(map(str, range(MAX_REASONS)))
    assert submissions == 1000


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"tick": None}, TypeError, "tick must be an async function, not None"),
        (
            {"on_busy": "wait"},
            ValueError,
            "on_busy must be 'queue', 'ignore' or 'restart', not 'wait'",
        ),
        (
            {"min_interval": -1},
            ValueError,
            "min_interval must be at least 0 seconds and finite, not -1",
        ),
        ({"max_wait": math.nan}, ValueError, "max_wait must be at least 0 seconds, not nan"),
        ({"state": 7}, TypeError, "state must be the name of a file, not 7"),
    ],
)
def test_wrong_arguments_are_told(wrong, error, says):
    with pytest.raises(error, match=says):
        RerunGate(**{"tick": Ticks(), **wrong})


# --- those who leave, and the end ---------------------------------------------------------------


async def test_s4_nobody_waits_for_a_block_that_takes_its_time_to_end(virtual_clock):
    gate = RerunGate(Ticks(seconds=10))
    asked = Requests(gate)
    async with anyio.create_task_group() as outside:
        with anyio.move_on_after(2):
            async with gate:
                outside.start_soon(asked.all, (0, "in flight"), (1, "queued"))
                try:
                    await anyio.sleep(100)
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(5)
    assert [(at, type(got)) for at, got in asked.back.values()] == [(2, ShutdownError)] * 2


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
