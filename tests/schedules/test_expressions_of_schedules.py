"""The grammar of schedules in configuration."""

from __future__ import annotations

import re

import pytest

from mellea_like.schedules import Eager, Hedged, Restart, Staggered
from mellea_like.schedules.expressions import SCHEDULES, parse_schedule


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("eager", Eager, {"pool": False}),
        (" Eager ", Eager, {"pool": False}),
        ("pooled", Eager, {"pool": True}),
        ("staggered:0.5", Staggered, {"delay": 0.5}),
        ("STAGGERED : 2", Staggered, {"delay": 2.0}),
        ("hedged", Hedged, {"quantile": Hedged().quantile}),
        ("hedged:0.9", Hedged, {"quantile": 0.9}),
        ("restart", Restart, {"quantile": Restart().quantile}),
        ("restart:0.9", Restart, {"quantile": 0.9}),
    ],
)
def test_a_schedule_is_a_name_and_its_numbers(text, kind, values):
    schedule = parse_schedule(text)
    assert type(schedule) is kind
    assert {name: getattr(schedule, name) for name in values} == values


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stagered:1", "is unknown; did you mean staggered:0.5?"),
        ("pool", "is unknown; did you mean pooled?"),
        ("", "schedule '' is unknown\nAllowed: eager  pooled  staggered:SECONDS"),
        ("lazy", "is unknown\nAllowed: "),
        ("eager:1", "schedule 'eager:1' must have the form eager, as in eager"),
        ("pooled:", "schedule 'pooled:' must have the form pooled"),
        ("staggered", "must have the form staggered:SECONDS, as in staggered:0.5"),
        ("staggered:x", "must have the form staggered:SECONDS, as in staggered:0.5"),
        ("staggered:0", "delay must be greater than 0 and finite, not 0.0, as in staggered:0.5"),
        ("staggered:inf", "delay must be greater than 0 and finite, not inf, as in staggered:0.5"),
        ("hedged:1", "quantile must be greater than 0 and less than 1, not 1.0, as in hedged:0.8"),
        ("hedged:0.9,1", "must have the form hedged[:QUANTILE], as in hedged:0.8"),
    ],
)
def test_what_is_no_schedule_is_a_sentence_that_says_what_to_write(text, sentence):
    with pytest.raises(ValueError, match=r"^schedule ") as caught:
        parse_schedule(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("form", SCHEDULES)
def test_every_form_that_is_shown_can_be_written(form):
    plain = form.partition("[")[0]
    filled = form.replace("[", "").replace("]", "")
    for text in (plain, filled):
        parse_schedule(re.sub("[A-Z]+", "0.5", text))
