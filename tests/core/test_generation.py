"""Usages add up, and meters keep the known cost of requests under way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mellea_like.core.generation import Meter, Usage

numbers = st.integers(0, 1000)
usages = st.builds(Usage, *[numbers] * 7)


@given(usages, usages, usages)
def test_usages_add_like_numbers(a, b, c):
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a
    assert (a + b) - b == a
    assert (a + b).total_tokens == a.total_tokens + b.total_tokens


def test_a_usage_reads_well():
    assert str(Usage(2, 10, 5)) == "2 requests, 10 tokens in, 5 out"
    assert str(Usage(2, 10, 5, unknown=1)) == "2 requests, 10 tokens in, 5 out (1 of unknown cost)"
    details = "(8 input tokens cached, 3 output tokens of reasoning)"
    assert str(Usage(1, 10, 5, 0, 8, 3)) == f"1 request, 10 tokens in, 5 out {details}"
    assert str(Usage(cache_hits=2)) == "0 requests and 2 from the cache, 0 tokens in, 0 out"
    assert repr(Usage(1, 2, 3)) == "Usage(requests=1, input_tokens=2, output_tokens=3, unknown=0)"
    assert repr(Usage(reasoning_tokens=6)).endswith("unknown=0, reasoning_tokens=6)")


def test_a_meter_adds_what_is_counted_elsewhere_and_asks_for_it_each_time():
    elsewhere = Meter()
    meter = Meter()
    meter.add(elsewhere)
    assert meter.started
    assert meter.usage == Usage()
    elsewhere.start().settle(input_tokens=3, output_tokens=2)
    assert meter.usage == Usage(1, 3, 2)
    meter.start()
    meter.add(elsewhere)
    assert meter.usage == Usage(3, 6, 4, 1)
