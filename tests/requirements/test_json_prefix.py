"""Whether a text that is still arriving can become JSON."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mellea_like import Candidate, Context, Generation, Instruction
from mellea_like.core.format import parse_json
from mellea_like.requirements.checks import is_json
from mellea_like.requirements.json_prefix import JsonPrefix

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
# Words out of which texts are made that are often JSON, and often nearly.
words = [
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        "`",
        "```",
        "```json\n",
        "```\r\n",
        "\n",
        "\r",
        "\t",
    ),
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
    candidate = Candidate(text, text, Generation(text), Context(), Instruction("x"))
    return is_json().validator(candidate).passed


def passes_pydantic(text):
    try:
        parse_json(object, text)
    except ValueError:
        return False
    return True


def fed(text, cuts=(), **settings):
    scanner = JsonPrefix(**settings)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        scanner.feed(text[start:end])
    return scanner


@given(documents(), st.lists(st.integers(0, 1000)))
def test_no_prefix_of_json_is_refused(text, cuts):
    scanner = fed(text, cuts)
    assert passes(text)
    assert scanner.problem is None
    assert scanner.complete


@given(scraps | documents(), st.text(max_size=2), st.integers(0, 1000))
def test_it_is_complete_exactly_if_the_check_passes(text, typo, place):
    place %= len(text) + 1
    for candidate in (text, text[:place] + typo + text[place:], text[:place] + text[place + 1 :]):
        assert fed(candidate).complete is passes(candidate)


@given(scraps)
def test_with_constants_it_is_complete_exactly_if_pydantic_can_read_it(text):
    # pydantic also refuses halves of surrogate pairs, which scraps can't make up.
    assert fed(text, constants=True).complete is passes_pydantic(text)


@given(scraps, scraps)
def test_what_was_refused_fails_whatever_follows(text, more):
    if fed(text).problem is not None:
        assert not passes(text + more)
    if fed(text, constants=True).problem is not None:
        assert not passes_pydantic(text + more)


@given(scraps | documents(), st.lists(st.integers(0, 1000)))
def test_it_does_not_matter_how_the_text_is_cut(text, cuts):
    whole, cut = fed(text), fed(text, cuts)
    one_by_one = fed(text, range(len(text)))
    assert whole.complete == cut.complete == one_by_one.complete
    assert (whole.problem is None) == (cut.problem is None) == (one_by_one.problem is None)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Here is", 1),
        ("{a", 2),
        ("{'a'", 2),
        ('{"a" 1', 6),
        ('{"a": 1 "', 9),
        ('{"a": 1,}', 9),
        ("[1,]", 4),
        ("[1}", 3),
        ("{]", 2),
        ("{} {", 4),
        ("[01", 3),
        ("-a", 2),
        ("1.e", 3),
        ("1e+-", 4),
        ("1ee", 3),
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
        ("```\n{}\n```\n{", 12),
        ("```\n{}x", 7),
        ("```\n\u00a0", 5),
        ("```\n{}\u00a0", 7),
        ("[\u00a0", 2),
        ("\ufeff{}", 1),
        ("\u0661", 1),
    ],
)
def test_it_is_refused_at_the_first_character_that_can_not_be(text, place):
    scanner = JsonPrefix()
    refused = [i for i, c in enumerate(text, 1) if scanner.feed(c) is not None]
    assert refused[:1] == [place]
    assert scanner.problem.split(", found ")[0].endswith(f" at character {place}")
    assert not scanner.complete


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Here is", "expected a value at character 1, found 'Here is'"),
        ('{"a": 1,}', "expected a key in double quotes at character 9, found '}'"),
        ("[1 2]", "expected a comma or ']' at character 4, found '2]'"),
        ("tru\u00e9", "expected 'e' at character 4, found '\\xe9'"),
        (
            "{} and so on and so forth",
            "expected nothing more at character 4, found 'and so on and so for'",
        ),
    ],
)
def test_the_problem_says_what_is_wrong_and_where(text, problem):
    assert JsonPrefix().feed(text) == problem


@pytest.mark.parametrize("text", ["-0.5E+10", "1E5", "0e-1", "[1E5]", "\u00a0{}\u00a0"])
def test_numbers_and_white_space_of_all_kinds_are_read(text):
    assert passes(text)
    assert fed(text, range(len(text))).complete


def test_a_problem_stands():
    scanner = JsonPrefix()
    problem = scanner.feed("{x")
    assert scanner.feed('"a": 1}') == scanner.problem == problem


@pytest.mark.parametrize("text", ["", " ", "{", '"', "tr", "-", "1.", "1e", "```", "```\n{}", "[1"])
def test_what_is_only_the_start_of_json_is_neither_refused_nor_complete(text):
    assert (fed(text).problem, fed(text).complete) == (None, False)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[Infinity]"])
def test_constants_are_numbers_only_where_asked(text):
    assert TypeAdapter(object).validate_json(text)
    assert fed(text, constants=True).complete
    assert fed(text).problem is not None


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 100_000, '"' + "a" * 100_000, "[1," * 33_333]
)
def test_the_time_is_linear_in_the_length(text):
    def seconds(length):
        started = time.process_time()
        scanner = JsonPrefix()
        for c in text[:length]:
            scanner.feed(c)
        assert scanner.problem is None
        return time.process_time() - started

    short = min(seconds(10_000) for _ in range(3))
    assert seconds(100_000) < 40 * short  # 10 times, and 100 if it were quadratic.
