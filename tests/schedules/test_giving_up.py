"""`PerRequirement`: when further turns would not help."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from engine_kit import a_slice, says
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import Outcome, Requirement, ValidationResult
from mellea_like.schedules.giving_up import PerRequirement

colour, lines = says("red", weight=2), says("lines")
BAD, GOOD = ValidationResult(False), ValidationResult(True)
SKIPPED, BROKEN = ValidationResult.skipped("s"), ValidationResult.errored(OSError("down"))


def judged(*verdicts, **fields):
    outcome = fields.pop("outcome", Outcome.FAILED)
    return a_slice(
        1, outcome, verdicts=list(zip((colour, lines), verdicts, strict=False)), **fields
    )


def added(*slices, **arguments):
    tally = PerRequirement(**arguments).begin()
    return [tally.add(slice_) for slice_ in slices]


def test_six_failures_without_a_pass_are_enough_and_five_are_not():
    assert added(*[judged(BAD, GOOD)] * 6) == [
        *[None] * 5,
        "requirement 'says red' was met in 0 of 6 replies: further draws are unlikely to help",
    ]


@pytest.mark.parametrize(
    ("passed", "expected"), [(0, 6), (1, 10), (2, 13), (3, 17), (4, 20), (100, 272)]
)
def test_a_pass_asks_for_more_failures(passed, expected):
    slices = [judged(GOOD, GOOD)] * passed + [judged(BAD)] * expected
    assert [why is not None for why in added(*slices)] == [False] * (len(slices) - 1) + [True]


@pytest.mark.parametrize(
    "slice_",
    [
        judged(SKIPPED, SKIPPED),
        judged(BROKEN, SKIPPED, outcome=Outcome.ERRORED),
        a_slice(1, Outcome.ERRORED, error=OSError("down")),
        a_slice(1, Outcome.CANCELLED),
        a_slice(1, Outcome.CANCELLED, reason="cut off"),
        judged(GOOD, GOOD, outcome=Outcome.PASSED),
    ],
)
def test_what_says_nothing_against_a_requirement_does_not_count(slice_):
    assert added(*[slice_] * 50) == [None] * 50


def test_all_verdicts_of_a_slice_are_counted_also_where_the_first_is_hopeless():
    *_, why, then = added(*[judged(BAD, BAD)] * 6, judged(GOOD, BAD))
    assert "'says red'" in why
    assert "'says lines' was met in 0 of 7" in then


def test_replies_that_do_not_parse_count_as_a_requirement_of_their_own():
    unparsed = a_slice(1, reason="no JSON")
    assert added(*[unparsed] * 6) == [
        *[None] * 5,
        "a reply was usable in 0 of 6 replies: further draws are unlikely to help",
    ]
    assert added(judged(BAD), *[unparsed] * 9)[-1] is None
    assert "in 1 of 11 replies" in added(judged(BAD), *[unparsed] * 10)[-1]


def test_what_a_plugin_added_counts_and_need_not_be_hashable():
    class Unhashable(Requirement):
        __hash__ = None

    extra = Unhashable("no names", lambda c: True)
    why = added(*[a_slice(1, verdicts=[(extra, BAD)])] * 6)[-1]
    assert why is not None
    assert "of 6 replies" in why


def upper_bound_is_under(threshold, confidence, passed, failed):
    """The same by exact integration of the posterior's density."""
    a, x = passed + 1, Fraction(threshold)
    n = a + failed
    whole = Fraction(math.factorial(passed) * math.factorial(failed), math.factorial(n))
    below = sum(
        Fraction((-1) ** i * math.comb(failed, i), a + i) * x ** (a + i) for i in range(failed + 1)
    )
    return below / whole > confidence


def failures_needed(passed, threshold, confidence, most):
    tally = PerRequirement(threshold, confidence).begin()
    for _ in range(passed):
        tally.add(judged(GOOD))
    return next((n for n in range(1, most + 1) if tally.add(judged(BAD))), most + 1)


@given(st.integers(0, 12), st.floats(0.05, 0.9), st.floats(0.2, 0.99))
def test_it_is_the_least_number_of_failures(passed, threshold, confidence):
    enough = failures_needed(passed, threshold, confidence, 60)
    if enough <= 60:
        assert upper_bound_is_under(threshold, confidence - 1e-9, passed, enough)
    if enough > 1:
        assert not upper_bound_is_under(threshold, confidence + 1e-9, passed, enough - 1)


@pytest.mark.parametrize(("threshold", "enough"), [(0.999, 1), (1e-3, 2301)])
def test_extreme_thresholds_are_no_trouble(threshold, enough):
    assert failures_needed(0, threshold, 0.9, 3000) == enough


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"threshold": 0}, ValueError, "threshold must be greater than 0 and less than 1, not 0"),
        ({"confidence": 1}, ValueError, "confidence must be greater than 0 and less than 1, not 1"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=f"PerRequirement: {message}"):
        PerRequirement(**arguments)
