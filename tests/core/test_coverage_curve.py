"""The ends of a coverage curve, whose search may stop at an optimum that isn't the best."""

from __future__ import annotations

from itertools import pairwise
from math import exp

import pytest

from mellea_like import pass_rates
from mellea_like.pass_rates import NEAR, RATES, coverage_curve


@pytest.mark.parametrize(
    "seen", [[(6, 0), (10, 0)], [(10, 0)], [(4, 1), (8, 8), (10, 2, 1)]], ids=str
)
def test_the_ends_of_the_interval_do_not_fall_with_more_draws(seen):
    curve = coverage_curve(seen)
    points = [curve.at(k) for k in range(1, 41)]
    for part in ("low", "high"):
        ends = [getattr(at, part) for at in points]
        assert all(a <= b + 0.01 for a, b in pairwise(ends))


@pytest.mark.parametrize("passes", [1, 3, 40, 999])
@pytest.mark.parametrize("draws", [1000, 100_000, 1_000_000])
def test_an_item_with_very_many_draws_has_the_rate_that_they_show(draws, passes):
    at = coverage_curve([(draws, passes)]).at(1)
    rate = passes / draws
    below = max(known for known in RATES if known <= rate)
    above = min(known for known in RATES if known >= rate)
    assert below - 1e-6 <= at.share <= above + 1e-6
    # One item says little about others; the search may stop 5 % short of `NEAR`, or beyond it.
    least = exp(-NEAR)
    assert at.low == pytest.approx(at.share * least, abs=0.02)
    assert at.high == pytest.approx(1 - (1 - at.share) * least, abs=0.02)


def test_where_nothing_has_passed_the_equations_stay_few(monkeypatch):
    sizes, solved = [], pass_rates._solved
    monkeypatch.setattr(pass_rates, "_solved", lambda rows: sizes.append(len(rows)) or solved(rows))
    curve = coverage_curve([(1000, 0)])
    assert [curve.at(k).low for k in (1, 1000, 4000)] == [0.0, 0.0, 0.0]
    assert max(sizes) <= 30
