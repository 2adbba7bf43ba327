"""Quantiles within 1 %, whatever the values, in bounded memory."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.report.quantiles import Sketch


def sketch_of(values):
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(
    st.lists(st.floats(1e-8, 1e11), min_size=1, max_size=200),
    st.floats(0, 1),
)
def test_a_quantile_is_within_one_per_cent_of_the_true_one(values, share):
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    true = sorted(values)[rank - 1]
    assert sketch_of(values).quantile(share) == pytest.approx(true, rel=0.01001)


def test_a_share_of_few_values_is_never_too_small():
    assert sketch_of([1.0, 1.0, 1.0, 1.0, 10.0]).quantile(0.95) == 10.0
    assert sketch_of([*([1.0] * 19), 10.0]).quantile(0.95) == 1.0


def test_a_million_values_take_few_buckets():
    chance = random.Random(1)
    sketch = sketch_of(math.exp(chance.uniform(-40, 40)) for _ in range(20_000))
    assert len(sketch.values()) <= 2420


def test_sums_and_bounds_are_exact():
    sketch = sketch_of([0.5, 0.25, 4.0])
    assert (sketch.count, sketch.total, sketch.least, sketch.most) == (3, 4.75, 0.25, 4.0)
    assert sketch.quantile(0.0) == 0.25
    assert sketch.quantile(1.0) == 4.0


def test_nothing_has_no_quantile():
    assert Sketch().quantile(0.5) == 0.0
    assert Sketch().values() == []


def test_what_is_no_number_is_left_out_and_less_than_nothing_is_nothing():
    sketch = sketch_of([math.nan, math.inf, -3.0, 0.0, 2.0])
    assert sketch.count == 3
    assert sketch.least == 0.0
    assert sketch.quantile(0.5) == pytest.approx(0.0, abs=1e-8)


def test_equal_values_are_themselves():
    assert sketch_of([0.7] * 50).quantile(0.95) == 0.7
