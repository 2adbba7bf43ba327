"""A plain cap on requests in flight, and how requests wait for any shared limit."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint
from limiter_kit import GOOD, Slow, ask, failed, hold

from mellea_like.errors import RateLimited
from mellea_like.limits import ConcurrencyLimiter, LimitedBackend

pytestmark = pytest.mark.anyio


def idle(limiter):
    statistics = limiter.statistics()
    return statistics.in_flight == 0 and statistics.waiting == 0


# --- the cap --------------------------------------------------------------------------------------


async def test_a_higher_limit_takes_effect_at_once_and_a_lower_one_lets_requests_end(virtual_clock):
    backend, limiter = Slow(1.0), ConcurrencyLimiter(1)
    limited = LimitedBackend(backend, limiter)
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(limited.generate, ask())
        await anyio.sleep(0.5)
        limiter.concurrency = 4
        assert limiter.statistics().in_flight == 4
        limiter.concurrency = 2
        assert limiter.concurrency == 2
        await anyio.sleep(0.25)
        assert backend.in_flight == 4
        await anyio.sleep(0.5)  # One has ended at 1.0; three are still more than two.
        assert backend.in_flight == 3
        await anyio.sleep(0.5)  # The others have ended at 1.5.
        assert backend.in_flight == 2
    assert virtual_clock.now == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("limit", "error"),
    [(0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError), ("3", TypeError)],
)
def test_a_limit_is_a_whole_number_over_zero(limit, error):
    with pytest.raises(error, match=r"ConcurrencyLimiter: concurrency .* not "):
        ConcurrencyLimiter(limit)
    limiter = ConcurrencyLimiter(4)
    with pytest.raises(error, match=r"ConcurrencyLimiter: concurrency .* not "):
        limiter.concurrency = limit
    assert limiter.concurrency == 4


async def test_429s_are_counted_and_a_plain_cap_does_not_pause_after_them(virtual_clock):
    limiter = ConcurrencyLimiter(1)
    for _ in range(3):
        permit = await limiter.acquire(ask(), Slow())
        permit.release(failed(RateLimited("too many", status=429, retry_after=5)))
    assert limiter.statistics().refused == 3
    assert virtual_clock.now == 0


async def test_a_permit_is_given_back_once():
    limiter = ConcurrencyLimiter(2)
    first = await limiter.acquire(ask(), Slow())
    second = await limiter.acquire(ask(), Slow())
    for _ in range(3):
        first.release(GOOD)
    assert limiter.statistics().in_flight == 1
    second.release(GOOD)
    assert idle(limiter)


@pytest.mark.parametrize("granted_first", [True, False])
async def test_granted_and_cancelled_in_one_moment_gives_the_permit_back(granted_first):
    backend, limiter = Slow(0.0), ConcurrencyLimiter(1)
    permit = await limiter.acquire(ask(), backend)
    limited = LimitedBackend(backend, limiter)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limited.generate, ask())
        await checkpoint()
        await checkpoint()
        assert limiter.statistics().waiting == 1
        if granted_first:
            permit.release(GOOD)
            tasks.cancel_scope.cancel()
        else:
            tasks.cancel_scope.cancel()
            permit.release(GOOD)
    assert idle(limiter)
    assert backend.came == []
    assert limiter.statistics().admitted == 1  # A grant that was not used is no admission.


# --- event loops ----------------------------------------------------------------------------------


def test_what_a_stopped_event_loop_left_behind_is_forgotten():
    limiter = ConcurrencyLimiter(1)
    loop = asyncio.new_event_loop()
    stuck = [loop.create_task(hold(limiter, 1000.0)) for _ in range(2)]
    loop.run_until_complete(asyncio.sleep(0.01))
    assert limiter.statistics()[:2] == (1, 1)

    anyio.run(hold, limiter, 0.0)
    assert idle(limiter)

    for task in stuck:
        task.cancel()  # They give back what the limiter has forgotten.
    loop.run_until_complete(asyncio.gather(*stuck, return_exceptions=True))
    loop.close()
    assert idle(limiter)
    assert limiter.statistics().admitted == 2


def test_a_second_event_loop_at_the_same_time_is_refused():
    limiter = ConcurrencyLimiter(1)
    held, done = threading.Event(), threading.Event()

    async def first():
        permit = await limiter.acquire(ask(), Slow())
        held.set()
        while not done.is_set():  # noqa: ASYNC110 (set in another thread)
            await anyio.sleep(0.001)
        permit.release(GOOD)

    for library in ("asyncio", "trio"):
        held.clear()
        done.clear()
        thread = threading.Thread(target=anyio.run, args=(first,), kwargs={"backend": library})
        thread.start()
        assert held.wait(10)
        try:
            with pytest.raises(RuntimeError, match=r"another event loop.* one limiter per"):
                anyio.run(hold, limiter, 0.0)
        finally:
            done.set()
            thread.join()
        anyio.run(hold, limiter, 0.0)  # The other one is gone.
        assert idle(limiter)


async def test_the_limit_may_be_changed_from_another_thread():
    limiter = ConcurrencyLimiter(1)
    permit = await limiter.acquire(ask(), Slow())
    with anyio.fail_after(10):
        thread = threading.Timer(0.01, setattr, (limiter, "concurrency", 2))
        thread.start()
        second = await limiter.acquire(ask(), Slow())
    thread.join()
    permit.release(GOOD)
    second.release(GOOD)
    assert limiter.statistics()[:4] == (0, 0, 2, 2)


async def test_a_change_from_another_thread_may_find_nobody_waiting_any_more():
    limiter = ConcurrencyLimiter(1)
    permit = await limiter.acquire(ask(), Slow())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold, limiter, 0.0)
        while not limiter.statistics().waiting:
            await checkpoint()
        thread = threading.Thread(target=setattr, args=(limiter, "concurrency", 1))
        thread.start()
        thread.join()
        permit.release(GOOD)
    assert limiter.statistics()[:4] == (0, 0, 2, 1)


@pytest.mark.parametrize("closed", [True, False])
def test_a_coroutine_that_is_thrown_away_leaves_the_line_quietly(closed):
    limiter = ConcurrencyLimiter(1)
    loop = asyncio.new_event_loop()

    async def begin(coroutine):
        coroutine.send(None)

    permit = loop.run_until_complete(limiter.acquire(ask(), Slow()))
    waiting = [limiter.acquire(ask(), Slow()) for _ in range(3)]
    for coroutine in waiting:
        loop.run_until_complete(begin(coroutine))
    assert limiter.statistics()[:2] == (1, 3)
    if closed:
        loop.close()
    waiting.pop().close()
    limiter.concurrency = 1  # There is nobody left whom this could wake.
    permit.release(GOOD)
    while waiting:
        waiting.pop().close()
    assert idle(limiter)
    loop.close()
