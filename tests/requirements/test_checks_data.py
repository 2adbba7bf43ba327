"""Checks of data."""

from __future__ import annotations

import json
import sys
import time

import pytest
from engine_kit import verdict
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from mellea_like.errors import RequirementError
from mellea_like.requirements.checks import (
    is_json,
    json_schema,
    matches,
    number_between,
    one_of,
    parses_as,
)


class Invoice(BaseModel):
    number: int
    total: float


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
PRICES = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"price": {"type": "number"}}},
        },
        "day": {"type": "string", "format": "date"},
    },
    "required": ["items"],
}


@pytest.mark.parametrize("text", ['{"a": 1}', " [1, 2]\n", "null", '```json\n{"a": 1}\n```', "3"])
def test_json_passes_a_fence_round_it_tolerated(text):
    assert verdict(is_json(), text).passed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1,}', "Illegal trailing comma"),
        ("Here it is: {}", "Expecting value: line 1 column 1"),
        ("", "Expecting value"),
        ("{} {}", "Extra data: line 1 column 4"),
        ("[NaN]", "NaN isn't a JSON number"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
    ],
)
def test_what_is_no_json_fails_with_the_place(text, reason):
    result = verdict(is_json(), text)
    assert not result.passed
    assert result.reason.startswith("it is not valid JSON: ")
    if not text.endswith(",}"):  # its wording differs between versions of Python
        assert reason in result.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"items": [{"price": "1"}]}', "at $.items[0].price: '1' is not of type 'number'"),
        ("{}", "at $: 'items' is a required property"),
        ('{"items": [], "day": "May"}', "at $.day: 'May' is not a 'date'"),
        ("nope", "it is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_json_of_another_shape_fails_with_the_path(text, reason):
    result = verdict(json_schema(PRICES), text)
    assert not result.passed
    assert result.reason == reason


def test_fewer_errors_score_higher_and_all_are_counted():
    check = json_schema(PRICES)
    one = verdict(check, '{"items": [{"price": "1"}, {"price": 2}]}')
    two = verdict(check, '{"items": [{"price": "1"}, {"price": "2"}]}')
    assert 1 > one.score > two.score > verdict(check, "no").score == 0
    assert two.reason.endswith("(and 1 more)")
    huge = verdict(json_schema({"type": "object"}), json.dumps(["x" * 10_000]))
    assert len(huge.reason) < 300


def test_a_schema_is_copied():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    check = json_schema(schema)
    schema["properties"]["a"]["type"] = "integer"
    assert verdict(check, '{"a": "b"}').passed


def test_references_to_the_schema_of_a_draft_are_followed():
    check = json_schema({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    assert verdict(check, '{"type": "string"}').passed
    assert "'text' is not valid" in verdict(check, '{"type": "text"}').reason


def test_the_draft_is_the_one_that_the_schema_names():
    # Tuples are written in "items" in draft 7, and that is an error in 2020-12.
    tuples = {"items": [{"type": "integer"}]}
    with pytest.raises(ValueError, match="the schema is invalid at"):
        json_schema(tuples)
    assert not verdict(json_schema(DRAFT_7 | tuples), '["a"]').passed


def test_a_reply_is_the_model_or_fails_with_the_fields():
    assert verdict(parses_as(Invoice), '```json\n{"number": 1, "total": 2.5}\n```').passed
    assert verdict(parses_as(list[int]), "[1, 2]").passed
    result = verdict(parses_as(Invoice), '{"number": "x"}')
    assert not result.passed
    assert result.reason.startswith("it isn't a valid Invoice: number: ")
    assert "total: Field required" in result.reason


def test_a_choice_passes_with_white_space_round_it_and_another_text_is_shown_with_them():
    check = one_of(["yes", "no"])
    assert verdict(check, " yes\n").passed
    assert verdict(one_of(["caf\u00e9"]), "cafe\u0301").passed
    assert check.description == 'is "yes" or "no", and nothing else'
    result = verdict(one_of(["yes", "no", "maybe"]), "Yes.")
    assert result.reason == 'it is "Yes."; only "yes", "no" or "maybe" is allowed'


@pytest.mark.parametrize("text", ["1", "10", " 5.5\n", "1e1", "+3", "1.0", "٣"])
def test_a_number_in_the_range_passes(text):
    assert verdict(number_between(1, 10), text).passed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("11", "it is 11; it must be between 1 and 10"),
        ("0.999999999999999999999", "it is 0.999999999999999999999; it must be between 1 and 10"),
        ("five", 'it isn\'t a number: "five"'),
        ("1,000", 'it isn\'t a number: "1,000"'),
        ("1_0", 'it isn\'t a number: "1_0"'),
        ("nan", 'it isn\'t a number: "nan"'),
        ("3 apples", 'it isn\'t a number: "3 apples"'),
        ("", 'it isn\'t a number: ""'),
    ],
)
def test_another_number_or_none_fails(text, reason):
    result = verdict(number_between(1, 10), text)
    assert not result.passed
    assert result.reason == reason


def test_one_limit_is_enough():
    assert verdict(number_between(low=0), "1e300").passed
    assert verdict(number_between(low=0), "-1").reason == "it is -1; it must be at least 0"
    assert verdict(number_between(high=0), "1").reason == "it is 1; it must be at most 0"


def test_a_value_that_is_a_number_already_is_taken():
    assert verdict(number_between(1, 10), "<Reply>", value=7).passed
    assert verdict(number_between(1, 10), "<Reply>", value=7.5).passed
    assert not verdict(number_between(0, 10), "<Reply>", value=True).passed
    assert not verdict(number_between(1, 10), "<Reply>", value=float("inf")).passed


@pytest.mark.parametrize("text", ["9" * 10_000, "1e9999", "1e99999999", "-1e-9999", "9" * 999])
def test_a_monstrous_number_fails_quietly(text):
    result = verdict(number_between(1, 10), text)
    assert not result.passed
    assert len(result.reason) < 200


@given(st.integers(), st.integers(), st.integers(0, 10**6))
def test_the_score_of_a_number_falls_with_the_distance(number, low, width):
    high = low + width
    result = verdict(number_between(low, high), str(number))
    assert result.passed == (low <= number <= high)
    assert 0.0 <= result.score <= 1.0
    further = number + (1 if number > high else -1)
    if not result.passed:
        assert verdict(number_between(low, high), str(further)).score <= result.score


@pytest.mark.parametrize(("package", "make"), [("regex", matches), ("jsonschema", json_schema)])
def test_without_its_package_a_check_names_the_extra(package, make):
    # None in sys.modules is how Python itself marks a module that can't be imported.
    kept = {n: m for n, m in sys.modules.items() if n == package or n.startswith(package + ".")}
    sys.modules.update(dict.fromkeys([package, *kept]))
    try:
        with pytest.raises(ImportError, match=rf"{package} package: pip install 'mellea-like\[che"):
            make({} if make is json_schema else "a")
    finally:
        del sys.modules[package]
        sys.modules.update(kept)


# --- schemas that cost too much ---------------------------------------------------------------


def of_value(check, value):
    return verdict(check, json.dumps(value))


def doubling(depth: int) -> dict[str, object]:
    """Make a schema in which each level refers to the next one twice."""
    parts: dict[str, object] = {
        f"n{n}": {"anyOf": [{"$ref": f"#/$defs/n{n + 1}"}] * 2} for n in range(depth)
    }
    return {"$defs": {**parts, f"n{depth}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def test_a_schema_of_exponential_cost_errs_within_its_steps():
    check = json_schema(doubling(60), max_steps=5_000)
    began = time.perf_counter()
    with pytest.raises(RequirementError, match="a reply of 1 characters: too many steps"):
        of_value(check, 1)
    assert time.perf_counter() - began < 5


def test_the_steps_of_one_reply_do_not_count_for_the_next():
    check = json_schema({"items": {"type": "integer"}}, max_steps=50)
    assert all(of_value(check, [1] * 40).passed for _ in range(10))
    with pytest.raises(RequirementError):
        of_value(check, [1] * 60)


def test_references_in_a_circle_err():
    with pytest.raises(RequirementError, match="circular"):
        of_value(json_schema({"$ref": "#"}), 1)


SLOW = r"^(?:a|a?|aa)+$(?<=b)"
LONG = "a" * 40 + "c"


@pytest.mark.parametrize(
    ("schema", "value"),
    [({"pattern": SLOW}, LONG), ({"patternProperties": {SLOW: True}}, {LONG: 1})],
)
def test_a_pattern_of_exponential_cost_errs(schema, value):
    with pytest.raises(RequirementError, match=r"0\.1 s for a pattern"):
        of_value(json_schema(schema), value)


# Python's own engine takes exponential time for this. The bounded one sees that "b" is missing.
QUICK_WHERE_BOUNDED = {"patternProperties": {"^(a+)+b": True}}


@pytest.mark.parametrize(
    "schema",
    [
        {**QUICK_WHERE_BOUNDED, "additionalProperties": False},
        {**QUICK_WHERE_BOUNDED, "unevaluatedProperties": False},
        {"allOf": [QUICK_WHERE_BOUNDED], "unevaluatedProperties": False},
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$defs": {"p": QUICK_WHERE_BOUNDED},
            "$ref": "#/$defs/p",
            "unevaluatedProperties": False,
        },
    ],
)
def test_names_that_no_pattern_matches_are_found_by_the_bounded_engine(schema):
    began = time.process_time()
    result = of_value(json_schema(schema), {"a" * 26: 1})
    assert "properties are not allowed" in result.reason
    assert time.process_time() - began < 1


TREE = {
    "$schema": "https://json-schema.org/draft/2019-09/schema",
    "$id": "https://example.org/extended-tree",
    "$recursiveAnchor": True,
    "$ref": "./tree",
    "properties": {"name": {"type": "string"}},
    "$defs": {
        "tree": {
            "$id": "./tree",
            "$recursiveAnchor": True,
            "type": "object",
            "properties": {
                "node": True,
                "branches": {"unevaluatedProperties": False, "$recursiveRef": "#"},
            },
            "required": ["node"],
        }
    },
}


def branching(tree):
    return {"name": "a", "node": 1, "branches": tree}


N_OR_A = {"patternProperties": {"^n": True}, "properties": {"a": True}}
ALONE = {"unevaluatedProperties": False}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^a+$"}, "aa", "ab"),
        ({"pattern": "^a+$"}, 3, "b"),
        ({"patternProperties": {"^n": {"type": "integer"}}}, {"n": 1, "m": "x"}, {"n": "x"}),
        ({"patternProperties": {"^n": {"type": "integer"}}}, "no object", {"nn": 1.5}),
        (doubling(3), "x", 1),
        ({**N_OR_A, "additionalProperties": False}, {"n1": 1, "a": 2}, {"b": 1}),
        ({**N_OR_A, "additionalProperties": {"type": "null"}}, {"n1": 1, "b": None}, {"b": 1}),
        ({"allOf": [N_OR_A], **ALONE}, {"n1": 1, "a": 2}, {"n1": 1, "b": 2}),
        ({"anyOf": [N_OR_A, {"required": ["z"]}], **ALONE}, {"n1": 1}, {"z": 1, "n1": 1, "b": 1}),
        ({"anyOf": [{**N_OR_A, "required": ["z"]}, True], **ALONE}, {}, {"n1": 1}),
        ({"$defs": {"p": N_OR_A}, "$ref": "#/$defs/p", **ALONE}, {"n": 1}, {"b": 1}),
        ({"if": {"required": ["a"]}, "then": N_OR_A, **ALONE}, {"a": 1, "n": 1}, {"n": 1}),
        ({"if": {"required": ["a"]}, "else": N_OR_A, **ALONE}, {"n": 1}, {"a": 1}),
        ({"dependentSchemas": {"n": N_OR_A}, **ALONE}, {"n": 1, "a": 1}, {"a": 1}),
        ({"allOf": [{"additionalProperties": {"type": "null"}}], **ALONE}, {"b": None}, {"b": 1}),
        ({"unevaluatedProperties": {"type": "null"}}, {"b": None}, {"b": 1}),
        ({"pattern": r"^\p{L}+$", "patternProperties": {r"^\p{Lu}": {}}}, "Größe", "a1"),
        # A recursive reference leads to the outermost schema.
        (TREE, branching({"name": "b", "node": 2}), branching({"foo": "b", "node": 2})),
    ],
)
def test_the_verdicts_are_those_of_the_schema(schema, good, bad):
    check = json_schema(schema)
    assert of_value(check, good).passed
    assert not of_value(check, bad).passed


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("date-time", "2024-02-29T10:00:00Z", "2024-02-29 10:00"),
        ("time", "10:00:00Z", "25:00:00Z"),
        ("duration", "P1DT2H", "1 day"),
        ("email", "a@b.org", "a.b.org"),
        ("hostname", "example.org", "-bad-.org"),
        ("idn-hostname", "bücher.example", "a..b"),
        ("ipv4", "127.0.0.1", "127.0.0.256"),
        ("ipv6", "::1", "12345::"),
        ("uri", "https://example.org/a?b#c", "//example.org"),
        ("uri-reference", "../a", "a b"),
        ("uri-template", "/a/{b}", "/a/{b"),
        ("iri", "https://example.org/ä", "ä b"),
        ("iri-reference", "/ä", "\\\\a"),
        ("json-pointer", "/a/0", "a/0"),
        ("relative-json-pointer", "1/a", "/a"),
        ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"),
        ("regex", r"^\p{L}+$", "("),
    ],
)
def test_formats_are_checked(format, good, bad, caplog):
    check = json_schema({"format": format})
    assert of_value(check, good).passed
    assert of_value(check, 1).passed
    assert not of_value(check, bad).passed
    assert not caplog.records


@pytest.mark.parametrize(
    ("schema", "warning"),
    [
        ({"format": "datetime"}, "the format 'datetime' is not checked: did you mean 'date-time'?"),
        ({"format": "postcode"}, "the format 'postcode' is not checked: this draft doesn't"),
        ({"minLenght": 2}, "the keyword 'minLenght' is ignored: did you mean 'minLength'?"),
        ({"properties": {"a": {"items": {"typ": "x"}}}}, "'typ' is ignored: did you mean 'type'?"),
        ({"nullable": True}, "the keyword 'nullable' is ignored: this draft doesn't have it"),
        ({"dependencies": {}}, "the keyword 'dependencies' is ignored"),
    ],
)
def test_what_a_schema_says_in_vain_warns_when_the_check_is_made(schema, warning, caplog):
    json_schema(schema)
    assert len(caplog.messages) == 1
    assert warning in caplog.messages[0]


@pytest.mark.parametrize(
    "schema",
    [
        Invoice.model_json_schema(),
        {"properties": {"typ": {"title": "a", "default": {"typ": 1}, "examples": [{"typ": 1}]}}},
        {"x-order": 1, "$defs": {"typ": True}, "if": {}, "then": {}, "else": {}, "const": {"b": 1}},
        {"contains": {}, "minContains": 0, "maxContains": 2, "deprecated": True},
        DRAFT_7 | {"dependencies": {"a": ["b"]}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "a:b", "definitions": {}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True},
    ],
)
def test_a_correct_schema_does_not_warn(schema, caplog):
    json_schema(schema)
    assert not caplog.messages
