"""`Hedged`: an iteration that takes unusually long gets another one beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_kit import facts, progress, took

from mellea_like import Outcome
from mellea_like.schedules import Go, Hedged, LatencyQuantiles, SchedulePlan
from mellea_like.schedules.base import SLACK


def usually(seconds, model="model"):
    """Durations of which every quantile is the same."""
    latency = LatencyQuantiles()
    for _ in range(10):
        latency.observe(seconds, model)
    return latency


@pytest.mark.parametrize(
    ("now", "running", "broken", "expected"),
    [
        # all at once; the first look is when the oldest takes unusually long
        (0.0, [], 0, Go(4, 1.0)),
        (0.3, [0.0, 0.1, 0.2, 0.3], 0, Go(0, 1.0)),
        (0.4, [0.1, 0.2, 0.3], 0, Go(1, 1.1)),
        # one is old: another takes its place, and then there is no room for more
        (1.0, [0.0, 0.1, 0.2, 0.3], 0, Go(1, None)),
        (1.0 - SLACK / 2, [0.0, 0.1, 0.2, 0.3], 0, Go(1, None)),
        (0.99, [0.0, 0.1, 0.2, 0.3], 0, Go(0, 1.0)),
        # all are old, and there is room for one
        (9.0, [0.0, 0.1, 0.2, 0.3], 0, Go(1, None)),
        (9.0, [0.0, 0.1, 0.2, 0.3, 8.5], 0, Go(0, None)),
        # the old one is still there: the width is kept beside it, and no more
        (1.5, [0.0, 1.0, 1.1, 1.2], 0, Go(1, None)),
        (1.5, [0.0, 1.0, 1.1], 0, Go(2, None)),
        # a permanent error makes it narrower
        (0.5, [0.1, 0.2, 0.3], 1, Go(0, 1.1)),
        (1.2, [0.1, 0.2, 0.3], 1, Go(1, None)),
        (9.0, [], 4, Go(0, None)),
        (9.0, [0.0], 4, Go(0, None)),
        (9.0, [], 5, Go(0, None)),
    ],
)
def test_what_is_old_does_not_count(now, running, broken, expected):
    plan = Hedged(latency=usually(1.0)).begin(facts(concurrency_budget=4))
    assert isinstance(plan, SchedulePlan)
    go = plan.decide(progress(now, running, broken=broken))
    assert go.more == expected.more
    assert go.look_again == pytest.approx(expected.look_again)


def test_nothing_is_hedged_until_enough_is_known():
    schedule = Hedged()
    plan = schedule.begin(facts(concurrency_budget=2))
    for _ in range(9):
        plan.observe(took(1.0))
        assert plan.decide(progress(99.0, [0.0, 0.0])) == Go(0, None)
        assert plan.decide(progress(99.0, [0.0])) == Go(1, None)
    plan.observe(took(1.0, Outcome.CANCELLED))
    assert plan.decide(progress(99.0, [0.0, 0.0])) == Go(0, None)
    plan.observe(took(1.0, Outcome.PASSED))
    assert plan.decide(progress(99.0, [0.0, 0.0])) == Go(1, None)


def test_what_one_call_learnt_the_next_one_knows_but_only_for_the_same_model():
    schedule = Hedged(0.5, latency=usually(1.0))
    assert schedule.begin(facts()).decide(progress()).look_again == 1.0
    assert schedule.begin(facts(model="another")).decide(progress()).look_again is None
    for _ in range(30):
        schedule.begin(facts()).observe(took(3.0))
    assert schedule.begin(facts()).decide(progress()).look_again == 3.0


@given(
    usual=st.floats(0, 100),
    ages=st.lists(st.floats(0, 200), max_size=12),
    width=st.integers(1, 8),
    extra=st.integers(1, 4),
    broken=st.integers(0, 9),
)
def test_no_more_than_the_extra_are_in_flight_and_no_time_is_looked_at_twice(
    usual, ages, width, extra, broken
):
    now = 1000.0
    running = [now - age for age in ages]
    schedule = Hedged(0.5, extra, usually(usual))
    plan = schedule.begin(facts(concurrency_budget=width))
    go = plan.decide(progress(now, running, broken=broken))
    assert go.more >= 0
    assert len(running) + go.more <= max(len(running), width - broken + extra)
    young = sum(age < usual - SLACK for age in ages)
    assert go.more == 0 or young + go.more <= width - broken
    if broken == 0:  # the work goes on
        assert len(running) + go.more >= width
    if go.look_again is not None:
        assert now - SLACK <= go.look_again <= now + usual
        # at that time another may start, or some take unusually long
        later = progress(go.look_again, [*running, *[now] * go.more], broken=broken)
        again = plan.decide(later)
        assert again.look_again is None or again.look_again > go.look_again or usual <= 2 * SLACK
