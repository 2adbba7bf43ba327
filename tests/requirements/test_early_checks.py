"""Ready-made checks of replies that are still arriving."""

# ruff: noqa: RUF001 (letters that fold to others are meant)

from __future__ import annotations

import copy
import functools
import json
import sys
import time
import unicodedata
from functools import partial
from typing import Literal

import pytest
from engine_kit import verdict
from hypothesis import example, given
from hypothesis import strategies as st

from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import Verdict
from mellea_like.requirements.checks import (
    ForeignSchema,
    char_count,
    excludes,
    is_json,
    json_schema,
    line_count,
    parses_as,
    starts_with,
    word_count,
)
from mellea_like.requirements.checks_common import folded
from mellea_like.requirements.checks_text import joins_nothing
from mellea_like.requirements.early_rejection import EarlyWatch
from mellea_like.requirements.json_arriving import OTHERS_STEPS, call_watch
from mellea_like.requirements.json_schemas import schema_validator


def rejection(check, pieces):
    """Return the part of a text that had arrived when it was rejected, and the reason."""
    watch = EarlyWatch([check])
    text = ""
    for piece in pieces:
        text += piece
        rejected = watch.feed(text, piece)
        if rejected is not None:
            return text, rejected[1].reason
    return None


def pieces_of(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in zip(places, [*places[1:], len(text)], strict=True)]


# Counting, folding and matching can go wrong at white space and line ends of all kinds, marks that
# join the character before them, letters that fold to several, Hangul vowels, and halves of words.
ODD = (
    "aab A-1 .\n\r\x0b\x1c\u2028\u00a0\te\u0301\u0323\u00e9sſßSSK\u212aiİı\u0345ιͅᾳ"
    "\u1100\u1161\u11a8\uac00\U00016d63\U00016d67dear"
)
odd = st.text(st.sampled_from(ODD), max_size=12)
cuts = st.lists(st.integers(0, 100), max_size=6)

CHECKS = {
    "words": word_count(at_most=2, early=True),
    "no words": word_count(at_most=0, early=True),
    "words exactly": word_count(exactly=2, early=True),
    "characters": char_count(at_most=5, early=True),
    "lines": line_count(at_least=1, at_most=2, early=True),
    "no lines": line_count(at_most=0, early=True),
    "excludes": excludes("e", "ae", "\uac00", early=True),
    "excludes any case": excludes("ss", "é", "ᾳ", "ia", "k1", ignore_case=True, early=True),
    "excludes words": excludes("a", "e", "\uac00", "A-", words=True, early=True),
    "excludes words any case": excludes("ss", "k1", "é", words=True, ignore_case=True, early=True),
    "excludes a space": excludes(" a", "\n\n", early=True),
    "starts": starts_with("dea", "e", " a", "\u1100\u1161", early=True),
    "starts any case": starts_with("ss", "i", "A-", "é", ignore_case=True, early=True),
    "json": is_json(early=True),
    "parses": parses_as(float, early=True),
    "parses fields": parses_as(dict[str, list[Literal["a", 1]]], early=True),
    "schema": json_schema({"type": "object"}, early=True),
}
every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@every_check
@given(odd, odd, cuts)
@example("e\u0301", "", [1])
@example("a\n", "\n", [1])
@example("\ndear", "", [])
@example("ae", "\u0323\u0301", [1, 2])
@example("1.5 ", "", [3])
@example('```\n{"a": 1}\n', "```", [])
@example('{"a": ["b"], ', '"a": ["a"]}', [9])
@example('{"a": [', '"a", 1]}', [7])
@example("  a", "", [1])
@example("1e\u20281", "1\u03011", [])
def test_what_is_rejected_early_fails_in_the_end_whatever_follows(check, text, more, cuts):
    if rejection(check, pieces_of(text, cuts)) is not None:
        assert not verdict(check, text).passed
        assert not verdict(check, text + more).passed
    if verdict(check, text + more).passed:
        assert rejection(check, text + more) is None
        assert rejection(check, pieces_of(text + more, cuts)) is None


@every_check
@given(odd, odd, cuts)
def test_what_says_pass_early_passes_in_the_end_whatever_follows(check, text, more, cuts):
    if rejection(~check, pieces_of(text, cuts)) is not None:
        assert verdict(check, text + more).passed


@pytest.mark.parametrize("name", ["words", "no words", "words exactly", "characters", "lines"])
@given(odd, cuts)
def test_a_count_is_rejected_as_soon_as_it_is_over(name, text, cuts):
    check = CHECKS[name]
    high = {"words": 2, "no words": 0, "words exactly": 2, "characters": 5, "lines": 2}[name]
    number = int(verdict(check, text).reason.split()[2])
    assert (rejection(check, pieces_of(text, cuts)) is not None) == (number > high)


@pytest.mark.parametrize("name", [name for name in CHECKS if "excludes" in name])
@given(odd, cuts)
def test_an_excluded_text_is_seen_once_a_plain_character_follows(name, text, cuts):
    check = CHECKS[name]
    rejected = rejection(check, pieces_of(text + "\n.", cuts))
    assert (rejected is not None) == (not verdict(check, text + "\n.").passed)


@pytest.mark.parametrize(
    ("check", "text", "kept", "reason"),
    [
        (CHECKS["words"], "one two three", "one two t", "it has 3 words so far; at most 2 are"),
        (CHECKS["words"], "well-known - is", None, None),
        (CHECKS["words"], "a b -c", "a b -c", "it has 3 words so far"),
        (CHECKS["no words"], "- a", "- a", "it has 1 word so far; at most 0 are allowed"),
        (CHECKS["words exactly"], "a b c", "a b c", "it has 3 words so far; exactly 2 are req"),
        (CHECKS["words exactly"], "a", None, None),
        (CHECKS["characters"], "12345 ", "12345 ", "it has 6 characters so far"),
        (CHECKS["lines"], "a\r\n\n b\n\n", None, None),
        (CHECKS["lines"], "a\r\nb\n c d", "a\r\nb\n c", "it has 3 lines so far; between 1 and 2"),
        (CHECKS["excludes"], "cafe\u0301 ae", None, None),
        (CHECKS["excludes"], "cafe!", "cafe!", 'it contains "e", which is not allowed'),
        (CHECKS["excludes any case"], "Gru\u1e9e.", "Gru\u1e9e.", 'it contains "ss"'),
        (CHECKS["starts"], "\n Dear", "\n De", 'it starts with "De", not with "dea", "e"'),
        (CHECKS["starts"], " a", None, None),
        (CHECKS["starts"], "dear, no e", None, None),
        (CHECKS["starts"], " \n ", None, None),
        (CHECKS["starts"], " ab.", None, None),
        (CHECKS["starts"], "ear.", None, None),
        (starts_with("  abc", early=True), "  abcd", None, None),
        (starts_with("dear", early=True), "ear.", "ea", 'it starts with "ea", not with "dear"'),
        (excludes("bad", early=True), "a bad word", "a bad ", 'it contains "bad", which is not'),
        (
            CHECKS["parses fields"],
            '{"a": ["a", 2, 3]}',
            '{"a": ["a", 2,',
            "the reply isn't a valid dict[str,list[literal['a',1]]]: a.1: Input should be 'a' or 1",
        ),
        (CHECKS["json"], '{"a" 1,', '{"a" 1', "it is not valid JSON: expected a colon at"),
        (CHECKS["schema"], "Here", "H", "it is not valid JSON: expected a value at"),
        (CHECKS["schema"], '{"\\udc00": 1}', None, None),
        (CHECKS["parses"], " NaN ", None, None),
        (CHECKS["parses"], "1,", "1,", "it is not valid JSON: expected the end at character 2"),
    ],
)
def test_a_reply_is_rejected_at_the_first_sure_failure(check, text, kept, reason):
    rejected = rejection(check, text)
    if kept is None:
        assert rejected is None
    else:
        assert rejected[0] == kept
        assert rejected[1].startswith(reason)


def test_early_has_to_be_asked_for():
    for make in (
        partial(word_count, at_most=2),
        partial(char_count, at_most=2),
        partial(line_count, at_most=2),
        partial(excludes, "a"),
        partial(starts_with, "a"),
        is_json,
        partial(json_schema, {}),
        partial(parses_as, int),
    ):
        assert not make().streams
        assert make(early=True).streams
        assert make().description == make(early=True).description


def test_each_reply_is_looked_at_from_its_start():
    check = word_count(at_most=2, early=True)
    for _ in range(2):
        assert rejection(check, ["a b", " c"]) is not None
        assert rejection(check, ["a", "b c"]) is None
    used = copy.deepcopy(check.stream)
    used("a b", "a b")
    assert copy.deepcopy(used)("c", "c") is Verdict.UNKNOWN


# --- Unicode ----------------------------------------------------------------------------------


def test_what_is_said_to_join_nothing_joins_nothing():
    everything = [chr(c) for c in range(sys.maxunicode + 1)]
    joining = {
        parts[1]
        for c in everything
        if len(parts := unicodedata.decomposition(c).split()) == 2 and "<" not in parts[0]
    }
    joining = {chr(int(code, 16)) for code in joining}
    joining |= {chr(c) for c in range(0x1161, 0x1176)} | {chr(c) for c in range(0x11A8, 0x11C3)}
    for c in everything:
        if joins_nothing(c):
            for ignore_case in (False, True):
                first = unicodedata.normalize("NFD", folded(c, ignore_case=ignore_case))[0]
                assert first not in joining, hex(ord(c))
                assert not unicodedata.combining(first), hex(ord(c))
    assert not joins_nothing("\u0301")
    assert all(joins_nothing(c) for c in "a \n.\u00e9\u3042\u4e2d\uac00\U0001f600")


# --- cost -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "unit"),
    [
        (word_count(at_most=10**6, early=True), "a "),
        (word_count(at_most=10**6, early=True), "a"),
        (char_count(at_most=10**6, early=True), "a"),
        (line_count(at_most=10**6, early=True), "a\n"),
        (line_count(at_most=10**6, early=True), "\n"),
        (excludes("b" * 30, "c", ignore_case=True, early=True), "ab"),
        (excludes("b", early=True), "\u0301"),
        (starts_with("b", early=True), "\n"),
        (starts_with("a" * 50, early=True), "a"),
    ],
)
def test_the_time_is_linear_in_the_length_of_the_reply(check, unit):
    def seconds(length):
        text = unit * (length // len(unit))
        watch = EarlyWatch([check])
        started = time.process_time()
        # Each call gets the whole text, because cutting it would itself take quadratic time.
        for c in text:
            assert watch.feed(text, c) is None
        return time.process_time() - started

    short = min(seconds(2_000) for _ in range(3))
    assert seconds(20_000) < 40 * short  # 10 times, and 100 if it were quadratic.


PERSON = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0},
        "nick": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
        "friends": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    },
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "text", "kept", "reason"),
    [
        ({"type": "object"}, "[1, 2]", "[", "at $: an array can't be what the schema asks for"),
        ({"type": ["object", "null"]}, '"abc"', '"', "a string can't be"),
        ({"enum": ["a", "b"]}, "17", "1", "a number can't be"),
        ({"const": None}, "true", "t", "a boolean can't be"),
        ({"allOf": [{"type": "array"}]}, "{}", "{", "an object can't be"),
        ({"oneOf": [{"type": "array"}, {"type": "null"}]}, "{}", "{", "an object can't be"),
        (PERSON, '{"age": "x"}', '{"age": "', "at $.age: a string can't be"),
        (PERSON, '{"age": -1, "', '{"age": -1,', "at $.age: -1 is less than the minimum of 0"),
        (PERSON, '{"age": 1, "nick": 3}', '{"age": 1, "nick": 3', "at $.nick: a number can't be"),
        (PERSON, '{"nick": "abc", ', '{"nick": "abc"', "at $.nick: 'abc' is too long"),
        (PERSON, '{"name": "x"}', '{"name":', 'the property "name" is not allowed'),
        (PERSON, '{"friends": [{}]}', '{"friends": [{}', "at $.friends[0]: 'age' is a required"),
        (PERSON, '{"friends": [{"age": null', '{"friends": [{"age": n', "at $.friends[0].age: a"),
        ({"maxItems": 1}, "[1, 2]", "[1,", "at $: it has more items than 1"),
        ({"prefixItems": [{"type": "null"}], "items": False}, "[null, 1]", "[null, 1", "$[1]"),
        ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab": 1}', '{"ab": 1', "at $.ab"),
        (PERSON, '```json\n{"age": []', '```json\n{"age": [', "at $.age: an array can't be"),
    ],
)
def test_a_reply_ends_at_the_first_value_that_does_not_fit_its_schema(schema, text, kept, reason):
    said = rejection(json_schema(schema, early=True), text)
    assert said is not None
    assert said[0] == kept
    assert reason in said[1]


DRAFTS = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#")
SCHEMAS = [
    PERSON,
    {"type": ["array", "object"], "items": {"type": ["number", "array"]}, "maxItems": 2},
    {"anyOf": [{"type": "string"}, {"required": ["a"]}, {"items": {"type": "null"}}]},
    {"anyOf": [{"items": {"type": "null"}}, {"items": {"type": "integer"}}, {"type": "string"}]},
    {"oneOf": [{"type": "array"}, {"items": {"type": "integer"}}]},
    {"not": {"type": "object"}, "items": {"enum": [1, "a", [], None]}},
    {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"if": {"required": ["a"]}, "then": {"additionalProperties": False}, "else": {"const": [1]}},
    {"$ref": "#/$defs/p", "type": "object", "$defs": {"p": {"items": {"$ref": "#"}}}},
    {"unevaluatedProperties": False, "allOf": [{"properties": {"a": {"const": 1}}}]},
    *(
        {"$schema": draft, "properties": {"a": {"$ref": "#/definitions/p", "type": "string"}}}
        | {"definitions": {"p": {"type": "integer"}}, "items": [{"const": 1}], "prefixItems": 1}
        for draft in DRAFTS
    ),
    {
        "$schema": DRAFTS[1],
        "$id": "http://example.org/base/",
        "definitions": {
            "not this": {"$id": "http://example.org/it.json", "type": "string"},
            "but this": {"$id": "it.json", "type": "number"},
        },
        # In draft 7, a reference disables all other keywords.
        "allOf": [{"$id": "http://example.org/", "$ref": "it.json"}],
    },
    {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True}
    | {"items": [{"$recursiveRef": "#"}], "additionalItems": {"type": "integer"}},
]
values = st.recursive(
    st.sampled_from([None, True, 0, 1, 1.0, 1.5, -3, "", "a", "abc"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "age", "nick", "friends", "b"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@functools.cache
def schema_check(text, *, ours):
    """Return the check of a schema, which all examples of a test share because it is costly."""
    schema = json.loads(text)
    check = json_schema(schema, early=True)
    if ours:
        return check
    stream = ForeignSchema(schema).stream()
    return Requirement("theirs", check.validator, inline=True, stream=stream)


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("ours", [True, False])
@given(values)
@example([[1, 2], 3])
@example({"a": 1})
@example(1)
def test_no_value_of_a_schema_is_rejected_early(schema, ours, value):
    check = schema_check(json.dumps(schema), ours=ours)
    text = json.dumps(value)
    if rejection(check, text + " ") is not None:
        assert not verdict(check, text).passed


def test_a_schema_of_somebody_elses_gets_only_so_many_steps():
    schema = {"$defs": {"x0": {"type": "array"}}, "items": {"$ref": "#/$defs/x18"}}
    for i in range(1, 19):
        part = {"$ref": f"#/$defs/x{i - 1}"}
        schema["$defs"][f"x{i}"] = {"allOf": [part, part]}
    check = Requirement("theirs", lambda _: True, stream=ForeignSchema(schema).stream())
    began = time.process_time()
    assert rejection(check, json.dumps([[]] * 1000)) is None
    assert time.process_time() - began < 1


def test_a_pattern_of_somebody_elses_is_left_to_the_whole_check():
    schema = {"items": {"pattern": "^(a|a)*$", "type": "string"}}
    check = Requirement("theirs", lambda _: True, stream=ForeignSchema(schema).stream())
    assert rejection(check, '["' + "a" * 40 + 'b"]') is None
    assert rejection(check, '["b", 1]') is not None


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"items": {"uniqueItems": True}}, "[[1, 1]]"),
        ({"items": {"multipleOf": 2}}, "[3]"),
        ({"items": {"format": "date"}}, '["today"]'),
        ({"items": {"pattern": "^a*$"}}, '["b"]'),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_what_may_take_long_in_a_schema_of_someone_else_is_not_checked_early(rules, text, ours):
    validator = schema_validator({"type": "array", **rules})
    watch = call_watch(validator, OTHERS_STEPS, ours=ours)()
    assert (watch(text) is not None) is ours
