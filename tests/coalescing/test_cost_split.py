"""The cost of a joint request, split into parts that add up to it exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.coalescing.coordinator.request_batch import SharedCost, split
from mellea_like.core.generation import Meter, Usage


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (0, [1], [0]),
        (7, [1], [7]),
        (1, [1, 1, 1], [1, 0, 0]),
        (4, [1, 1, 1], [2, 1, 1]),
        (5, [1, 1, 1], [2, 2, 1]),
        (10, [3, 1], [8, 2]),  # 7.5 and 2.5: of equals the first
        (10, [1, 3], [3, 7]),
        (10, [0, 1], [0, 10]),
        (5, [0, 0], [3, 2]),
        (100, [1, 1000, 1], [0, 100, 0]),
        (3, [10**30, 1], [3, 0]),
    ],
)
def test_parts_are_as_the_weights_say_and_sum_to_the_whole(total, weights, parts):
    assert split(total, weights) == parts


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_parts_are_within_one_of_their_exact_shares(total, weights):
    parts = split(total, weights)
    assert sum(parts) == total
    weights = weights if any(weights) else [1] * len(weights)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1 + total * 1e-12


def total(cost: SharedCost) -> Usage:
    return sum(cost.usages(), Usage())


def test_who_leaves_bears_what_is_known_and_the_others_the_rest():
    meter = Meter()
    running = meter.start()
    running.update(input_tokens=30)
    cost = SharedCost(meter, [1, 1, 1])
    first = cost.parts()[0]
    first.leave()
    first.leave()
    assert cost.usages() == [Usage(0, 10), Usage(1, 10, 0, 1), Usage(0, 10)]
    running.settle(input_tokens=30, output_tokens=9)
    assert cost.usages() == [Usage(0, 10), Usage(1, 10, 5), Usage(0, 10, 4)]


def test_cached_and_reasoning_tokens_are_split_as_the_tokens_are_that_they_are_of():
    meter = Meter()
    parts = SharedCost(meter, [3, 1]).parts()
    meter.start().settle(
        input_tokens=100, output_tokens=30, cached_input_tokens=98, reasoning_tokens=20
    )
    usages = [part.usage for part in parts]
    assert sum(usages, Usage()) == meter.usage
    assert [usage.cached_input_tokens for usage in usages] == [74, 24]
    assert [usage.reasoning_tokens for usage in usages] == [10, 10]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.lists(
        st.one_of(
            st.tuples(st.just("leave"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("update"), st.integers(0, 500), st.integers(0, 500)),
            st.tuples(st.just("start"), st.just(0), st.just(0)),
            st.tuples(st.just("settle"), st.integers(0, 500), st.integers(0, 500)),
        ),
        max_size=12,
    ),
)
def test_the_parts_sum_to_the_meter_whatever_happens(weights, events):
    meter = Meter()
    running = meter.start()
    cost = SharedCost(meter, weights)
    for what, one, two in events:
        if what == "leave":
            cost.leave(one % len(weights))
        elif what == "update":
            running.update(input_tokens=one, output_tokens=two)
        elif what == "settle":
            running.settle(input_tokens=one, output_tokens=two)
        else:
            running = meter.start()
        assert total(cost) == meter.usage
        assert all(
            min(u.requests, u.input_tokens, u.output_tokens, u.unknown) >= 0 for u in cost.usages()
        )
        assert all(u.unknown <= u.requests for u in cost.usages())
