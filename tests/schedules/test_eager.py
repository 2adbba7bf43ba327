"""`Eager`: all at once, with or without a pool."""

from __future__ import annotations

import pytest
from schedule_kit import facts, progress

from mellea_like.schedules import Eager, Go, SchedulePlan


@pytest.mark.parametrize(
    ("running", "broken", "more"),
    [
        (0, 0, 4),
        (1, 0, 3),
        (4, 0, 0),
        (3, 1, 0),
        (2, 1, 1),
        (0, 4, 0),
        (0, 5, 0),
        (4, 1, 0),
    ],
)
def test_a_pool_keeps_the_width_less_what_permanent_errors_ended(running, broken, more):
    plan = Eager(pool=True).begin(facts(concurrency_budget=4))
    assert isinstance(plan, SchedulePlan)
    assert plan.decide(progress(9.0, [0.0] * running, broken=broken)) == Go(more, None)
