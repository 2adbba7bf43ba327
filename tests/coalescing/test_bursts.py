"""`bursts`: what a source gives, gathered until it is quiet, and always delivered."""

from __future__ import annotations

import asyncio
import math

import anyio
import pytest
from timed_source import Source

from mellea_like.coalescing import Burst, bursts
from mellea_like.coalescing.gathering import Window
from mellea_like.coalescing.rerun.bursts import Gathering
from mellea_like.errors import CoalescingError

pytestmark = pytest.mark.anyio


async def gathered(source, **more) -> list[tuple[float, Burst]]:
    async with bursts(source, **more) as stream:
        return [(anyio.current_time(), burst) async for burst in stream]


# --- how a burst ends -----------------------------------------------------------------------------


async def test_a_burst_ends_on_quiet(virtual_clock):
    source = Source((0, "a"), (0.4, "b"), (0.8, "c"), (3, "d"), (9, "e"))
    assert await gathered(source(), quiet=0.5) == [
        (1.3, (("a", "b", "c"), False, "quiet", 3)),
        (3.5, (("d",), False, "quiet", 4)),
        (9, (("e",), False, "end", 5)),
    ]


async def test_a_burst_ends_on_the_cap_under_a_steady_stream(virtual_clock):
    source = Source(*((number / 4, number) for number in range(20)))
    found = await gathered(source(), quiet=0.5, max_wait=2)
    assert [(at, burst.ended_by) for at, burst in found] == [
        (2, "cap"),
        (pytest.approx(4.25, abs=0.26), "cap"),
        (4.75, "end"),
    ]
    assert [item for _, burst in found for item in burst.items] == list(range(20))


async def test_a_burst_ends_on_an_urgent_item(virtual_clock):
    source = Source((0, 1), (0.1, 99), (0.2, 2), end="never")
    async with bursts(source(), urgent=lambda item: item > 50) as stream:
        burst = await anext(stream)
        assert (virtual_clock.now, burst) == (0.1, ((1, 99), False, "urgent", 2))
        assert (await anext(stream)).ended_by == "quiet"


async def test_what_was_gathered_is_delivered_before_the_end(virtual_clock):
    assert await gathered(Source((0, "a"), (0.1, "b"))()) == [(0.1, (("a", "b"), False, "end", 2))]
    assert await gathered(Source()()) == []


async def test_what_was_gathered_is_delivered_on_shutdown(virtual_clock):
    source = Source((0, "a"), (0.1, "b"), end="never")
    async with bursts(source()) as stream, anyio.create_task_group() as tasks:

        @tasks.start_soon
        async def stop():
            await anyio.sleep(0.2)
            stream.stop()
            stream.stop()

        found = [(virtual_clock.now, burst) async for burst in stream]
        assert source.closed
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert found == [(0.2, (("a", "b"), False, "shutdown", 2))]


async def test_a_shutdown_in_the_midst_of_the_work_delivers_the_rest(virtual_clock):
    source = Source((0, "a"), (1, "b"), end="never")
    found = []
    async with bursts(source(), quiet=0.5) as stream:
        async for burst in stream:
            found.append(burst)
            await anyio.sleep(0.8)
            stream.stop()
    assert found == [(("a",), False, "quiet", 1), (("b",), False, "shutdown", 2)]


async def test_what_was_gathered_is_delivered_before_what_the_source_raises(virtual_clock):
    source = Source((0, "a"), (0.1, "b"), end=OSError("broken"))
    async with bursts(source()) as stream:
        assert await anext(stream) == (("a", "b"), False, "end", 2)
        with pytest.raises(OSError, match="broken"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("which", ["urgent", "position"])
async def test_what_urgent_or_position_raise_comes_after_the_item(virtual_clock, which):
    source = Source((0, 1), (0.1, "two"), (0.2, 3))
    async with bursts(source(), **{which: lambda item: item + 0 > 100}) as stream:
        assert (await anext(stream)).items == (1, "two")
        with pytest.raises(TypeError):
            await anext(stream)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_nobody_asked_for_is_an_error():
    async def source():
        yield 1
        raise asyncio.CancelledError

    async with bursts(source()) as stream:
        assert (await anext(stream)).items == (1,)
        with pytest.raises(CoalescingError, match="though nobody asked for that"):
            await anext(stream)


# --- while the consumer works ---------------------------------------------------------------------


async def test_the_next_burst_is_gathered_meanwhile(virtual_clock):
    source = Source(*((number, number) for number in range(10)))
    found = []
    async with bursts(source(), quiet=0.5) as stream:
        async for burst in stream:
            found.append((virtual_clock.now, burst.items))
            await anyio.sleep(4)
    assert found == [(0.5, (0,)), (4.5, (1, 2, 3, 4)), (8.5, (5, 6, 7, 8)), (12.5, (9,))]


async def test_overflow_drops_newcomers_and_asks_for_a_rescan(virtual_clock):
    source = Source(*((0, number) for number in range(10)), (3, "later"))
    async with bursts(source(), max_items=4) as stream:
        assert await anext(stream) == ((0, 1, 2, 3), True, "quiet", 10)
        assert stream.statistics() == (10, 1, 6, 0)
        assert await anext(stream) == (("later",), False, "end", 11)


async def test_an_urgent_item_finds_room_once(virtual_clock):
    source = Source((0, 1), (0, 2), (0, 99), (0, 98), end="never")
    async with bursts(source(), max_items=1, urgent=lambda item: item > 50) as stream:
        await anyio.sleep(1)
        assert await anext(stream) == ((1, 99), True, "urgent", 4)


async def test_a_cancelled_wait_loses_nothing(virtual_clock):
    source = Source((0, "a"), (2, "b"), end="never")
    async with bursts(source(), quiet=1) as stream:
        with anyio.move_on_after(0.5):
            await anext(stream)
        assert await anext(stream) == (("a",), False, "quiet", 1)
        with anyio.move_on_after(0.5):
            await anext(stream)
        assert await anext(stream) == (("b",), False, "quiet", 2)


async def test_a_source_that_never_waits_keeps_nobody_waiting(virtual_clock):
    async def eager():
        for number in range(1000):
            yield number

    turns = 0
    async with bursts(eager()) as stream:
        while stream.statistics().items < 1000:
            await anyio.lowlevel.checkpoint()
            turns += 1
    assert turns > 100


# --- the cursor -----------------------------------------------------------------------------------


async def test_the_cursor_advances_only_past_what_was_processed(virtual_clock):
    source = Source((0, 10), (1, 20), (2, 30), end="never")
    async with bursts(source(), quiet=0.2, position=lambda item: item) as stream:
        assert stream.cursor is None
        assert (await anext(stream)).cursor == 10
        assert stream.cursor is None
        assert (await anext(stream)).cursor == 20
        assert stream.cursor == 10
        stream.processed()
        assert stream.cursor == 20
        stream.processed()
        async for burst in stream:
            assert burst.cursor == 30
            assert stream.cursor == 20
            break
    assert stream.cursor == 20


async def test_the_cursor_stays_where_the_consumer_failed(virtual_clock):
    source = Source((0, "a"), (1, "b"), end="never")
    with pytest.raises(KeyError):
        async with bursts(source(), quiet=0.2) as stream:
            async for burst in stream:
                if burst.items == ("b",):
                    raise KeyError
    assert stream.cursor == 1


# --- leaving --------------------------------------------------------------------------------------


async def test_it_may_be_left_by_break(virtual_clock):
    source = Source((0, "a"), end="never")
    async with bursts(source()) as stream:
        async for _ in stream:
            break
    assert source.closed
    assert virtual_clock.now == 0.5


async def test_it_may_be_left_before_anything_came(virtual_clock):
    source = Source(end="never")
    async with bursts(source()):
        pass
    async with bursts(source()):
        await anyio.sleep(1)
    assert source.closed
    assert virtual_clock.now == 1


async def test_what_the_block_raises_leaves_as_it_is(virtual_clock):
    with pytest.raises(KeyError):
        async with bursts(Source(end="never")()) as stream:
            with anyio.move_on_after(1):
                await anext(stream)
            raise KeyError


async def test_an_outer_cancellation_leaves_as_one(virtual_clock):
    source = Source((0, "a"), end="never")
    with anyio.move_on_after(2) as scope:
        async with bursts(source()) as stream:
            async for _ in stream:
                pass
    assert scope.cancelled_caught
    assert source.closed
    assert virtual_clock.now == 2


async def test_a_source_that_is_no_generator_is_left_open(virtual_clock):
    send, receive = anyio.create_memory_object_stream[int](10)
    async with send, receive:
        send.send_nowait(1)
        async with bursts(receive) as stream:
            assert (await anext(stream)).items == (1,)
        send.send_nowait(2)
        assert receive.receive_nowait() == 2


async def test_it_is_entered_first_and_once(virtual_clock):
    source = Source((0, "a"))()
    stream = bursts(source)
    with pytest.raises(RuntimeError, match="async with bursts"):
        await anext(stream)
    async with stream:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        await stream.__aenter__()


async def test_two_tasks_at_once_are_told(virtual_clock):
    async with bursts(Source((5, "a"))()) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(stream.__anext__)
        await anyio.sleep(1)
        with pytest.raises(anyio.BusyResourceError, match="waiting for a burst"):
            await anext(stream)


@pytest.mark.parametrize(
    ("source", "wrong", "error", "says"),
    [
        ([1, 2], {}, TypeError, "takes an async iterable, not"),
        (None, {}, TypeError, "takes an async iterable, not None"),
        ("source", {"quiet": -1}, ValueError, "quiet is at least 0 seconds and finite, not -1"),
        (
            "source",
            {"quiet": math.nan},
            ValueError,
            "quiet is at least 0 seconds and finite, not nan",
        ),
        (
            "source",
            {"max_wait": math.inf},
            ValueError,
            "max_wait is at least 0 seconds and finite, not inf",
        ),
        ("source", {"max_items": 0}, ValueError, "max_items is at least 1"),
        ("source", {"urgent": gathered}, TypeError, "urgent is a plain function"),
        ("source", {"position": 3}, TypeError, "position is a plain function"),
    ],
)
async def test_wrong_arguments_are_told(source, wrong, error, says):
    given_source = Source()() if source == "source" else source
    with pytest.raises(error, match=says):
        bursts(given_source, **wrong)
    if source == "source":
        await given_source.aclose()


# --- the decision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("came", "closed", "due", "ended_by"),
    [
        ([], None, math.inf, None),
        ([0], None, 1, "quiet"),
        ([0, 0.5], None, 1.5, "quiet"),
        ([0, 0.9, 1.8, 2.7], None, 3, "cap"),
        ([0, 2], None, 3, "quiet"),
        ([0, 0.5, -0.6], None, -math.inf, "urgent"),
        ([0, 0.5, -0.6], "shutdown", -math.inf, "urgent"),
        ([0, 0.5], "end", 1.5, "end"),
        ([0, 0.5], "shutdown", 1.5, "shutdown"),
    ],
)
def test_when_a_burst_ends_and_why(came, closed, due, ended_by):
    gathering: Gathering[float] = Gathering(Window(1, 3), 10)
    for at in came:
        assert gathering.add(at, abs(at), at, urgent=at < 0)
    assert gathering.due_at() == due
    if ended_by:
        assert gathering.take(closed) == (tuple(came), False, ended_by, came[-1])
        assert gathering.due_at() == math.inf


async def test_one_that_is_stopped_before_it_is_entered_reads_nothing(virtual_clock):
    source = Source((0, "a"), end="never")
    stream = bursts(source())
    stream.stop()
    async with stream:
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert stream.statistics().items == 0
