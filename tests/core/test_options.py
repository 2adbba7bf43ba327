"""Options of a model call."""

from __future__ import annotations

import math
import pickle

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
        ("temperature", "hot", TypeError),
        ("top_p", 1.1, ValueError),
        ("top_p", -0.1, ValueError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", 1.5, TypeError),
        ("seed", "x", TypeError),
        ("model", 3, TypeError),
        ("stop", 3, TypeError),
        ("stop", None, TypeError),
    ],
)
def test_a_wrong_option_is_named(field, value, error):
    with pytest.raises(error, match=f"option {field}"):
        Options(**{field: value})


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


def test_extra_fields_are_a_mapping_that_can_be_pickled():
    options = Options(extra={"top_k": 5})
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(TypeError, match="an Options object's extra must be a mapping"):
        Options(extra=[("top_k", 5)])
