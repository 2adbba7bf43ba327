"""A cap on requests in flight that adapts to the server."""

from __future__ import annotations

import math
from functools import partial

import anyio
import pytest
from limiter_kit import GOOD, Slow, ask, failed

from mellea_like.core.generation import Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    RateLimited,
)
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.concurrency import AdaptiveLimiter, Window
from mellea_like.limits.rate import RateLimiter

pytestmark = pytest.mark.anyio


# Events, and the window after them: "+" is a success with a full window, "-" a 429, "5" a 5xx,
# "s" a success with the window not full; a number is the time that passes first.
WINDOWS = [
    pytest.param("+++", [9, 10, 11], id="one more with each success"),
    pytest.param("sss", [8, 8, 8], id="a window that is not full does not grow"),
    pytest.param("-", [5.6], id="a 429 leaves seven tenths"),
    pytest.param("-+", [5.6, 5.6 + 1 / 5.6], id="after the first 429, a whole one in a round"),
    pytest.param("-s", [5.6, 5.6], id="nor does one that is not full grow then"),
    pytest.param("---", [5.6, 5.6, 5.6], id="429s of one moment count once"),
    pytest.param(["-", 0.19, "-", 0.02, "-"], [5.6, 5.6, 3.92], id="once in 0.2 s"),
    pytest.param(["-", 0.2, "-"], [5.6, 3.92], id="after 0.2 s again"),
    pytest.param(["-", 1, "-"] * 8 + [1, "+"], None, id="never under one, and up again"),
    pytest.param(["5", "+", 0.99, "+", 0.02, "+"], [8, 8, 8, 9], id="a 5xx stops growth for 1 s"),
    pytest.param(["5", 0.9, "5", 0.9, "+", 0.2, "+"], [8, 8, 8, 9], id="counted from the last"),
    pytest.param(["5", "-"], [8, 5.6], id="a 5xx does not keep it from shrinking"),
]


@pytest.mark.parametrize(("steps", "sizes"), WINDOWS)
def test_the_window(steps, sizes):
    window, now, seen = Window(8, 1000), 100.0, []
    for step in steps:
        if step == "+":
            window.succeeded(now, window.whole)
        elif step == "s":
            window.succeeded(now, window.whole - 1)
        elif step == "-":
            window.refused(now)
        elif step == "5":
            window.failed(now)
        else:
            now += step
            continue
        seen.append(window.size)
    if sizes is None:
        assert seen[-2:] == [1.0, 2.0]
        assert min(seen) == 1.0
    else:
        assert seen == pytest.approx(sizes)


@pytest.mark.parametrize(
    ("end", "limit", "then"),
    [
        pytest.param(GOOD, 2, 3, id="success"),
        pytest.param(failed(RateLimited("", status=429)), 1, 1, id="429"),
        pytest.param(failed(BackendUnavailable("", status=503)), 1, 1, id="503"),
        pytest.param(failed(BackendUnavailable("connection reset")), 1, 1, id="reset"),
        pytest.param(failed(BackendError("", status=500)), 1, 1, id="another 5xx"),
        pytest.param(failed(BackendError("", status=400)), 1, 2, id="4xx"),
        pytest.param(failed(BackendError("")), 1, 2, id="no status"),
        pytest.param(failed(BackendTimeout("")), 1, 2, id="timeout"),
        pytest.param(failed(AuthenticationFailed("", status=401)), 1, 2, id="401"),
        pytest.param(failed(KeyError("a bug")), 1, 2, id="bug"),
        pytest.param(failed(anyio.EndOfStream()), 1, 2, id="cancelled, say"),
        pytest.param(RequestEnd(Usage(1, 0, 0, 1), None, None), 1, 2, id="stream left early"),
        pytest.param(RequestEnd(Usage(), None, None), 1, 2, id="never sent"),
    ],
)
async def test_only_successes_429s_and_5xxs_matter(virtual_clock, end, limit, then):
    limiter = AdaptiveLimiter(1)
    (await limiter.acquire(ask(), Slow())).release(end)
    assert limiter.concurrency == limit
    await anyio.sleep(0.5)  # A pause is over by then; a stop of growth is not.
    if end.error is not None and isinstance(end.error, RateLimited):
        assert limiter.statistics().refused == 1
        return
    permits = [await limiter.acquire(ask(), Slow()) for _ in range(limit)]
    permits[0].release(GOOD)
    assert limiter.concurrency == then


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [(None, 0.2), (3.0, 3.0), (math.nan, 0.2), (-1.0, 0.2), (500.0, 120.0)],
)
@pytest.mark.parametrize("made", [AdaptiveLimiter, partial(RateLimiter, requests_per_minute=6000)])
async def test_nobody_goes_until_the_time_that_a_429_names(
    virtual_clock, made, retry_after, seconds
):
    limiter = made()
    refused = failed(RateLimited("too many", status=429, retry_after=retry_after))
    permits = [await limiter.acquire(ask(), Slow()) for _ in range(2)]
    permits[0].release(refused)
    permits[1].release(failed(RateLimited("too many", status=429)))  # Its pause is no longer.
    went = []

    async def go():
        permit = await limiter.acquire(ask(), Slow())
        went.append(anyio.current_time())
        permit.release(GOOD)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(go)
    assert went == pytest.approx([seconds] * 3)
    assert limiter.statistics().refused == 2


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (11, ValueError), (2.5, TypeError)])
def test_a_wrong_window_is_refused(limit, error):
    limiter = AdaptiveLimiter(5, maximum=10)
    with pytest.raises(error, match="AdaptiveLimiter: concurrency"):
        limiter.concurrency = limit
    assert limiter.concurrency == 5
