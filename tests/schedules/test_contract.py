"""What all schedules promise alike."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from schedule_kit import facts, progress, took

from mellea_like.schedules import (
    Eager,
    Hedged,
    LatencyQuantiles,
    Restart,
    SchedulePlan,
    Staggered,
)


@pytest.mark.parametrize(
    ("schedule", "pooled", "timing_dependent", "extra", "seconds"),
    [
        (Eager(), False, False, 0, None),
        (Eager(pool=True), True, True, 0, None),
        (Staggered(1), False, False, 0, None),
        (Hedged(extra=3), True, True, 3, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_call_goes_by(schedule, pooled, timing_dependent, extra, seconds):
    assert (schedule.pooled, schedule.timing_dependent) == (pooled, timing_dependent)
    assert (schedule.extra, schedule.seconds) == (extra, seconds)
    with pytest.raises(AttributeError):
        setattr(schedule, fields(schedule)[0].name, None)
    plan = schedule.begin(facts())
    if schedule == Eager():
        assert plan is None  # There is nothing to decide.
    else:
        assert isinstance(plan, SchedulePlan)
        assert plan.decide(progress()).more >= 1


@pytest.mark.parametrize("schedule", [Eager(pool=True), Staggered(2.0)], ids=repr)
def test_what_decides_by_numbers_alone_learns_nothing(schedule):
    plan = schedule.begin(facts())
    before = plan.decide(progress())
    plan.observe(took(1.0))
    assert plan.decide(progress()) == before


@pytest.mark.parametrize(
    ("make", "name", "shared"),
    [
        (Hedged, "latency", LatencyQuantiles()),
        (Restart, "latency", LatencyQuantiles()),
    ],
)
def test_each_learns_for_itself_unless_it_is_given_what_is_shared(make, name, shared):
    assert getattr(make(), name) is not getattr(make(), name)
    assert getattr(make(**{name: shared}), name) is shared


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        (Eager, {"pool": 4}, TypeError, "pool is a bool, not 4"),
        (Staggered, {"delay": 0}, ValueError, "delay is over 0 and finite, not 0"),
        (Staggered, {"delay": -1.0}, ValueError, "delay is over 0 and finite, not -1.0"),
        (Staggered, {"delay": math.inf}, ValueError, "delay is over 0 and finite, not inf"),
        (Staggered, {"delay": math.nan}, ValueError, "delay is over 0 and finite, not nan"),
        (Staggered, {"delay": "1"}, TypeError, "delay is a number, not '1'"),
        (Staggered, {"delay": True}, TypeError, "delay is a number, not True"),
        (Hedged, {"quantile": 0}, ValueError, "quantile is over 0 and under 1, not 0"),
        (Hedged, {"quantile": 1.0}, ValueError, "quantile is over 0 and under 1, not 1.0"),
        (Hedged, {"quantile": "0.9"}, TypeError, "quantile is a number, not '0.9'"),
        (Hedged, {"extra": 0}, ValueError, "extra is at least 1, not 0"),
        (Hedged, {"extra": 1.0}, TypeError, "extra is a whole number .*, not 1.0"),
        (Restart, {"quantile": 1}, ValueError, "quantile is over 0 and under 1, not 1"),
        (Restart, {"most": 0}, ValueError, "most is at least 1, not 0"),
        (Restart, {"schedule": "eager"}, TypeError, "schedule is a BaseSchedule, not 'eager'"),
        (Restart, {"latency": 0.5}, TypeError, "latency is a LatencyQuantiles, not 0.5"),
        (Hedged, {"latency": 0.5}, TypeError, "latency is a LatencyQuantiles, not 0.5"),
    ],
)
def test_arguments_are_checked(kind, arguments, error, message):
    with pytest.raises(error, match=f"{kind.__name__}: {message}"):
        kind(**arguments)
