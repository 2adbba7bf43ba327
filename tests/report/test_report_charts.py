"""Axes, bins and drawings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_kit import trace_of

from mellea_like.estimate import coverage_curve
from mellea_like.report.charts import (
    breakdown,
    columns,
    coverage_chart,
    numbers,
    rate_bar,
    sizes,
    ticks,
)
from mellea_like.report.run_figures import Distribution
from mellea_like.report.views import TraceView
from mellea_like.report.waterfall import waterfall


@given(st.floats(1e-9, 1e9), st.integers(1, 10))
def test_ticks_lie_on_the_axis(reach, most):
    made = ticks(reach, most)
    assert made[0] == 0
    assert made[-1] <= reach * (1 + 1e-6)
    assert len(made) <= most + 1


def distributed(values):
    found = Distribution()
    for value in values:
        found.add(value)
    return found


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=50).filter(any))
def test_columns_hold_all_that_was_counted(values):
    made = sizes(distributed(values), "{:.9g}".format)
    assert sum(number for _, number in made) == len(values)
    assert 1 <= len(made) <= 12
    ends = [float(name) for name, _ in made]
    assert ends == sorted(set(ends))
    assert ends[-1] >= max(values) * (1 - 1e-6)
    assert made[-1][1]


def test_columns_end_at_round_numbers_and_are_fine_where_there_is_room():
    assert sizes(distributed([1.1, 1.3, 2.0, 3.9]), "{:g}".format) == [
        ("1.2", 1), ("1.5", 1), ("2", 1), ("2.5", 0), ("3", 0), ("4", 1)
    ]  # fmt: skip
    assert [name for name, _ in sizes(distributed([0.9, 900]), "{:g}".format)] == [
        "1", "2", "5", "10", "20", "50", "100", "200", "500", "1000"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "columns_made"),
    [
        ({1: 4, 3: 2}, [("1", 4), ("2", 0), ("3", 2)]),
        ({12: 1}, [*((str(n), 0) for n in range(1, 12)), ("12", 1)]),
        ({1: 1, 30: 2}, [("1", 1), *((str(n), 0) for n in range(2, 12)), ("12–30", 2)]),
    ],
)
def test_numbers_have_a_column_each_but_the_largest(counts, columns_made):
    values = [float(value) for value, number in counts.items() for _ in range(number)]
    assert numbers(distributed(values)) == columns_made


def test_parts_lie_side_by_side_and_fill_the_whole():
    parts = [("won", "in the winner", 30), ("late", "too late", 0), ("rejected", "in the rest", 10)]
    bar, rows = breakdown(parts, "it")
    boxes = re.findall(r'<rect class="box (\w+)" x="([\d.]+)%".*?width="([\d.]+)%"', bar)
    assert boxes == [("won", "0", "75"), ("rejected", "75", "25")]
    assert [row[1:] for row in rows] == [
        ("in the winner", "30", "75 %"),
        ("in the rest", "10", "25 %"),
    ]


def test_the_highest_column_fills_the_height_and_none_that_counts_is_invisible():
    drawn = columns([("1", 10_000), ("2", 0), ("3", 1)], "numbers")
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" rx', drawn)]
    assert heights == [130, 0, 1.5]


def test_a_share_of_nothing_has_no_bar():
    assert 'class="fill"' not in rate_bar(0.0)
    assert 'width="100%" height="8" rx="4" class="fill"' in rate_bar(1.0)


def test_the_extrapolated_part_of_a_coverage_begins_where_the_measured_one_ends():
    curve = coverage_curve([(1, 1)] * 6 + [(2, 1)] * 2 + [(4, 0)] * 2)
    drawn = coverage_chart([curve.at(k) for k in (1, 2, 4, 8, 16)])
    solid, dashed = re.findall(r'<polyline points="([^"]*)" class="curve (\w+)"', drawn)
    assert (solid[1], dashed[1]) == ("measured", "predicted")
    places = [
        [tuple(map(float, at.split(","))) for at in part[0].split()] for part in (solid, dashed)
    ]
    # Twice as many draws are as far apart everywhere.
    assert [x for x, _ in places[0]] == pytest.approx([44, 121, 198], abs=0.1)
    assert [x for x, _ in places[1]] == pytest.approx([198, 275, 352], abs=0.1)
    assert "4 draws: 80 %, measured, " in drawn
    assert "16 draws: " in drawn
    assert "extrapolated" not in drawn.partition("8 draws")[0].partition("<title>")[2]
    single = coverage_curve([(1, 1), (1, 0)])
    assert "1 draw: 50 %, measured" in coverage_chart([single.at(k) for k in (1, 2)])


# --- the waterfall ----------------------------------------------------------------------------


def drawn_over_time(trace, *, links=True):
    return waterfall(TraceView(trace), "it", links=links)


def bars(trace):
    drawn = drawn_over_time(trace)
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
    drawn = drawn_over_time(trace, links=False)
    assert drawn.count('<div class="wf-name" aria-hidden="true">1</div>') == 1
    assert '<div class="wf-name" aria-hidden="true">6</div>' not in drawn


def test_each_bar_says_what_happened():
    drawn = drawn_over_time(trace_of(("failed", 1), ("passed", 1), best=1))
    assert "<title>Attempt 1: failed, 0 s to 1 s: it says a word: it is missing</title>" in drawn
    assert "<title>Attempt 2: passed and won, 1 s to 2 s</title>" in drawn
