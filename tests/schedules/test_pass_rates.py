"""`PassRates`: Beta posteriors that calls share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_kit import facts, took

from mellea_like import Outcome, Requirement
from mellea_like.schedules import Beta, PassRates, learned
from mellea_like.schedules.learned import key_of


@pytest.mark.parametrize(
    ("prior", "draws", "expected"),
    [
        ((0.5, 1.0), "", (0.5, 1.0)),
        ((0.5, 1.0), "p", (1.5, 1.0)),
        ((0.5, 1.0), "f", (0.5, 2.0)),
        ((1.0, 1.0), "ppfff", (3.0, 4.0)),
        ((2, 3), "fp", (3.0, 4.0)),
    ],
)
def test_a_posterior_counts_passes_and_failures(prior, draws, expected):
    rates = PassRates(prior, memory=10**9)
    for draw in draws:
        rates.observe("key", draw == "p")
    assert rates.parameters("key") == pytest.approx(expected)
    assert rates.mean("key") == pytest.approx(expected[0] / sum(expected))


def test_the_default_prior_believes_in_a_third():
    assert PassRates().mean("anything") == pytest.approx(1 / 3)


@given(st.lists(st.booleans(), max_size=100), st.integers(1, 20))
def test_what_is_remembered_counts_as_no_more_than_the_memory(draws, memory):
    rates = PassRates((1, 1), memory=memory)
    for draw in draws:
        rates.observe("key", draw)
    a, b = rates.parameters("key")
    assert a >= 1
    assert b >= 1
    assert a + b <= 2 + min(len(draws), memory) + 1e-9


def test_each_draw_weakens_those_before_it():
    rates = PassRates((1, 1), memory=4)
    for passed in (True, True, False):
        rates.observe("key", passed)
    assert rates.parameters("key") == pytest.approx((1 + 0.75**2 + 0.75, 1 + 1))


def test_keys_are_apart_and_the_one_used_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(learned, "MOST_KEYS", 2)
    rates = PassRates((1, 1), memory=10**9)
    for key, passed in [("a", True), ("b", True), ("a", False), ("c", True)]:
        rates.observe(key, passed)
    assert [rates.parameters(key) for key in "abc"] == [pytest.approx((2, 2)), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.PASSED, (2, 1)),
        (Outcome.FAILED, (1, 2)),
        (Outcome.ERRORED, (1, 1)),
        (Outcome.CANCELLED, (1, 1)),
    ],
)
def test_only_a_judged_iteration_says_anything(outcome, expected):
    rates = PassRates((1, 1))
    rates.learn("key", took(1.0, outcome))
    assert rates.parameters("key") == expected


# --- beliefs ------------------------------------------------------------------------------------


def test_a_weaker_belief_has_the_same_mean():
    assert Beta(3, 9).at_most(4) == (1, 3)
    assert Beta(3, 9).at_most(12) == (3, 9)
    assert Beta(3, 9).at_most(99) == (3, 9)


def test_failures_make_passing_less_likely():
    assert Beta(1, 1).after_failures(0) == (1, 1)
    assert Beta(1, 1).after_failures(3) == (1, 4)
    assert Beta(1, 1).after_failures(3).mean == 0.2


# --- keys ---------------------------------------------------------------------------------------

short, plain = Requirement("short", lambda c: True), Requirement("plain", lambda c: True, name="p")


def test_by_default_a_key_is_the_names_of_the_requirements():
    assert key_of(None, facts()) == ()
    assert key_of(None, facts(requirements=[short, plain])) == (short.name, "p")


def test_a_key_is_anything_hashable_or_a_function():
    assert key_of("invoices", facts()) == "invoices"
    assert key_of(lambda call: (call.model, call.loop_budget), facts()) == ("model", 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prior": 0.5}, TypeError, r"prior must be a pair of numbers \(a, b\), not 0.5"),
        ({"prior": (1,)}, TypeError, r"prior must be a pair of numbers \(a, b\), not \(1,\)"),
        ({"prior": (0, 1)}, ValueError, "the prior's a must be greater than 0 and finite, not 0"),
        (
            {"prior": (1, math.inf)},
            ValueError,
            "the prior's b must be greater than 0 and finite, not inf",
        ),
        ({"memory": 0}, ValueError, "memory must be at least 1, not 0"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        PassRates(**arguments)
