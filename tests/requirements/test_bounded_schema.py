"""A JSON Schema can't hang the event loop, whoever wrote it."""

from __future__ import annotations

import json
import time

import pytest

from mellea_like.core.action import Instruction
from mellea_like.core.context import Context
from mellea_like.core.generation import Generation
from mellea_like.core.validation import Candidate, ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks import json_schema


def verdict(check, value) -> ValidationResult:
    text = json.dumps(value)
    return check.validator(Candidate(text, text, Generation(text), Context(), Instruction("x")))


def doubling(depth: int) -> dict[str, object]:
    """A schema in which each level asks the next one twice."""
    parts: dict[str, object] = {
        f"n{n}": {"anyOf": [{"$ref": f"#/$defs/n{n + 1}"}] * 2} for n in range(depth)
    }
    return {"$defs": {**parts, f"n{depth}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def test_a_schema_of_exponential_cost_errs_within_its_steps():
    check = json_schema(doubling(60), max_steps=5_000)
    began = time.perf_counter()
    with pytest.raises(RequirementError, match="too many steps on a reply of 1 characters"):
        verdict(check, 1)
    assert time.perf_counter() - began < 5


def test_the_steps_of_one_reply_do_not_count_for_the_next():
    check = json_schema({"items": {"type": "integer"}}, max_steps=50)
    assert all(verdict(check, [1] * 40).passed for _ in range(10))
    with pytest.raises(RequirementError):
        verdict(check, [1] * 60)


def test_references_in_a_circle_err():
    with pytest.raises(RequirementError, match="circle"):
        verdict(json_schema({"$ref": "#"}), 1)


@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_a_pattern_of_exponential_cost_errs(where):
    slow = r"^(?:a|a?|aa)+$(?<=b)"
    value = "a" * 40 + "c"
    schema = {"pattern": slow} if where == "pattern" else {where: {slow: True}}
    with pytest.raises(RequirementError, match=r"0\.1 s for a pattern"):
        verdict(json_schema(schema), value if where == "pattern" else {value: 1})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^a+$"}, "aa", "ab"),
        ({"pattern": "^a+$"}, 3, "b"),
        ({"patternProperties": {"^n": {"type": "integer"}}}, {"n": 1, "m": "x"}, {"n": "x"}),
        ({"patternProperties": {"^n": {"type": "integer"}}}, "no object", {"nn": 1.5}),
        (doubling(3), "x", 1),
    ],
)
def test_the_verdicts_are_those_of_the_schema(schema, good, bad):
    check = json_schema(schema)
    assert verdict(check, good).passed
    assert not verdict(check, bad).passed


@pytest.mark.parametrize(("steps", "error"), [(0, ValueError), (True, TypeError), ("1", TypeError)])
def test_a_number_of_steps_is_one(steps, error):
    with pytest.raises(error, match="max_steps"):
        json_schema({}, max_steps=steps)
