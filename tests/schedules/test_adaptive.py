"""`Adaptive`: few at a time where most pass, and many where few do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_kit import facts, progress, took

from mellea_like import Outcome
from mellea_like.sampling.schedules import Adaptive, Go, PassRates, SchedulePlan
from mellea_like.sampling.schedules.built_in import width_for


def passing(share, key=(), draws=10_000):
    rates = PassRates((share * draws, (1 - share) * draws))
    rates.parameters(key)
    return rates


@pytest.mark.parametrize(
    ("pass_rate", "price", "expected"),
    [
        (1.0, 1.0, 1),
        (0.25, 1.0, 2),
        (0.05, 1.0, 4),
        (0.01, 1.0, 8),
        (0.05, 0.1, 8),
        (0.25, 0.25, 4),
        (1.0, 99.0, 1),
        (0.16, 1.0, 2),  # 2.5, rounded to even
        (0.15, 1.0, 3),
        (5e-324, 5e-324, 8),
    ],
)
def test_the_width_balances_time_and_requests(pass_rate, price, expected):
    assert width_for(pass_rate, price, 8) == expected


@given(st.floats(0.001, 1), st.floats(0.001, 100), st.integers(1, 20))
def test_no_other_width_costs_less(pass_rate, price, most):
    def cost(k):
        return 1 / (k * pass_rate) + k * price

    exact = math.sqrt(1 / pass_rate / price)
    width = width_for(pass_rate, price, most)
    assert 1 <= width <= most
    if 1 <= exact <= most:
        assert abs(width - exact) <= 0.5 + 1e-9
    else:
        assert cost(width) <= min(cost(k) for k in range(1, most + 1)) + 1e-9


@pytest.mark.parametrize(
    ("share", "failed", "running", "broken", "more"),
    [
        # strength 2, price 1: p is share * 2 / (2 + failed)
        (0.25, 0, 0, 0, 2),
        (0.25, 0, 1, 0, 1),
        (0.25, 0, 2, 0, 0),
        (0.25, 2, 1, 0, 2),
        (0.25, 6, 0, 0, 4),
        (0.25, 6, 4, 0, 0),
        (0.25, 99, 0, 0, 8),
        (0.25, 99, 0, 3, 5),
        (0.25, 0, 0, 3, 2),
        (0.25, 99, 5, 3, 0),
        (0.25, 99, 6, 3, 0),
        (0.25, 99, 0, 8, 0),
        (0.25, 99, 0, 9, 0),
        (0.9, 0, 0, 0, 1),
    ],
)
def test_each_failure_of_a_call_makes_it_wider(share, failed, running, broken, more):
    plan = Adaptive(1.0, passing(share), strength=2.0).begin(facts(concurrency_budget=8))
    assert isinstance(plan, SchedulePlan)
    at = progress(3.0, [0.0] * running, failed=failed, broken=broken)
    assert plan.decide(at) == Go(more, None)


def test_what_one_call_learnt_the_next_one_knows_if_it_has_the_same_key():
    schedule = Adaptive(1.0, PassRates((1, 1)), key=lambda call: call.model, strength=50)
    assert schedule.begin(facts(concurrency_budget=8)).decide(progress()).more == 1
    plan = schedule.begin(facts(concurrency_budget=8))
    for _ in range(40):
        plan.observe(took(1.0))
    plan.observe(took(1.0, Outcome.PASSED))
    plan.observe(took(1.0, Outcome.CANCELLED))
    assert schedule.rates.mean("model") < 0.1
    assert plan.decide(progress()).more == 1  # Its own failures come with the progress.
    assert schedule.begin(facts(concurrency_budget=8)).decide(progress()).more == 5
    assert schedule.begin(facts(concurrency_budget=8, model="b")).decide(progress()).more == 1
