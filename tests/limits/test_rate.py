"""Requests and tokens per minute."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_kit import GOOD, Slow, ask, failed

from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import BackendUnavailable
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.bucket import Bucket
from mellea_like.limits.rate import RateLimiter

pytestmark = pytest.mark.anyio

INPUT = 5  # The estimated tokens of the message "hi".


def left(limiter):
    """Return the levels of the buckets of requests and of tokens."""
    now, buckets = limiter._timeline.now(), (limiter._requests, limiter._tokens)
    return tuple(None if bucket is None else bucket.level(now) for bucket in buckets)


async def admissions(limiter, count, **kwargs):
    """Send requests that end at once; return when each was admitted."""
    times, began = [], anyio.current_time()

    async def go():
        permit = await limiter.acquire(ask(**kwargs), Slow())
        times.append(anyio.current_time() - began)
        permit.release(RequestEnd(Usage(1, 0, 0, 1), None, None))

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(go)
    return times


# --- the bucket, in tables ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "now", "level"),
    [
        pytest.param([], 0.0, 5.0, id="full to begin with"),
        pytest.param([(0.0, 5.0)], 0.0, 0.0, id="what is taken is gone"),
        pytest.param([(0.0, 5.0)], 2.0, 2.0, id="it fills"),
        pytest.param([(0.0, 5.0)], 1000.0, 5.0, id="not over its capacity"),
        pytest.param([(0.0, 5.0), (0.0, 3.0)], 0.0, -3.0, id="it may be in debt"),
        pytest.param([(0.0, 5.0), (0.0, 3.0)], 4.0, 1.0, id="a debt is paid first"),
        pytest.param([(0.0, 5.0), (0.0, -2.0)], 0.0, 2.0, id="what is put back is there"),
        pytest.param([(0.0, 1.0), (0.0, -9.0)], 0.0, 5.0, id="as far as it fits"),
        pytest.param([(10.0, 5.0), (9.0, 0.0)], 11.0, 1.0, id="time does not go back"),
    ],
)
def test_the_level(steps, now, level):
    bucket = Bucket(60.0, 5.0)
    for at, amount in steps:
        bucket.take(at, amount)
    assert bucket.level(now) == pytest.approx(level)


@pytest.mark.parametrize(
    ("taken", "amount", "delay"),
    [
        (0.0, 5.0, 0.0),
        (1.0, 4.0, 0.0),
        (1.0, 5.0, 1.0),
        (5.0, 1.0, 1.0),
        (8.0, 1.0, 4.0),
        (0.0, 500.0, 0.0),  # Larger than the bucket: it goes when that is full.
        (2.0, 500.0, 2.0),
    ],
)
def test_the_delay(taken, amount, delay):
    bucket = Bucket(60.0, 5.0)
    bucket.take(0.0, taken)
    assert bucket.delay(0.0, amount) == pytest.approx(delay)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), max_size=50))
def test_who_keeps_to_the_delay_never_takes_more_than_the_rate_and_one_bucket(steps):
    bucket, now, taken = Bucket(60.0, 5.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        wanted = min(amount, 5.0)
        now += bucket.delay(now, wanted)
        bucket.take(now, wanted)
        taken += wanted
        assert taken <= 5.0 + now + 1e-6


# --- requests per minute --------------------------------------------------------------------------


async def test_requests_go_at_the_rate_after_a_seconds_burst(virtual_clock):
    limiter = RateLimiter(requests_per_minute=120)
    assert await admissions(limiter, 6) == pytest.approx([0, 0, 0.5, 1, 1.5, 2])
    await anyio.sleep(100)
    assert await admissions(limiter, 4) == pytest.approx([0, 0, 0.5, 1])


# --- tokens per minute ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "spent"),
    [
        pytest.param(GOOD, 20, id="less than reserved"),
        pytest.param(RequestEnd(Usage(1, 900, 900), Generation(""), None), 1800, id="more"),
        pytest.param(failed(BackendUnavailable("")), INPUT + 256, id="unknown"),
        pytest.param(
            RequestEnd(Usage(2, 900, 900, 1), None, OSError()), 1800, id="unknown, but more"
        ),
        pytest.param(RequestEnd(Usage(), None, None), 0, id="never sent"),
    ],
)
async def test_what_a_request_really_cost_is_charged(virtual_clock, end, spent):
    limiter = RateLimiter(tokens_per_minute=60_000)
    (await limiter.acquire(ask(), Slow())).release(end)
    assert left(limiter)[1] == 1000 - spent
