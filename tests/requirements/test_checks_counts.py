"""Checks of length: their definitions and their reasons."""

# ruff: noqa: RUF001 (full-width punctuation is meant)

from __future__ import annotations

import pytest
from engine_kit import verdict
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import Requirement
from mellea_like.core.requirement import CheckStage
from mellea_like.requirements.checks import char_count, line_count, sentence_count, word_count
from mellea_like.requirements.checks_counts import sentences_of

CHECKS = [word_count, char_count, line_count, sentence_count]


@pytest.mark.parametrize(
    ("limits", "text", "reason"),
    [
        ({"at_most": 2}, "one two three", "it has 3 words; at most 2 are allowed"),
        ({"at_most": 1}, "one two", "it has 2 words; at most 1 is allowed"),
        ({"at_least": 2}, "one", "it has 1 word; at least 2 are required"),
        ({"exactly": 2}, "", "it has 0 words; exactly 2 are required"),
        ({"at_least": 2, "at_most": 3}, "one", "it has 1 word; between 2 and 3 are required"),
        ({"at_least": 2, "at_most": 2}, "one", "it has 1 word; exactly 2 are required"),
    ],
)
def test_the_reason_says_the_number_and_the_limit(limits, text, reason):
    result = verdict(word_count(**limits), text)
    assert not result.passed
    assert result.reason == reason


@pytest.mark.parametrize(
    ("limits", "description"),
    [
        ({"at_most": 20}, "has at most 20 words"),
        ({"at_least": 1}, "has at least 1 word"),
        ({"exactly": 1}, "has exactly 1 word"),
        ({"at_least": 1, "at_most": 5}, "has between 1 and 5 words"),
    ],
)
def test_the_description_is_a_phrase_for_the_model(limits, description):
    assert word_count(**limits).description == description


@pytest.mark.parametrize("make", CHECKS)
def test_limits_are_inclusive_and_checked_inline_under_the_functions_name(make):
    unit = {word_count: "a ", char_count: "a", line_count: "a\n", sentence_count: "A b. "}[make]
    between = make(at_least=2, at_most=3)
    assert [verdict(between, unit * n).passed for n in range(1, 5)] == [False, True, True, False]
    assert isinstance(between, Requirement)
    assert (between.stage, between.name) == (CheckStage.INLINE, make.__name__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("  \n\t ", 0),
        ("well-known it's 3.14", 3),
        ("a - b — c", 3),
        ("*** ... ***", 0),
        ("Ünïcödé\u00a0wörter\u2003drei", 3),
        ("東京", 1),
        ("١٢٣ number", 2),
    ],
)
def test_a_word_is_a_run_between_white_space_with_a_letter_or_digit(text, words):
    assert verdict(word_count(exactly=words), text).passed


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ("\n\n", 0),
        ("one", 1),
        ("one\n", 1),
        ("one\n\n  \ntwo\r\nthree\n", 3),
        ("a\u2028b", 2),
    ],
)
def test_blank_lines_do_not_count_and_characters_are_code_points(text, lines):
    assert verdict(line_count(exactly=lines), text).passed
    assert verdict(char_count(exactly=len(text) + 5), f"{text} 👍é\n ").passed


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("...", []),
        ("No full stop", ["No full stop"]),
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("Wait... what? Yes.", ["Wait... what?", "Yes."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ('"Really?" she asked. (Yes.) So.', ['"Really?" she asked.', "(Yes.)", "So."]),
        ("Pi is 3.14 and v1.2.3 is out. Fine.", ["Pi is 3.14 and v1.2.3 is out.", "Fine."]),
        ("Dr. Smith met J. Doe, e.g. here.", ["Dr. Smith met J. Doe, e.g. here."]),
        ("It was I. You left.", ["It was I.", "You left."]),
        ("Call the Dr.", ["Call the Dr."]),
        ("A title\n\nA paragraph.", ["A title", "A paragraph."]),
        ("One line\nof one sentence.", ["One line\nof one sentence."]),
        ("你好。再见！真的？", ["你好。", "再见！", "真的？"]),
        ("What?! No!!", ["What?!", "No!!"]),
        (
            "this is one. this is two! three? four",
            ["this is one.", "this is two!", "three?", "four"],
        ),
        ("it was... odd. yes", ["it was... odd.", "yes"]),
        ("Apples, pears etc. are fruit. Eat!", ["Apples, pears etc. are fruit.", "Eat!"]),
        ("We had pears etc. Then we left.", ["We had pears etc.", "Then we left."]),
        ("Come at 5 p.m. sharp. Bye.", ["Come at 5 p.m. sharp.", "Bye."]),
        ("See Fig. 3 and No. 7. the rest is air.", ["See Fig. 3 and No. 7.", "the rest is air."]),
        ("She said no. he left.", ["She said no.", "he left."]),
        ("1. First thing.\n2. Second thing.", ["1. First thing.", "2. Second thing."]),
        ("It was in 1998. then it rained.", ["It was in 1998.", "then it rained."]),
    ],
)
def test_sentences_are_found_by_rule(text, sentences):
    assert sentences_of(text) == sentences
    assert verdict(sentence_count(exactly=len(sentences)), text).passed


@given(st.text())
def test_sentences_keep_every_letter_in_order(text):
    letters = "".join(filter(str.isalnum, text))
    assert "".join(c for part in sentences_of(text) for c in part if c.isalnum()) == letters


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10))
def test_the_score_is_one_in_the_range_and_falls_with_the_distance(number, low, width):
    check = word_count(at_least=low, at_most=low + width)
    here = verdict(check, "w " * number)
    further = verdict(check, "w " * (number + 1 if number > low else max(number - 1, 0)))
    assert here.passed == (low <= number <= low + width)
    assert (here.score == 1.0) == here.passed
    assert 0.0 < here.score <= 1.0
    if number > low + width or 0 < number < low:
        assert further.score < here.score
