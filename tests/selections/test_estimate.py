"""Pass rates, coverage, and what more draws would bring."""

from __future__ import annotations

import math
import random
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.estimate import fit_pass_rates, pass_at_k, pass_hat_k, pass_rate_interval


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
        ((3, 4, 1), "of 3 draws 4 cannot have passed"),
        ((3, -1, 1), "cannot have passed"),
        ((3, 1, 4), "k lies between 1 and the number of draws, 3, not 4"),
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
    low, high = pass_rate_interval(10, 0)
    assert low == 0
    assert 0 < high < 0.3
    with pytest.raises(ValueError, match="confidence lies between 0 and 1"):
        pass_rate_interval(10, 1, 95)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_interval_holds_the_rate_itself(seen):
    draws, passes = seen
    low, high = pass_rate_interval(draws, passes)
    assert 0 <= low <= passes / draws <= high <= 1


def items(alpha: float, beta: float, hopeless: float, count: int) -> list[float]:
    chance = random.Random(7)
    return [
        0.0 if chance.random() < hopeless else chance.betavariate(alpha, beta) for _ in range(count)
    ]


def test_a_fit_finds_what_items_were_made_from():
    chance = random.Random(1)
    rates = items(1.5, 3.0, 0.2, 4000)
    fit = fit_pass_rates((20, sum(chance.random() < p for _ in range(20))) for p in rates)
    assert fit.items == 4000
    assert fit.hopeless == pytest.approx(0.2, abs=0.03)
    assert fit.alpha / (fit.alpha + fit.beta) == pytest.approx(1 / 3, abs=0.03)
    for k in (1, 5, 40):
        truth = statistics.fmean(1 - (1 - p) ** k for p in rates)
        assert fit.coverage(k) == pytest.approx(truth, abs=0.02)


def test_stopping_at_the_first_pass_does_not_bias_the_fit():
    chance = random.Random(2)
    seen = []
    for p in (rates := items(2.0, 6.0, 0.1, 4000)):
        draws = 1
        while (passed := chance.random() < p) is False and draws < 8:
            draws += 1
        seen.append((draws, int(passed)))
    naive = statistics.fmean(passes / draws for draws, passes in seen)
    truth = statistics.fmean(rates)
    assert naive > 1.5 * truth
    assert fit_pass_rates(seen).coverage(1) == pytest.approx(truth, rel=0.05)


def test_after_many_failures_an_item_is_more_likely_hopeless():
    fit = fit_pass_rates([(10, 0)] * 30 + [(10, 5)] * 70)
    hopes = [fit.still_hopeful(draws) for draws in (0, 1, 5, 20)]
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[0] == pytest.approx(1 - fit.hopeless)
    assert hopes[-1] < 0.1


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=12))
def test_coverage_grows_with_the_draws_whatever_was_seen(drawn):
    fit = fit_pass_rates((draws, round(draws * share)) for draws, share in drawn)
    curve = [fit.coverage(k) for k in (1, 2, 4, 8, 100, 10_000)]
    assert curve == sorted(curve)
    assert curve[0] >= 0
    assert curve[-1] <= 1
    assert math.isfinite(fit.log_likelihood)


def test_nothing_drawn_is_nothing_to_fit():
    with pytest.raises(ValueError, match="no item has a draw"):
        fit_pass_rates([(0, 0)])
