"""`Deadline`: as many attempts as the time and the risk ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_kit import facts, progress, took

from mellea_like import Outcome
from mellea_like.sampling.schedules import (
    Deadline,
    Go,
    LatencyQuantiles,
    PassRates,
    SchedulePlan,
)
from mellea_like.sampling.schedules.base import SLACK

HALF = (1e9, 1e9)
"""A pass rate of a half, certainly: at a risk of 0.01 it takes 7 attempts."""


def plan_of(*, seconds=10.0, risk=0.01, prior=HALF, round_=None, width=8):
    latency = LatencyQuantiles()
    if round_ is not None:
        for _ in range(10):
            latency.observe(round_, "model")
    schedule = Deadline(seconds, risk, PassRates(prior), latency)
    return schedule.begin(facts(concurrency_budget=width))


@pytest.mark.parametrize(
    ("now", "running", "failed", "broken", "expected"),
    [
        # 7 are needed, and there is time for 10, 5, 3, 2, 1 of them in a row
        (0.0, [], 0, 0, Go(1, 3.0)),
        (5.0, [], 0, 0, Go(2, 5.0)),
        (5.0 + SLACK / 2, [], 0, 0, Go(2, 5.0)),
        (7.0, [], 0, 0, Go(3, 7.0)),
        (8.0, [], 0, 0, Go(4, 8.0)),
        (8.1, [], 0, 0, Go(7, 9.0)),
        (9.9, [], 0, 0, Go(7, None)),
        (10.0, [], 0, 0, Go(0, None)),
        (11.0, [9.0], 0, 0, Go(0, None)),
        # what is in flight will be followed by others: nothing more is needed
        (0.5, [0.0], 0, 0, Go(0, 3.0)),
        (5.5, [5.0, 5.0], 0, 0, Go(0, 6.0)),
        (7.9, [7.0, 7.0, 7.0], 0, 0, Go(0, 8.0)),
        # one lags: what it would have come to is made up for
        (6.5, [5.0, 5.0], 0, 0, Go(0, 7.0)),
        (7.5, [5.0, 5.0], 0, 0, Go(1, 8.0)),
        # a permanent error makes it narrower
        (9.0, [], 0, 3, Go(5, 9.0)),
        (9.0, [8.9] * 3, 0, 3, Go(2, 9.0)),
        (9.0, [8.9] * 6, 0, 3, Go(0, None)),
        (9.0, [], 0, 9, Go(0, None)),
    ],
)
def test_attempts_are_spread_over_the_time_left(now, running, failed, broken, expected):
    plan = plan_of(round_=1.0)
    assert isinstance(plan, SchedulePlan)
    go = plan.decide(progress(now, running, failed=failed, broken=broken))
    assert go.more == expected.more
    if expected.look_again is None or go.more + len(running) >= 8 - broken:
        assert go.look_again is None
    else:
        assert go.look_again == pytest.approx(expected.look_again, abs=1e-5)


def test_the_width_is_the_most_there_may_be():
    assert plan_of(width=3).decide(progress()) == Go(3, None)
    assert plan_of(width=3).decide(progress(1.0, [0.5])) == Go(2, None)


def test_no_more_is_started_than_there_are_turns_and_at_the_end_nothing():
    assert plan_of().decide(progress(turns=2)) == Go(2, None)
    assert plan_of().decide(progress(1.0, [0.5], turns=2)) == Go(2, None)
    assert plan_of().decide(progress(1.0, turns=0)) == Go(0, None)


def test_until_it_is_known_how_long_one_takes_all_is_done_in_one_round():
    assert plan_of().decide(progress()) == Go(7, None)
    assert plan_of(risk=0.26).decide(progress()) == Go(2, None)
    assert plan_of(risk=0.26).decide(progress(9.0, [0.0])) == Go(1, None)


def test_what_takes_no_time_needs_no_siblings():
    plan = plan_of(round_=0.0)
    assert plan.decide(progress()) == Go(1, None)
    assert plan.decide(progress(0.0, [0.0])) == Go(0, None)


def test_each_failure_of_a_call_asks_for_more_attempts():
    plan = plan_of(prior=(1, 1), risk=0.4, width=100)
    assert [plan.decide(progress(failed=n)).more for n in range(5)] == [2, 3, 5, 6, 8]


def test_it_looks_again_when_one_round_less_fits():
    plan = plan_of(round_=1.0)
    go = plan.decide(progress(5.0))
    assert go.more == 2
    assert plan.decide(progress(5.0, [5.0, 5.0])).more == 0
    again = plan.decide(progress(go.look_again, [5.0, 5.0]))
    assert again.look_again == pytest.approx(go.look_again + 1.0)
    # both were lost without a failure: 4 rounds are left, and then 3
    assert plan.decide(progress(6.0, [])).more == 2
    assert plan.decide(progress(again.look_again, [])).more == 3


def test_what_one_call_learnt_the_next_one_knows():
    schedule = Deadline(10.0, 0.01, PassRates((1, 1)), key="key")
    plan = schedule.begin(facts(concurrency_budget=100))
    assert plan.decide(progress(turns=500)).more == 99
    for _ in range(90):
        plan.observe(took(2.0, Outcome.PASSED))
    plan.observe(took(2.0, Outcome.CANCELLED))
    assert schedule.rates.mean("key") > 0.95
    assert schedule.latency.quantile(0.5, "model") is not None
    assert schedule.begin(facts(concurrency_budget=100)).decide(progress()) == Go(
        1, pytest.approx(6.0, abs=1e-5)
    )


@given(
    now=st.floats(0, 12),
    ages=st.lists(st.floats(0, 12), max_size=9),
    failed=st.integers(0, 30),
    broken=st.integers(0, 9),
    turns=st.integers(0, 40),
    round_=st.one_of(st.none(), st.floats(0, 20)),
    risk=st.floats(0.001, 0.999),
)
def test_it_never_stops_while_there_is_time_nor_goes_beyond_the_width(
    now, ages, failed, broken, turns, round_, risk
):
    running = [max(0.0, now - age) for age in ages]
    plan = plan_of(prior=(1, 2), round_=round_, risk=risk)
    at = progress(now, running, failed=failed, broken=broken, turns=turns)
    go = plan.decide(at)
    assert 0 <= go.more <= max(0, 8 - broken - len(running))
    assert go.more <= turns or running
    if now < 10 and not running and turns and broken < 8:
        assert go.more >= 1
    if go.look_again is not None:
        assert now < go.look_again <= 10.1
    narrow = plan.decide(at._replace(failed=failed + 1))
    assert now >= 10 or narrow.more >= go.more
