"""Axes, bins and drawings."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_kit import trace_of

from mellea_like.report.charts import (
    binned,
    bins_of,
    columns,
    distribution,
    log_ticks,
    nice_step,
    rate_bar,
    stacked,
    ticks,
)
from mellea_like.report.format import seconds
from mellea_like.report.statistics import Distribution
from mellea_like.report.waterfall import waterfall


@pytest.mark.parametrize(
    ("reach", "most", "step"),
    [(10, 5, 2), (11, 5, 5), (0.3, 3, 0.1), (7e-6, 4, 2e-6), (99, 1, 100)],
)
def test_steps_are_1_2_or_5_times_a_power_of_ten(reach, most, step):
    assert nice_step(reach, most) == pytest.approx(step)


@given(st.floats(1e-9, 1e9), st.integers(1, 10))
def test_ticks_lie_on_the_axis(reach, most):
    made = ticks(reach, most)
    assert made[0] == 0
    assert made[-1] <= reach * (1 + 1e-6)
    assert len(made) <= most + 1


def test_logarithmic_ticks_get_fewer_on_long_axes():
    assert log_ticks(0.9, 11, 9) == pytest.approx([1, 2, 5, 10])
    assert log_ticks(0.9, 130, 5) == pytest.approx([1, 3, 10, 30, 100])
    assert log_ticks(0.9, 11_000, 5) == pytest.approx([1, 10, 100, 1000, 10_000])
    assert log_ticks(0.9, 1.1e9, 5) == pytest.approx([1, 100, 10_000, 1e6, 1e8])


def distributed(values):
    found = Distribution()
    for value in values:
        found.add(value)
    return found


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=50), st.integers(1, 40))
def test_bins_hold_all_that_was_counted(values, most):
    low, high, counts = bins_of(distributed(values), most)
    assert sum(counts) == len(values)
    assert 0 < low < high
    assert len(counts) <= most


@pytest.mark.parametrize(
    ("counts", "columns_made"),
    [
        ({}, [("1", 0)]),
        ({1: 4, 3: 2}, [("1", 4), ("2", 0), ("3", 2)]),
        ({12: 1}, [*((str(n), 0) for n in range(1, 12)), ("12", 1)]),
    ],
)
def test_few_numbers_have_a_column_each(counts, columns_made):
    assert binned(counts) == columns_made


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 9), min_size=1))
def test_columns_hold_all_numbers_without_gap(counts):
    made = binned(counts)
    assert sum(number for _, number in made) == sum(counts.values())
    assert len(made) <= 12
    ends = [list(map(int, name.split("–"))) for name, _ in made]
    assert ends[0][0] == 1
    assert all(a[-1] + 1 == b[0] for a, b in pairwise(ends))
    assert ends[-1][-1] == max(counts)


def test_parts_lie_side_by_side_and_fill_the_whole():
    drawn = stacked([("won", 30), ("late", 0), ("rejected", 10)], "it", "a title")
    boxes = re.findall(r'<rect class="box (\w+)" x="([\d.]+)%".*?width="([\d.]+)%"', drawn)
    assert boxes == [("won", "0", "75"), ("rejected", "75", "25")]
    assert 'role="img" aria-label="a title"' in drawn


def test_the_highest_column_fills_the_height_and_none_that_counts_is_invisible():
    drawn = columns([("1", 10_000), ("2", 0), ("3", 1)], "a title", "numbers")
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" rx', drawn)]
    assert heights == [130, 0, 1.5]


def test_a_distribution_marks_its_quantiles():
    drawn = distribution(distributed([0.1, 1.0, 1.0, 1.0, 10.0]), seconds, "a title", "time")
    marks = re.findall(r'<line x1="([\d.]+)"[^>]+class="line"', drawn)
    assert list(map(float, marks)) == pytest.approx([198, 352], abs=1.5)


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ([0.1, 1.0, 1.0, 1.0, 10.0], [("middle", "p50"), ("end", "p95")]),
        ([0.01, *([1.0] * 9), *([1.2] * 9), 100.0], [("end", "p50"), ("start", "p95")]),
        ([1.0, *([100.0] * 9)], [("end", "p50, p95")]),
    ],
)
def test_names_of_quantiles_do_not_lie_on_each_other_nor_outside(values, flags):
    drawn = distribution(distributed(values), seconds, "a title", "time")
    assert re.findall(r'text-anchor="(\w+)" class="flag">([^<]+)', drawn) == flags


def test_a_share_of_nothing_has_no_bar():
    assert 'class="fill"' not in rate_bar(0.0)
    assert 'width="100%" height="8" rx="4" class="fill"' in rate_bar(1.0)


# --- the waterfall ----------------------------------------------------------------------------


def bars(trace):
    drawn = waterfall(trace, "it", links=True)
    found = re.findall(
        r'<a class="bar (\w+) (\w+)".*?<rect [^>]*?x="([\d.]+)%".*?width="([\d.]+)%"', drawn
    )
    return [(size, outcome, float(x), float(width)) for size, outcome, x, width in found]


def test_bars_lie_where_their_time_was():
    made = bars(trace_of(("failed", 1), ("errored", 1), ("cancelled", 1), ("passed", 1), best=3))
    assert [(outcome, x, width) for _, outcome, x, width in made] == [
        ("failed", 0, 25),
        ("errored", 25, 25),
        ("cancelled", 50, 25),
        ("won", 75, 25),
    ]


def test_a_bar_of_no_time_can_be_seen_and_stays_inside():
    trace = trace_of(("failed", 1), ("passed", 1), best=1)
    trace["slices"][1] |= {"started_at": 2.0, "ended_at": 2.0}
    assert bars(trace)[1] == ("thin", "won", 99.4, 0.6)


def test_a_borrowed_turn_stands_in_the_row_of_the_chain_that_ran_it():
    trace = trace_of(("failed", 1), ("failed", 1))
    trace["slices"][1] |= {"subsample": 5, "chain": 0}
    drawn = waterfall(trace, "it", links=False)
    assert drawn.count('<div class="wf-name" aria-hidden="true">0</div>') == 1
    assert '<div class="wf-name" aria-hidden="true">5</div>' not in drawn


def test_each_bar_says_what_happened():
    drawn = waterfall(trace_of(("failed", 1), ("passed", 1), best=1), "it", links=True)
    assert "<title>Iteration 1 failed, 0 s to 1 s: it says a word: it is missing</title>" in drawn
    assert "<title>Iteration 2 passed and won, 1 s to 2 s</title>" in drawn


def test_bars_without_links_are_pictures():
    drawn = waterfall(trace_of(("passed", 1)), "it", links=False)
    assert "<a " not in drawn
    assert 'role="img" aria-label="Iteration 1 passed and won, 0 s to 1 s"' in drawn
