"""Comparisons of two runs: the differences, and whether they may be due to chance."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from html_page import HtmlPage
from report_kit import NASTY, calls, item, run_of, trace_of

from mellea_like.pass_rates import pass_rate_interval
from mellea_like.report import compare, comparison_report, comparison_text
from mellea_like.report.comparison import Comparison, both_words
from mellea_like.report.run_figures import RunFigures, figures_of
from mellea_like.report.run_summary import run_text


def run_with(passed, number=10, **more):
    """Return a run of ``number`` items of which the given ones passed."""
    items = [
        item(
            n,
            trace_of(("passed" if n in passed else "failed", 10 if n in passed else 30)),
            digest=f"item {n}",
        )
        for n in range(number)
    ]
    return run_of(items, **more), items


def test_figures_stand_side_by_side():
    one, other = run_with({0, 1}), run_with({0, 2, 3, 4, 5, 6})
    made = compare(one, other)
    assert (made.first.passed, made.second.passed) == (2, 6)
    assert made.both == {
        (True, True): 1, (True, False): 1, (False, True): 5, (False, False): 3
    }  # fmt: skip
    gain, low, high = made.gain
    assert (gain, low < 0 < high) == (pytest.approx(0.4), True)
    assert made.chance == pytest.approx(14 / 64)  # 1 of 6, or as few of the other kind
    text = comparison_text(one, other, names=("a.db", "b.db"), differences=["model: A has x"])
    for words in (
        "A: a.db · 10 items",
        "20 %          60 %   +40.0 points",
        "1 passed in both, 3 in neither, 1 in A only and 5 in B only (p = 0.22, McNemar",
        "it says a word                                     8         4",
        "  model: A has x",
    ):
        assert words in text
    assert all(words in HtmlPage(comparison_report(one, other)).text for words in ("A", "+40.0"))


@pytest.mark.parametrize(
    ("only_a", "only_b", "chance", "test"),
    [
        (500, 500, 1.0, "McNemar's exact test"),
        (501, 501, 1.0, "McNemar's test"),
        (545, 455, 0.0049, "McNemar's exact test"),
        (546, 456, 0.0049, "McNemar's test"),
    ],
)
def test_over_a_thousand_differing_items_the_test_is_approximate(only_a, only_b, chance, test):
    both = Counter({(True, False): only_a, (False, True): only_b})
    made = Comparison(RunFigures(run_with(())[0]), RunFigures(run_with(())[0]), both)
    assert made.chance == pytest.approx(chance, abs=1e-4)
    assert both_words(made).endswith(f", {test}).")


@pytest.mark.parametrize(
    ("p", "q", "low", "high"),
    [((56, 70), (48, 80), -0.3339, -0.0524), ((9, 10), (3, 10), -0.8090, -0.1705)],
)
def test_the_interval_is_that_of_newcombes_tables(p, q, low, high):
    """Cases (a) and (b) of Newcombe's table II, with the signs reversed."""
    made = compare(run_with(range(p[0]), p[1]), run_with(range(q[0]), q[1]))
    assert made.gain[1:] == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@pytest.mark.parametrize(
    ("passed", "low", "high"),
    [
        pytest.param(range(100), 20, 20, id="half of them"),
        pytest.param(range(96), 19, 20, id="ends are rounded outwards"),
        pytest.param(range(5), 1, 1, id="one of 40"),
    ],
)
def test_items_that_a_run_repeats_count_as_one_in_its_intervals(passed, low, high):
    items = [
        item(n, trace_of(("passed" if n in passed else "failed", 1))) | {"digest": f"item {n // 5}"}
        for n in range(200)
    ]
    figures = figures_of(run_of(items), items)
    assert figures.repeats == 5
    assert figures.rate_interval == (
        pass_rate_interval(40, low)[0],
        pass_rate_interval(40, high)[1],
    )
    run = run_of(items), items
    assert "as equal items count as one (5 times each on average)" in run_text(*run)
    assert "As the runs repeat items, p is too small." in comparison_text(run, run_with((), 9))
    alike = [one | {"digest": "item 0"} for one in items]
    # Of one item alone, each draw tells something new.
    assert figures_of(run_of(alike), alike).repeats == 1
    assert "equal items" not in run_text(run_of(alike), alike)


def test_an_item_that_a_run_repeats_often_weighs_more_and_tells_no_more():
    """One item is half of the run, so its own pass rate decides."""
    items = [
        item(n, trace_of(("passed" if n < 50 or n % 2 else "failed", 1)))
        | {"digest": f"item {max(n, 49)}"}
        for n in range(100)
    ]
    figures = figures_of(run_of(items), items)
    assert figures.repeats == pytest.approx((50**2 + 50) / 100)
    low, high = figures.rate_interval  # Of about 100 / 25.5 different items.
    assert low < 0.3
    assert high > 0.95


def test_items_with_draws_that_are_not_finished_may_pass_or_fail():
    done, items = run_with(range(50), 100)
    begun = [
        one
        if n % 2
        else item(n, None, status="unfinished", drawn=one["trace"]["slices"], digest=one["digest"])
        for n, one in enumerate(run_with(range(1, 100, 2), 100)[1])
    ]
    low, high = pass_rate_interval(100, 50)[0], pass_rate_interval(100, 100)[1]
    assert figures_of(run_of(begun), begun).rate_interval == (low, high)
    # All of the finished items passed. But the others had draws, too, and all of those failed.
    made = compare((done, items), (run_of(begun), begun))
    gain, low, high = made.gain
    assert gain == pytest.approx(0.5)
    assert low < 0 < high
    assert "compare p and times when both runs are finished" in both_words(made)


def test_items_are_the_same_where_place_label_and_row_are():
    run, items = run_with({1}, 4)
    another = [items[1], items[2] | {"label": "other"}, items[3] | {"data": {"x": 1}}]
    another += [item(9, None, status="unfinished")]
    made = compare((run, items), (run, another))
    assert made.both == {(True, True): 1}
    assert (made.first.items, made.second.items) == (4, 4)
    assert "no finished item in common" in comparison_text((run, items[:1]), (run, another))
    assert math.isnan(compare((run, []), (run, items)).gain[0])


def test_nothing_in_a_run_reaches_a_page_as_markup():
    items = calls(3)
    other = run_of(items, identity={"model": "<b>m</b>"})
    page = comparison_report((other, items), (other, items), names=("<i>", NASTY[0]))
    assert "<b>m" not in page
    assert "<i>" not in page
