from __future__ import annotations

import math
from fractions import Fraction

import pytest

from mellea_like.core.argument_checks import real_number, whole_number


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (1, {}),
        (10**400, {}),
        (0, {"least": 0}),
        (-(10**400), {"least": -math.inf}),
        (3, {"least": 3, "most": 3}),
        (8, {"most": 8}),
    ],
)
def test_a_whole_number_within_its_bounds_is_given_back(value, bounds):
    assert whole_number("n", value, **bounds) is value


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, Fraction(1), math.nan])
def test_what_is_no_int_is_refused(value):
    with pytest.raises(TypeError) as caught:
        whole_number("Thing: size", value)
    assert str(caught.value) == f"Thing: size must be an integer, not {value!r}"


@pytest.mark.parametrize(
    ("value", "bounds", "says"),
    [
        (0, {}, "at least 1, not 0"),
        (-1, {"least": 0}, "at least 0, not -1"),
        (9, {"most": 8}, "at least 1 and at most 8, not 9"),
        (0, {"most": 1234567}, "at least 1 and at most 1234567, not 0"),
    ],
)
def test_a_whole_number_out_of_its_bounds_is_refused(value, bounds, says):
    with pytest.raises(ValueError, match="size") as caught:
        whole_number("size", value, **bounds)
    assert str(caught.value) == f"size must be {says}"


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (0, {}),
        (-1e300, {}),
        (10**300, {}),
        (5e-324, {"over": 0}),
        (0, {"least": 0}),
        (0.5, {"over": 0, "under": 1}),
        (0, {"least": 0, "most": 1}),
        (1.0, {"least": 0, "most": 1}),
        (math.inf, {"over": 0, "most": math.inf}),
    ],
)
def test_a_number_within_its_bounds_is_given_back(value, bounds):
    assert real_number("n", value, **bounds) is value


@pytest.mark.parametrize("value", [True, False, "1", None, 1j, Fraction(1)])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError) as caught:
        real_number("Thing: share", value)
    assert str(caught.value) == f"Thing: share must be a number, not {value!r}"


def test_an_error_says_what_the_number_counts():
    with pytest.raises(TypeError, match=r"^delay must be a number of seconds, not None$"):
        real_number("delay", None, over=0, unit="seconds")
    with pytest.raises(
        ValueError, match=r"^delay must be greater than 0 seconds and finite, not 0$"
    ):
        real_number("delay", 0, over=0, unit="seconds")


@pytest.mark.parametrize(
    ("bounds", "wrong", "says"),
    [
        ({}, [math.inf, -math.inf, 10**400, -(10**400)], "finite"),
        ({"over": 0}, [0, -1, -0.0, math.inf], "greater than 0 and finite"),
        ({"least": 0}, [-5e-324, math.inf], "at least 0 and finite"),
        ({"least": 0, "most": math.inf}, [-1, -math.inf], "at least 0"),
        ({"over": 0, "under": 1}, [0, 1, 2], "greater than 0 and less than 1"),
        ({"least": 0, "most": 1}, [-0.1, 1.1, math.inf], "at least 0 and at most 1"),
        ({"over": 0, "most": 1}, [0, 1.1], "greater than 0 and at most 1"),
        ({"least": 0, "under": 1}, [-1, 1], "at least 0 and less than 1"),
        ({"under": 1}, [1, -math.inf], "less than 1"),
        ({"most": 1}, [2], "at most 1"),
        ({"most": math.inf}, [-math.inf], "at most inf"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(bounds, wrong, says):
    for value in [*wrong, math.nan]:
        with pytest.raises(ValueError, match="share") as caught:
            real_number("share", value, **bounds)
        assert str(caught.value) == f"share must be {says}, not {value!r}"
