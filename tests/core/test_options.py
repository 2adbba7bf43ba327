"""Options of a model call."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest

from mellea_like.core.backend import Options


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_stop_texts_are_not_empty(stop):
    with pytest.raises(ValueError, match="non-empty texts"):
        Options(stop=stop)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("temperature", -0.1, ValueError),
        ("temperature", math.inf, ValueError),
        ("temperature", math.nan, ValueError),
        ("temperature", "hot", TypeError),
        ("temperature", True, TypeError),
        ("top_p", 1.1, ValueError),
        ("top_p", -0.1, ValueError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", 1.5, TypeError),
        ("max_tokens", True, TypeError),
        ("seed", "x", TypeError),
        ("seed", 1.0, TypeError),
    ],
)
def test_a_wrong_option_is_named(field, value, error):
    with pytest.raises(error, match=f"option {field}"):
        Options(**{field: value})


def test_extra_is_a_copy_that_can_not_be_changed():
    extra = {"logprobs": 3}
    options = Options(extra=extra)
    extra["logprobs"] = 4
    assert options.extra == {"logprobs": 3}
    with pytest.raises(TypeError):
        options.extra["logprobs"] = 5
    with pytest.raises(FrozenInstanceError):
        options.seed = 5


def test_options_are_made_from_a_mapping():
    assert Options.of(None) == Options()
    assert Options.of({"seed": 1}) == Options(seed=1)
    given = Options(seed=2)
    assert Options.of(given) is given


def test_an_unknown_name_is_shown_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"unknown option heat: the options are model, temp.*extra="
    ):
        Options.of({"heat": 1})


@pytest.mark.parametrize("wrong", [3, "seed", [1]])
def test_something_else_is_no_options(wrong):
    with pytest.raises(TypeError, match="an Options or a mapping"):
        Options.of(wrong)


def test_what_options_leave_open_is_taken_from_defaults():
    defaults = Options(
        model="m", temperature=0.5, max_tokens=9, stop=("x",), extra={"a": 1, "b": 1}
    )
    over = Options(temperature=0.0, seed=3, extra={"b": 2}).over(defaults)
    assert over == Options(
        model="m", temperature=0.0, max_tokens=9, stop=("x",), seed=3, extra={"a": 1, "b": 2}
    )
