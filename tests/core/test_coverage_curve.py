"""The ends of a coverage curve, where the search for them may find a worse optimum."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mellea_like.pass_rates import coverage_curve


@pytest.mark.parametrize(
    "seen", [[(6, 0), (10, 0)], [(10, 0)], [(4, 1), (8, 8), (10, 2, 1)]], ids=str
)
def test_the_ends_of_the_interval_do_not_fall_with_more_draws(seen):
    curve = coverage_curve(seen)
    points = [curve.at(k) for k in range(1, 41)]
    for part in ("low", "high"):
        ends = [getattr(at, part) for at in points]
        assert all(a <= b + 0.01 for a, b in pairwise(ends))
