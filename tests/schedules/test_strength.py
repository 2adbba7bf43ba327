"""How much calls differ, learnt from their draws, and what `Adaptive` makes of it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from schedule_kit import facts, progress, took

from mellea_like import Outcome
from mellea_like.pass_rates import beta_of_calls
from mellea_like.sampling.schedules import Adaptive, PassRates


def until_a_pass(rates, calls, spread, most=32, seed=3):
    """Learn from calls that stop at their first pass."""
    chance = random.Random(seed)
    for _ in range(calls):
        rate, call = spread(chance), rates.call("key")
        for _ in range(most):
            passed = chance.random() < rate
            call.learn(took(1.0, Outcome.PASSED if passed else Outcome.FAILED))
            if passed:
                break
    return rates


@pytest.mark.parametrize(
    ("a", "b"), [(0.3, 0.6), (0.6, 0.6), (2.0, 4.0)], ids=["unlike", "like a coin", "alike"]
)
def test_the_spread_of_calls_is_found_though_each_stops_at_its_first_pass(a, b):
    found = []
    for seed in range(5):
        chance = random.Random(seed)
        counts = Counter()
        for _ in range(200):
            rate = chance.betavariate(a, b)
            draws = next((n for n in range(1, 33) if chance.random() < rate), None)
            counts[draws or 32, int(draws is not None)] += 1
        found.append(beta_of_calls(counts, (0.5, 1.0)))
    assert sum(x for x, _ in found) / 5 == pytest.approx(a, rel=0.35)
    assert sum(y for _, y in found) / 5 == pytest.approx(b, rel=0.35)


def test_without_calls_the_prior_stays():
    assert beta_of_calls({}, (0.5, 1.0)) == pytest.approx((0.5, 1.0))
    assert PassRates().strength("key") is None
    rates = PassRates()
    rates.observe("key", passed=True)
    assert rates.strength("key") is None


def test_calls_that_differ_make_what_they_taught_weaker_and_those_alike_stronger():
    unlike = until_a_pass(PassRates(), 150, lambda chance: chance.betavariate(0.3, 0.3))
    alike = until_a_pass(PassRates(), 150, lambda _: 0.5)
    assert 0.5 <= unlike.strength("key") < 1.2
    assert alike.strength("key") > 4


def test_the_more_calls_differ_the_sooner_a_calls_own_failures_make_it_wider():
    widths = {}
    for name, spread in {"unlike": (0.3, 0.3), "alike": (60, 60)}.items():
        learnt = until_a_pass(PassRates(), 150, lambda chance, ab=spread: chance.betavariate(*ab))
        # The same rate of draws; how the calls differ is all the difference.
        for _ in range(2000):
            learnt.observe("key", passed=True)
            learnt.observe("key", passed=False)
        plan = Adaptive(1.0, learnt, key="key").begin(facts(concurrency_budget=8))
        widths[name] = [plan.decide(progress(1.0, [], failed=n)).more for n in (0, 3)]
    assert widths["unlike"][0] == widths["alike"][0]
    assert widths["unlike"][1] > widths["alike"][1]


def test_only_the_latest_calls_count():
    rates = until_a_pass(PassRates(), 150, lambda chance: chance.betavariate(0.3, 0.3))
    until_a_pass(rates, 250, lambda _: 0.5)
    assert rates.strength("key") > 4
