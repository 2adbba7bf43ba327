"""Arguments of a tool that is given as a JSON Schema: unknown names fail with a helpful reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jsonschema")

from mellea_like.requirements.checks_json import reader_of

STAY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "nights": {"type": "integer"},
        "guests": {"type": "array", "items": {"$ref": "#/$defs/guest"}},
        "notes": {"type": "object"},
    },
    "required": ["city"],
    "$defs": {
        "guest": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        },
        "address": {"anyOf": [{"type": "object", "properties": {"street": {}}}, {"type": "null"}]},
    },
}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
JOINED = {
    "properties": {"a": {}},
    "patternProperties": {"^x_": {"type": "integer"}},
    "allOf": [{"$ref": "#/definitions/more"}],
    "anyOf": [
        {"properties": {"kind": {"const": "one"}, "one": {}}, "required": ["kind"]},
        {"properties": {"kind": {"const": "two"}, "two": {}}, "required": ["kind"]},
    ],
    "if": {"properties": {"a": {"const": 1}}},
    "then": {"properties": {"b": {}}},
    "else": {"properties": {"c": {}}},
    "dependentSchemas": {"a": {"properties": {"d": {}}}},
    "definitions": {"more": {"properties": {"e": {}}, "required": ["e"]}},
}
KNOWN = {"a": 1, "b": 1, "d": 1, "e": 1, "x_1": 1, "kind": "one", "one": 1}


@pytest.mark.parametrize(
    ("schema", "arguments", "why"),
    [
        (
            STAY,
            {"city": "Oslo", "night": 2},
            "there is no argument night (did you mean nights?): it takes city, nights, guests,",
        ),
        (STAY, {"city": "Oslo", "pool": True}, "there is no argument pool: it takes city, nights"),
        (
            STAY,
            {"town": "Oslo", "nights": "two"},
            "there is no argument town: it takes city, nights, guests, notes; at $",
        ),
        (
            STAY,
            {"city": "Oslo", "guests": [{"name": "A"}, {"nmae": "B"}]},
            "there is no argument guests[1].nmae (did you mean name?): it takes name, address",
        ),
        (
            STAY,
            {"city": "Oslo", "guests": [{"address": {"stret": "B"}}]},
            "there is no argument guests[0].address.stret (did you mean street?): it takes street",
        ),
        ({"properties": {}}, {"x": 1}, "there is no argument x: it takes none"),
        ({"type": "object"}, {"x": 1}, "there is no argument x: it takes none"),
        ({"additionalProperties": False}, {"x": 1}, "there is no argument x: it takes none"),
        (JOINED, {**KNOWN, "two": 2}, "there is no argument two: it takes a, "),
        (DRAFT_7 | JOINED, {**KNOWN, "y": 2}, "there is no argument y: it takes a, e, "),
        (JOINED, {**KNOWN, "x_1": "1"}, "at $.x_1: '1' is not of type 'integer'"),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
            {"a": 1, "b": "2"},
            "at $.b: '2' is not of type 'integer'",
        ),
        (
            {"properties": {"at": {"prefixItems": [{"properties": {"x": {}}}]}}},
            {"at": [{"y": 1}]},
            "there is no argument at[0].y: it takes x",
        ),
    ],
)
def test_an_argument_that_a_schema_does_not_know_fails_and_the_nearest_name_is_told(
    schema, arguments, why
):
    with pytest.raises(ValueError) as raised:
        reader_of(schema)(json.dumps(arguments))
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (STAY, {"city": "Oslo", "notes": {"anything": 1}}),
        (STAY, {"city": "Oslo", "guests": [{"name": "A", "address": None}]}),
        ({**STAY, "additionalProperties": True}, {"city": "Oslo", "pool": True}),
        ({**STAY, "unevaluatedProperties": True}, {"city": "Oslo", "pool": True}),
        ({"additionalProperties": {"type": "integer"}}, {"pool": 1}),
        ({"properties": {}, "allOf": [{"additionalProperties": True}]}, {"pool": 1}),
        ({"properties": {"map": {"type": "object"}}}, {"map": {"x": {"y": 1}}}),
        (
            {"properties": {"o": {"properties": {"x": {}}, "additionalProperties": True}}},
            {"o": {"y": 1}},
        ),
        ({"required": ["x"]}, {"x": 1}),
        (JOINED, KNOWN),
        (DRAFT_7 | JOINED, dict.fromkeys(("a", "b", "e", "x_1"), 1) | {"kind": "one"}),
        (DRAFT_7 | {"dependencies": {"a": {"properties": {"a": {}, "b": {}}}}}, {"a": 1, "b": 1}),
    ],
)
def test_an_argument_that_a_schema_names_or_leaves_open_passes(schema, arguments):
    assert reader_of(schema)(json.dumps(arguments)) == arguments


NAMES = st.text("abcxyz_", min_size=1, max_size=6)
LEAVES = st.sampled_from([({"type": "integer"}, 3), ({"type": "string"}, "x"), ({}, None)])


def objects(inside):
    """Generate schemas of objects with all properties listed, and arguments that fit them."""
    return st.dictionaries(NAMES, inside, max_size=4).map(
        lambda parts: (
            {"type": "object", "properties": {name: part[0] for name, part in parts.items()}},
            {name: part[1] for name, part in parts.items()},
        )
    )


def lists(inside):
    return inside.map(lambda part: ({"type": "array", "items": part[0]}, [part[1], part[1]]))


CALLS = objects(st.recursive(LEAVES, lambda inside: objects(inside) | lists(inside), max_leaves=8))


def closed_objects(schema, value):
    """Return the objects in arguments that may have no other names."""
    if isinstance(value, list):
        return [found for item in value for found in closed_objects(schema["items"], item)]
    if not isinstance(value, dict):
        return []
    parts = schema["properties"]
    inside = [o for name, part in value.items() for o in closed_objects(parts[name], part)]
    return [value, *inside]


@given(CALLS, st.data())
def test_one_invented_name_anywhere_is_enough_to_fail(call, data):
    schema, arguments = call
    read = reader_of(schema)
    assert read(json.dumps(arguments)) == arguments
    arguments = json.loads(json.dumps(arguments))
    where = data.draw(st.sampled_from(closed_objects(schema, arguments)))
    where["invented"] = 1
    with pytest.raises(ValueError, match=r"there is no argument (.*\.)?invented"):
        read(json.dumps(arguments))


def test_many_and_long_unknown_names_make_a_short_reason():
    arguments = {f"{'x' * 5000}{n}": 1 for n in range(1000)}
    with pytest.raises(ValueError, match="there is no argument") as raised:
        reader_of(STAY)(json.dumps(arguments))
    assert len(str(raised.value)) < 5000
    assert "and 80 more" in str(raised.value)


def test_a_schema_that_goes_around_in_a_circle_is_no_endless_loop():
    circle = {"properties": {"a": {}}, "anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    with pytest.raises(ValueError, match=r"circular|too many steps"):
        reader_of(circle)('{"a": 1}')
    tree = {"properties": {"name": {}, "children": {"items": {"$ref": "#"}}}}
    deep = {"name": 1, "children": [{"name": 2, "children": [{"nme": 3}]}]}
    with pytest.raises(ValueError, match=r"children\[0\].children\[0\].nme \(did you mean name\?"):
        reader_of(tree)(json.dumps(deep))
