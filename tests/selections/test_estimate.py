"""Pass rates, coverage, and what more draws would bring."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from itertools import combinations, pairwise
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mellea_like.estimate import (
    coverage_curve,
    pass_at_k,
    pass_at_k_interval,
    pass_hat_k,
    pass_rate_interval,
)


@pytest.mark.parametrize(("draws", "passes"), [(1, 0), (5, 2), (6, 6), (7, 0)])
def test_both_are_means_over_all_choices_of_k_draws(draws, passes):
    outcomes = [i < passes for i in range(draws)]
    for k in range(1, draws + 1):
        chosen = list(combinations(outcomes, k))
        assert pass_at_k(draws, passes, k) == pytest.approx(statistics.fmean(map(any, chosen)))
        assert pass_hat_k(draws, passes, k) == pytest.approx(statistics.fmean(map(all, chosen)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3, 4, 1), "4 of 3 draws can't have passed"),
        ((3, -1, 1), "can't have passed"),
        ((3, 1, 4), r"k must be between 1 and the number of draws \(3\), not 4"),
        ((3, 1, 0), "not 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments, says):
    for function in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match=says):
            function(*arguments)


def test_the_interval_is_wilsons():
    # Newcombe 1998, table I: 81 of 263.
    assert pass_rate_interval(263, 81) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    with pytest.raises(ValueError, match="there is no draw"):
        pass_rate_interval(0, 0)
    low, high = pass_rate_interval(10, 0)
    assert low == 0
    assert 0 < high < 0.3
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        pass_rate_interval(10, 1, 95)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_interval_holds_the_rate_itself(seen):
    draws, passes = seen
    low, high = pass_rate_interval(draws, passes)
    assert 0 <= low <= passes / draws <= high <= 1


@pytest.mark.parametrize("k", [1, 3, 40])
def test_pass_at_k_has_the_interval_of_the_rate(k):
    low, high = pass_rate_interval(10, 3)
    assert pass_at_k_interval(10, 3, k) == pytest.approx((1 - (1 - low) ** k, 1 - (1 - high) ** k))
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        pass_at_k_interval(10, 3, 0)


def test_pass_at_k_is_in_its_interval():
    for draws, passes in ((1, 1), (2, 1), (10, 1), (10, 9), (10, 10), (30, 0)):
        for k in range(1, draws + 1):
            low, high = pass_at_k_interval(draws, passes, k)
            assert 0 <= low <= pass_at_k(draws, passes, k) <= high <= 1


# --- the curve --------------------------------------------------------------------------------


def stopped(items, rate, hopeless, seed, most=8):
    """What items show that are drawn for until one passes, at most so often."""
    chance = random.Random(seed)
    for _ in range(items):
        p = 0.0 if chance.random() < hopeless else rate(chance)
        first = next((n for n in range(1, most + 1) if chance.random() < p), None)
        yield first or most, int(first is not None)


def raced(items, rate, lanes, times, seed, turns=4):
    """What items show whose lanes race until one passes."""
    chance = random.Random(seed)

    def begin(now, left):
        passes = chance.random() < rate
        took = times[not passes] * chance.lognormvariate(0, 0.5)
        return now + took, passes, left - 1

    for _ in range(items):
        running, judged, passed = [begin(0.0, turns) for _ in range(lanes)], 0, False
        while running and not passed:
            running.sort(reverse=True)
            now, passed, left = running.pop()
            judged += 1
            if left and not passed:
                running.append(begin(now, left))
        yield judged, int(passed), len(running) * passed


POPULATIONS = [
    (lambda chance: chance.betavariate(0.5, 1.5), 0.05),
    (lambda chance: chance.betavariate(1, 3), 0.2),
    (lambda chance: chance.betavariate(2, 6), 0.4),
    (lambda chance: chance.choice((0.02, 0.6)), 0.1),
    (lambda _: 0.3, 0.0),
]


@pytest.mark.storm
@pytest.mark.parametrize(("rate", "hopeless"), POPULATIONS)
def test_intervals_hold_the_truth_to_four_times_the_measured_draws(rate, hopeless):
    chance = random.Random(0)
    rates = [rate(chance) for _ in range(20_000)]
    truth = {k: (1 - hopeless) * fmean(1 - (1 - p) ** k for p in rates) for k in (8, 16, 32)}
    held = Counter()
    for seed in range(12):
        curve = coverage_curve(stopped(100, rate, hopeless, seed))
        for k, share in truth.items():
            at = curve.at(k)
            held[k] += at.low - 1e-3 <= share <= at.high + 1e-3
            assert at.extrapolated == (k > 8)
        held["hopeless"] += hopeless <= curve.hopeless
    # Fewer than 9 of 12 are rarer than one in four hundred where 95 % hold.
    assert min(held.values()) >= 9


@pytest.mark.storm
@pytest.mark.parametrize("times", [(1, 1), (0.3, 1), (1, 0.3)], ids=str)
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_intervals_of_draws_that_raced_hold_the_truth(lanes, times):
    curves = [coverage_curve(raced(100, 0.25, lanes, times, seed)) for seed in range(5)]
    held = Counter(
        k for curve in curves for k in (1, 4) if curve.at(k).low <= 1 - 0.75**k <= curve.at(k).high
    )
    assert min(held[1], held[4]) >= 4


@pytest.mark.parametrize(("rates", "lanes"), [((0.1, 0.1), 8), ((0.0, 0.5), 8), ((0.0, 0.9), 4)])
def test_more_draws_than_raced_are_not_forecast_and_the_bounds_still_hold_the_truth(rates, lanes):
    seen = [one for rate in rates for one in raced(100, rate, lanes, (0.3, 1), rate, turns=1)]
    curve = coverage_curve(seen)
    assert (curve.raced, curve.furthest) == (True, lanes)
    for draws in (2 * lanes, 4 * lanes):
        at = curve.at(draws)
        assert at.extrapolated
        assert at.low <= fmean(1 - (1 - rate) ** draws for rate in rates) <= at.high == 1
    assert curve.hopeless >= rates.count(0) / len(rates)
    assert curve.needed(0.999) is None


def test_draws_that_were_cancelled_without_a_pass_still_allow_a_forecast():
    curve = coverage_curve([(8, 0)] * 20 + [(2, 1)] * 20 + [(3, 0, 1)])
    assert (curve.raced, curve.furthest) == (False, 32)
    assert curve.at(32).high < 1


def test_of_one_draw_of_each_item_nothing_is_known_of_more_and_no_number_is_named():
    curve = coverage_curve([(1, 1)] * 60 + [(1, 0)] * 140)
    at = curve.at(8)
    # All may pass alike, or some always and the others never.
    assert at.low < 0.3
    assert at.high > 1 - 0.7**8
    assert curve.needed(0.95) is None


@pytest.mark.parametrize("items", [20, 100, 1000, 10_000])
@pytest.mark.parametrize("passes", [0, 8])
def test_an_interval_at_its_edge_is_as_wide_as_the_likelihood_says(items, passes):
    curve = coverage_curve([(8, passes)] * items)
    at = curve.at(8)
    # If a share s of the items differed from all those seen, the log likelihood would be
    # items * log(1 - s), which is 1.92 lower at:
    share = 1 - math.exp(-1.9207 / items)
    assert (at.low, at.high) == pytest.approx((1 - share, 1) if passes else (0, share), abs=1e-5)
    assert curve.hopeless == pytest.approx(share if passes else 1, abs=1e-5)


def test_items_that_pass_rarely_are_not_hopeless():
    curve = coverage_curve([(200, 6)] * 50)
    assert curve.hopeless == pytest.approx(1 - math.exp(-1.9207 / 50), abs=1e-3)


def test_an_item_whose_draws_were_all_cancelled_may_have_passed_or_not():
    at = coverage_curve([(1, 1)] * 20 + [(0, 0, 1)] * 20).at(1)
    assert at.low < 0.5 < at.high == 1
    with pytest.raises(ValueError, match="no item has any draws"):
        coverage_curve([(0, 0, 1)])


def test_without_censoring_the_measured_share_is_that_of_the_items():
    curve = coverage_curve([(8, 8)] * 30 + [(8, 0)] * 70)
    for k in (1, 8):
        at = curve.at(k)
        assert at.share == pytest.approx(0.3, abs=0.01)
        # Wilson's interval is as long, to a hundredth.
        assert (at.low, at.high) == pytest.approx(pass_rate_interval(100, 30), abs=0.015)


def test_needed_is_the_smallest_number_that_is_enough():
    curve = coverage_curve(stopped(300, lambda chance: chance.betavariate(1, 1), 0.02, 1))
    for target in (0.3, 0.7, 0.85):
        needed = curve.needed(target)
        assert curve.at(needed).share >= target
        assert needed == 1 or curve.at(needed - 1).share < target


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=12))
@example([(23, 0.5625), (23, 0.4375), (9, 0.875), (13, 0.3125), (13, 0.3125)])
def test_coverage_grows_with_the_draws_whatever_was_seen(drawn):
    curve = coverage_curve((draws, round(draws * share)) for draws, share in drawn)
    points = [curve.at(k) for k in (1, 2, 8, 100)]
    for part in ("low", "high"):
        ends = [getattr(at, part) for at in points]
        assert all(a <= b + 0.01 for a, b in pairwise(ends))
    assert all(0 <= at.low <= at.share <= at.high <= 1 for at in points)


def test_nothing_drawn_is_nothing_to_fit():
    with pytest.raises(ValueError, match="no item has any draws"):
        coverage_curve([(0, 0)])
    with pytest.raises(ValueError, match="can't have passed"):
        coverage_curve([(1, 2)])
