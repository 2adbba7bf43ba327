"""`LatencyQuantiles`: running quantiles of durations, the cancelled ones accounted for."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_kit import took

from mellea_like import Generation
from mellea_like.core import Usage
from mellea_like.schedules import LatencyQuantiles, learned


def known(*durations, censored=(), **arguments):
    latency = LatencyQuantiles(**{"least": 1, **arguments})
    for seconds in durations:
        latency.observe(seconds)
    for seconds in censored:
        latency.observe(seconds, censored=True)
    return latency


@pytest.mark.parametrize(
    ("durations", "q", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.5, None),  # one duration has no median
        ([3.0, 1.0], 0.5, 1.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 3.0, 1.0, 2.0], 0.75, 3.0),
        ([4.0, 3.0, 1.0, 2.0], 0.01, 1.0),
        (range(1, 10), 0.9, None),
        (range(1, 11), 0.9, 9),
        (range(1, 101), 0.9, 90),
        (range(1, 101), 0.99, 99),
        (range(1, 100), 0.99, None),
        ([2.0] * 10, 0.9, 2.0),
    ],
)
def test_a_quantile_is_what_so_many_take_at_most(durations, q, expected):
    assert known(*durations).quantile(q) == expected


@pytest.mark.parametrize(
    ("durations", "censored", "q", "expected"),
    [
        # by hand: 1 of 4 ends at 1; then 2 are left to end, of 3, and so on
        ([1.0, 3.0, 4.0], [2.0], 0.5, 3.0),
        ([1.0, 3.0, 4.0], [2.0], 0.25, 1.0),
        ([1.0, 3.0, 4.0], [2.0], 0.6, 3.0),
        ([1.0, 3.0, 4.0], [2.0], 0.65, 4.0),
        # at the same instant, what ended counts first
        ([1.0, 2.0], [2.0], 0.5, 2.0),
        # the longest were all cancelled: a lower bound
        ([1.0, 2.0], [5.0, 7.0], 0.5, 2.0),
        ([1.0, 2.0], [5.0, 7.0], 0.51, None),
        ([1.0, 2.0, 3.0], [5.0, 7.0], 0.65, 7.0),
        # what was cancelled at once says nothing
        ([1.0, 2.0, 3.0, 4.0], [0.0] * 50, 0.5, 2.0),
        # nothing ended
        ([], [1.0, 2.0], 0.5, None),
    ],
)
def test_what_was_cancelled_would_have_taken_longer(durations, censored, q, expected):
    latency = known(*durations, censored=censored)
    assert latency.quantile(q) == expected
    surely = expected if expected in durations else None
    assert latency.quantile(q, lower_bound=False) == surely


def test_quantiles_are_not_low_although_the_slow_ones_are_those_that_siblings_cancel():
    draw = random.Random(1)
    latency, naive = LatencyQuantiles(10_000), LatencyQuantiles(10_000)
    for _ in range(2000):
        two = [draw.lognormvariate(0.0, 0.6) for _ in range(2)]
        for seconds in two:
            first = min(two)
            latency.observe(min(seconds, first), censored=seconds > first)
            if seconds == first:
                naive.observe(seconds)
    for q, z in [(0.5, 0.0), (0.8, 0.8416), (0.9, 1.2816)]:
        truth = math.exp(0.6 * z)
        assert latency.quantile(q) == pytest.approx(truth, rel=0.1)
        assert naive.quantile(q) < 0.8 * truth


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60),
    st.floats(0.02, 0.95),
)
def test_a_quantile_is_a_known_duration_and_no_less_than_without_the_cancelled_ones(known_, q):
    both, ended = LatencyQuantiles(least=1), LatencyQuantiles(least=1)
    for seconds, censored in known_:
        both.observe(seconds, censored=censored)
        if not censored:
            ended.observe(seconds)
    value, without = both.quantile(q), ended.quantile(q)
    assert (value is None) == (without is None)
    if value is not None:
        assert value in [seconds for seconds, _ in known_]
        assert value >= without


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80), st.integers(1, 20))
def test_the_window_holds_the_latest_and_nothing_else(observed, window):
    running = LatencyQuantiles(window, least=1)
    for seconds, censored in observed:
        running.observe(seconds, censored=censored)
        running.quantile(0.5)
    again = LatencyQuantiles(least=1)
    for seconds, censored in observed[-window:]:
        again.observe(seconds, censored=censored)
    for q in (0.5, 0.9):
        assert running.quantile(q) == again.quantile(q)


def test_a_quantile_of_many_is_computed_anew_when_two_in_a_hundred_have_changed():
    latency = known(*[1.0] * 490, *[2.0] * 491)
    assert latency.quantile(0.5) == 2.0
    for _ in range(19):
        latency.observe(1.0)
    assert latency.quantile(0.5) == 2.0
    for _ in range(2):
        latency.observe(1.0)
    assert latency.quantile(0.5) == 1.0


def test_keys_are_apart_and_the_one_used_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(learned, "MOST_KEYS", 2)
    latency = LatencyQuantiles(least=1)
    for key, seconds in [("a", 1.0), ("b", 2.0), ("a", 1.0), ("c", 3.0), ("c", 3.0)]:
        latency.observe(seconds, key)
    assert [latency.quantile(0.5, key) for key in "abc"] == [1.0, None, 3.0]


def test_a_reply_from_a_cache_tells_nothing_of_the_model():
    latency = known(9.0, 9.0, 9.0)
    for _ in range(5):
        latency.learn(took(0.001, generation=Generation("x", usage=Usage(cache_hits=1))))
    assert latency.quantile(0.5) == 9.0


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="a duration must be at least 0 seconds and finite, not"):
        LatencyQuantiles().observe(-1.0)
    with pytest.raises(ValueError, match="q must be greater than 0 and less than 1, not 0"):
        LatencyQuantiles().quantile(0)
    assert known(np.float32(0.5), np.int64(2)).quantile(0.5) == 0.5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window": 0, "least": 1}, ValueError, "window must be at least 1, not 0"),
        ({"window": 5}, ValueError, "least, 10, is more than the window holds"),
        ({"least": 0}, ValueError, "least must be at least 1, not 0"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        LatencyQuantiles(**arguments)
