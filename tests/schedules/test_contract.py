"""What all schedules promise alike."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import pytest
from schedule_kit import facts, progress

from mellea_like.schedules import (
    BaseSchedule,
    Eager,
    Go,
    Hedged,
    LatencyQuantiles,
    Restart,
    SchedulePlan,
    Staggered,
)

if TYPE_CHECKING:
    from mellea_like.schedules import CallFacts


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


@pytest.mark.parametrize("kind", [Hedged, Restart])
def test_each_learns_for_itself_unless_it_is_given_what_is_shared(kind):
    shared = LatencyQuantiles()
    assert kind().latency is not kind().latency
    assert kind(latency=shared).latency is shared


@dataclass(frozen=True, slots=True)
class Bounded(BaseSchedule):
    seconds: float = field()
    extra: int = 2

    def begin(self, facts: CallFacts) -> None: ...


def test_a_field_of_a_schedule_of_ones_own_may_take_a_propertys_place():
    own = Bounded(3.0)
    assert (own.pooled, own.extra, own.timing_dependent, own.seconds) == (True, 2, True, 3.0)
    assert not hasattr(own, "__dict__")
    with pytest.raises(TypeError, match="seconds"):
        Bounded()
    with pytest.raises(TypeError, match="begin"):
        BaseSchedule()


@pytest.mark.parametrize(
    ("running", "broken", "more"),
    [(0, 0, 4), (1, 0, 3), (4, 0, 0), (3, 1, 0), (2, 1, 1), (0, 4, 0), (0, 5, 0), (4, 1, 0)],
)
def test_a_pool_keeps_the_width_less_what_permanent_errors_ended(running, broken, more):
    plan = Eager(pool=True).begin(facts(concurrency_budget=4))
    assert plan.decide(progress(9.0, [0.0] * running, broken=broken)) == Go(more, None)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        (Eager, {"pool": 4}, TypeError, "pool must be a bool, not 4"),
        (Staggered, {"delay": 0}, ValueError, "delay must be greater than 0 and finite, not 0"),
        (Hedged, {"quantile": 0}, ValueError, "quantile must be greater than 0 and less than 1"),
        (Hedged, {"extra": 0}, ValueError, "extra must be at least 1, not 0"),
        (Restart, {"quantile": 1}, ValueError, "quantile must be greater than 0 and less than 1"),
        (Restart, {"most": 0}, ValueError, "most must be at least 1, not 0"),
        (Restart, {"schedule": "eager"}, TypeError, "schedule must be a schedule, not 'eager'"),
        (Restart, {"latency": 0.5}, TypeError, "latency must be a LatencyQuantiles, not 0.5"),
        (Hedged, {"latency": 0.5}, TypeError, "latency must be a LatencyQuantiles, not 0.5"),
    ],
)
def test_arguments_are_checked(kind, arguments, error, message):
    with pytest.raises(error, match=f"{kind.__name__}: {message}"):
        kind(**arguments)
