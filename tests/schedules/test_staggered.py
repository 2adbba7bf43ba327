"""`Staggered`: subsample i starts when i delays have passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_kit import facts, progress, took

from mellea_like.schedules import Go, SchedulePlan, Staggered
from mellea_like.schedules.base import SLACK


@pytest.mark.parametrize(
    ("now", "opened", "running", "waiting", "expected"),
    [
        # the first starts at once, the others a delay apart
        (0.0, 0, 0, 0, Go(1, 2.0)),
        (1.9, 1, 1, 0, Go(0, 2.0)),
        (2.0, 1, 1, 0, Go(1, 4.0)),
        (4.0, 2, 2, 0, Go(1, 6.0)),
        (6.0, 3, 3, 0, Go(1, None)),
        (99.0, 4, 4, 0, Go(0, None)),
        # a clock that reads a rounding error less than what was slept for
        (2.0 - SLACK / 2, 1, 1, 0, Go(1, 4.0)),
        # two became due while the event loop was busy
        (4.1, 1, 1, 0, Go(2, 6.0)),
        # a chain at work goes on whatever the time
        (0.5, 1, 0, 1, Go(1, 2.0)),
        (2.5, 2, 1, 1, Go(1, 4.0)),
        (2.5, 1, 0, 1, Go(2, 4.0)),
        (99.0, 4, 1, 3, Go(3, None)),
        # none is at work any more: the next one does not wait
        (0.5, 1, 0, 0, Go(1, 4.0)),
        (0.7, 2, 0, 0, Go(1, 6.0)),
        (0.9, 3, 0, 0, Go(1, None)),
        (0.9, 4, 0, 0, Go(0, None)),
        # one started before its time, the next one has its own
        (2.1, 2, 1, 0, Go(0, 4.0)),
    ],
)
def test_when_subsamples_start(now, opened, running, waiting, expected):
    plan = Staggered(2.0).begin(facts(concurrency_budget=4))
    assert isinstance(plan, SchedulePlan)
    at = progress(now, [0.0] * running, opened=opened, waiting=waiting)
    assert plan.decide(at) == expected
    plan.observe(took(1.0))
    assert plan.decide(at) == expected


@given(
    delay=st.floats(min_value=5e-324, max_value=1e300),
    now=st.floats(min_value=0, max_value=1e300),
    chains=st.integers(1, 50),
    opened=st.integers(0, 50),
    waiting=st.integers(0, 50),
)
def test_no_more_chains_than_there_are_and_it_never_looks_again_at_the_same_time(
    delay, now, chains, opened, waiting
):
    opened, plan = min(opened, chains), Staggered(delay).begin(facts(concurrency_budget=chains))
    at = progress(now, (), opened=opened, waiting=min(waiting, opened))
    go = plan.decide(at)
    fresh = go.more - at.waiting
    assert 0 <= fresh <= chains - opened
    assert (go.look_again is None) == (opened + fresh == chains)
    if go.look_again is not None and at.waiting:
        assert go.look_again > now
