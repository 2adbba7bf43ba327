"""A timeline continues from one event loop to the next, although their clocks differ."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import anyio
import pytest
import trio

from mellea_like.runtime.timeline import Timeline
from mellea_like.testing import run_virtual


@pytest.mark.anyio
async def test_a_time_is_found_on_the_loops_own_clock(virtual_clock):
    timeline = Timeline()
    timeline.now()
    await anyio.sleep(3)
    assert timeline.on_loop(10.0) == pytest.approx(anyio.current_time() + 7)


def test_it_goes_on_in_the_next_loop_whatever_that_one_says():
    timeline = Timeline()
    seen = []

    async def look() -> None:
        seen.append(timeline.now())
        await anyio.sleep(5)
        seen.append(timeline.now())

    for library in ("trio", "asyncio", "trio"):
        run_virtual(look, backend=library)
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert seen[0] == 0.0
    assert steps[0::2] == pytest.approx([5, 5, 5])
    assert all(0 <= step < 2 for step in steps[1::2])  # The time that really passed between them.


def test_it_never_goes_back():
    timeline = Timeline()

    async def ahead() -> None:
        timeline.now()
        await anyio.sleep(100)
        timeline.now()

    run_virtual(ahead, backend="asyncio")
    # trio's own clock starts at a random number, and may be anywhere beside the last one.
    for _ in range(3):
        assert trio.run(_now, timeline) >= 100.0


async def _now(timeline: Timeline) -> float:
    return timeline.now()


def test_event_loops_in_two_threads_do_not_mix_their_clocks_up():
    """A gate is shared by all calls on a server and key, wherever they run."""
    timeline, jumps = Timeline(), []
    end = time.monotonic() + 0.3

    async def look() -> None:
        last = timeline.now()
        while time.monotonic() < end:
            now = timeline.now()
            if now - last > 5:
                jumps.append(now - last)
            last = now

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=anyio.run, args=(look,), kwargs={"backend": library})
                   for library in ("asyncio", "trio")]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert jumps == []
