"""Texts that are still arriving, and may or may not become JSON."""

from __future__ import annotations

import copy
import json
import time
from itertools import pairwise

import pytest
from engine_kit import verdict
from hypothesis import example, given
from hypothesis import strategies as st

from mellea_like.core.format import parse_json
from mellea_like.core.validation import Verdict
from mellea_like.requirements.checks import is_json
from mellea_like.requirements.json_arriving import watching_json

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
white = st.text(" \t\n\r\u00a0\u2003", max_size=2)
# Texts of these words are often JSON, or nearly JSON.
words = [
    *(*'{}[],:"\\`\n\r\t', "```", "```json\n", "```\r\n"),
    *(" ", "-", "+", ".", "0", "1", "23", "e", "E", "1.5", "-0", "1e5", '""', '"a"', '"b":', '"\\'),
    *("true", "false", "null", "tr", "NaN", "-Infinity", "Infinity", "u0041", "\\u00e9", "\\n"),
    *("\\x", "\x00", "\x1f", "/", "é", "\u00a0", "\u0663"),
]
scraps = st.lists(st.sampled_from(words), max_size=9).map("".join)


@st.composite
def documents(draw):
    value = draw(values)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1)))
    form = draw(st.sampled_from(["{}", "```\n{}\n```", "```json \r\n{}```", "```\n {}\r\n```"]))
    return draw(white) + form.replace("{}", text) + draw(white)


def passes(text):
    return verdict(is_json(), text).passed


def passes_pydantic(text):
    try:
        parse_json(object, text)
    except ValueError:
        return False
    return True


def rejected(text, cuts=(), **settings):
    """Return the part of a text that had arrived when it was rejected, and the reason."""
    check = copy.deepcopy(watching_json(**settings))
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        answer = check(text[:end], text[start:end])
        if answer is not Verdict.UNKNOWN:
            said, reason = answer
            assert said is Verdict.FAIL
            return text[:end], reason
    return None


@given(documents(), st.lists(st.integers(0, 1000)))
def test_no_prefix_of_json_is_rejected(text, cuts):
    assert passes(text)
    assert rejected(text, cuts) is None
    assert rejected(text, range(len(text))) is None


@given(scraps | documents(), scraps, st.text(max_size=2), st.integers(0, 1000))
def test_what_is_rejected_fails_whatever_follows(text, more, typo, place):
    place %= len(text) + 1
    for start in (text, text[:place] + typo + text[place:], text[:place] + text[place + 1 :]):
        one_by_one = range(len(start))
        if rejected(start, one_by_one) is not None:
            assert not passes(start + more)
        if rejected(start, one_by_one, constants=True) is not None:
            assert not passes_pydantic(start + more)


@given(scraps | documents(), st.lists(st.integers(0, 1000)))
@example('"{truefalse```json\n', [])
def test_it_does_not_matter_how_the_text_is_cut(text, cuts):
    text += " "  # It ends a number, which may be too long to be checked before.
    answers = [rejected(text, places) for places in ((), cuts, range(len(text)))]
    assert len({answer is None for answer in answers}) == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Here is", 1),
        ("{a", 2),
        ("{'a'", 2),
        ('{"a": 1,}', 9),
        ("[1,]", 4),
        ("[1}", 3),
        ("{]", 2),
        ("{} {", 4),
        ("-a", 2),
        ("1.e", 3),
        ("1e+-", 4),
        ("trux", 4),
        ("nul,", 4),
        ("NaN", 1),
        ("-I", 2),
        ('"\t', 2),
        ('"\\x', 3),
        ('"\\u12g', 6),
        ("`a", 2),
        ("``\n", 3),
        ("```json {", 9),
        ("```\r{", 5),
        ("```\n{}\n`` ", 10),
        ("```\n1\n`` ", 9),
        ('```\n"`"\n```\n{', 13),
        ("```\n{}\n```\n{", 12),
        ("```\n{}x", 7),
        ("```\ntru`", 8),
        ("\ufeff{}", 1),
        ("\u0661", 1),
    ],
)
def test_it_is_rejected_at_the_first_character_that_can_not_be(text, place):
    assert rejected(text, range(len(text)))[0] == text[:place]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Here is", "expected a value at character 1, not 'Here is'"),
        ('{"a": 1,}', "expected a key in double quotes at character 9, not '}'"),
        ("tru\u00e9", "expected a value at character 1, not 'tru\\xe9'"),
        ('["\\x"]', "expected a character of a string at character 3, not '\\\\x\"]'"),
        (
            "{} and so on and so forth",
            "expected the end at character 4, not 'and so on and so for'",
        ),
    ],
)
@pytest.mark.parametrize("cuts", [(), range(100)])
def test_the_reason_says_what_is_wrong_and_where(text, problem, cuts):
    reason = rejected(text, cuts)[1]
    assert reason.startswith(f"it is not valid JSON: {problem.partition(', not ')[0]}")
    assert cuts or reason == f"it is not valid JSON: {problem}"


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "{", '"', "tr", "-", "1.", "1e", "```", "```\n{}", "[1", '```\n"```'),
        *("-0.5E+10", "1E5", "0e-1", "[1E5]", "\u00a0{}\u00a0", "1e999"),
        "[1e-9999999999999999999]",
        *('"\\ud800"', '"\ud800"', '{"\\udc00": 1}', "```\n1```"),
    ],
)
def test_what_may_become_json_is_not_rejected(text):
    assert rejected(text, range(len(text))) is None


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[Infinity]", "[1, NaN"])
def test_constants_are_numbers_only_where_asked(text):
    assert rejected(text, range(len(text)), constants=True) is None
    assert rejected(text) is not None


@pytest.mark.parametrize(
    "text", ["[" * 60_000, "9" * 60_000, '"' + "a" * 60_000, "[1," * 20_000, " " * 60_000]
)
def test_the_time_is_linear_in_the_length(text):
    def seconds(length):
        check = copy.deepcopy(watching_json())
        prefixes = [text[:end] for end in range(1, length + 1, 10)]
        started = time.process_time()
        for prefix in prefixes:
            check(prefix, prefix[-10:])
        return time.process_time() - started

    short = min(seconds(6_000) for _ in range(3))
    assert seconds(60_000) < 40 * max(short, 1e-4)  # 10 times, and 100 if it were quadratic.
