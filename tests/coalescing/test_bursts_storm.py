"""Whatever comes when, however long the consumer takes: bursts lose nothing, and end in time."""

from __future__ import annotations

import logging
import os

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timed_source import Source

from mellea_like.coalescing import Burst, bursts
from mellea_like.testing import run_virtual

STORM = bool(os.environ.get("STORM"))

pytestmark = pytest.mark.timeout(600)

times = st.integers(0, 40).map(lambda eighths: eighths / 8)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@settings(
    max_examples=1000 if STORM else 200,
    derandomize=not STORM,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    came=st.lists(times, max_size=20).map(sorted),
    works=st.lists(times, min_size=1, max_size=4),
    stop=st.one_of(st.none(), times),
    room=st.sampled_from([1, 3, 100]),
    every=st.sampled_from([3, 1000]),
    end=st.sampled_from(["end", "error", "never"]),
)
def test_all_that_came_is_delivered_once_and_in_order(
    loop, came, works, stop, room, every, end, caplog
):
    caplog.set_level(logging.CRITICAL)
    quiet, cap = 0.5, 2.0
    ending = {"end": None, "error": OSError("broken"), "never": "never"}[end]
    source = Source(*((at, number) for number, at in enumerate(came)), end=ending)
    found: list[tuple[float, Burst]] = []
    cursors = []

    async def play():
        free = 0.0
        async with (
            bursts(
                source(), quiet=quiet, max_wait=cap, max_items=room, urgent=lambda n: n % every == 2
            ) as stream,
            anyio.create_task_group() as tasks,
        ):

            @tasks.start_soon
            async def stopper():
                await anyio.sleep_until(10 + max(works) * 20 if stop is None else stop)
                stream.stop()

            try:
                async for burst in stream:
                    now = anyio.current_time()
                    cursors.append(stream.cursor)
                    found.append((now, burst))
                    first = came[burst.items[0]]
                    assert now <= max(free, first + cap) + 1e-9
                    await anyio.sleep(works[len(found) % len(works)])
                    free = anyio.current_time()
            except OSError:
                assert end == "error"
            statistics = stream.statistics()
            tasks.cancel_scope.cancel()
        assert source.closed or statistics.items == 0
        delivered = [item for _, burst in found for item in burst.items]
        assert delivered == sorted(set(delivered))
        assert len(delivered) + statistics.dropped == statistics.items
        assert statistics.gathered == 0
        assert (statistics.dropped > 0) == any(burst.rescan for _, burst in found)
        if stop is None:
            assert statistics.items == len(came)
        assert cursors == [None, *(burst.cursor for _, burst in found)][: len(cursors)]
        if found:
            assert found[-1][1].cursor == statistics.items

    run_virtual(play, backend=loop)
