"""`Eager`: all at once, with or without a pool."""

from __future__ import annotations

import pytest
from schedule_kit import facts, progress, took

from mellea_like.sampling.schedules import Eager, Go, Schedule, SchedulePlan


def test_without_a_pool_there_is_nothing_to_decide():
    assert Eager().begin(facts()) is None


@pytest.mark.parametrize("pool", [False, True])
def test_which_turns_are_taken_depends_on_timing_only_with_a_pool(pool):
    schedule = Eager(pool=pool)
    assert (schedule.pooled, schedule.timing_dependent) == (pool, pool)
    assert (schedule.extra, schedule.seconds) == (0, None)


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


def test_it_learns_nothing():
    plan = Eager(pool=True).begin(facts())
    before = plan.decide(progress())
    plan.observe(took(1.0))
    assert plan.decide(progress()) == before


def test_pool_is_a_bool():
    with pytest.raises(TypeError, match="Eager: pool is a bool, not 4"):
        Eager(pool=4)


def test_it_is_a_schedule_and_immutable():
    schedule = Eager()
    assert isinstance(schedule, Schedule)
    with pytest.raises(AttributeError):
        schedule.pool = True
