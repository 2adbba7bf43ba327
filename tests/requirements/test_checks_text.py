"""Checks of wording."""

from __future__ import annotations

import unicodedata

import pytest
from engine_kit import verdict
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.core.requirement import CheckStage
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks import (
    casing,
    contains,
    ends_with,
    excludes,
    matches,
    occurrences,
    starts_with,
)

DECOMPOSED = unicodedata.normalize("NFD", "café")


@pytest.mark.parametrize(
    ("check", "reply"),
    [
        (contains("red", "thing"), "a red thing"),
        (contains("class"), "subclasses"),
        (contains("Class", ignore_case=True), "a class"),
        (contains("STRASSE", ignore_case=True), "die Straße"),
        (contains("café"), DECOMPOSED),
        (excludes("red", "green"), "blue"),
        (excludes("Class"), "a class"),
        (starts_with("Hello", "Dear"), "  Dear you"),
        (starts_with("DEAR", ignore_case=True), "Dear you"),
        (starts_with("café"), DECOMPOSED),
        (ends_with("?", "!"), "What!\n"),
        (ends_with("BYE", ignore_case=True), "good bye"),
        (ends_with("café"), DECOMPOSED),
        (matches(r"\d+"), "room 101"),
        (matches(r"\d+", full=True), " 101\n"),
        (matches("ROOM", ignore_case=True), "room 101"),
        (casing("lower"), "all small, 123 ß"),
        (casing("upper"), "ALL BIG, 123"),
        (casing("lower"), ""),
        (casing("upper"), ""),
        (occurrences("a", at_most=2), "banal"),
        (occurrences(r"\d+", exactly=2), "1 and 22"),
        (occurrences("An", at_least=2, words=True, ignore_case=True), "an AN"),
        (occurrences("a|b", exactly=1, words=True), "a ab"),
        (occurrences("", at_most=0), "empty matches do not count"),
        (occurrences(r"(?i)x", exactly=2, words=True), "x X xx"),
    ],
)
def test_a_reply_passes(check, reply):
    assert verdict(check, reply).passed


@pytest.mark.parametrize(
    ("check", "reply", "reason", "score"),
    [
        (
            contains("red", "green", "blue"),
            *("a red thing", 'it does not contain "green" or "blue"', 1 / 3),
        ),
        (contains("Class"), "a class", 'it does not contain "Class"', 0),
        (
            excludes("red", "green", "blue"),
            *("red and blue", 'it contains "red" and "blue", which is not allowed', 1 / 3),
        ),
        (excludes("Class", ignore_case=True), "a class", "it contains", 0),
        (
            starts_with("Dear"),
            *("Hello world, this is long", 'it starts with "Hello world,", not with "Dear"', 0),
        ),
        (
            ends_with("!", "?"),
            *("well, this is the end.", 'it ends with " the end.", not with "!" or "?"', 0),
        ),
        (starts_with("Dear"), " \n", "it is empty", 0),
        (ends_with("Dear"), "", "it is empty", 0),
        (
            matches(r"\d\d"),
            *("none", r"it does not match the regular expression `\d\d` anywhere", 0),
        ),
        (
            matches("a+", full=True),
            *("b", "it does not match the regular expression `a+` as a whole", 0),
        ),
        (matches(r"\d+", full=True), "room 101", "it does not match", 0),
        (casing("lower"), "all Small", 'it is not all in lower case: "Small"', 0.5),
        (casing("lower"), "a b C D", "it is not all in lower case", 0.5),
        (casing("upper"), "ALL Big STRAßE", 'all in capitals: "Big", and 1 more', 1 / 3),
        (occurrences("a", at_most=2), "aaaaa", "`a`; at most 2 are allowed", 0.5),
        (occurrences("a", at_most=2), "banana", "it has 3 matches", 0.75),
        (occurrences(r"\d+", exactly=2), "1", "it has 1 match of the regular", None),
        (
            occurrences("An", at_least=2, words=True, ignore_case=True),
            *("an and ran", "it has 1 match", None),
        ),
        (occurrences("a|b", exactly=1, words=True), "a b", "it has 2 matches", None),
        (occurrences(r"(?i)x", exactly=2, words=True), "x", "it has 1 match", None),
    ],
)
def test_a_reply_fails_with_a_reason_and_a_score(check, reply, reason, score):
    result = verdict(check, reply)
    assert not result.passed
    assert reason in result.reason
    if score is not None:
        assert result.score == pytest.approx(score)
    assert len(verdict(contains("x" * 1000), "").reason) < 150


@pytest.mark.parametrize(
    ("text", "reply", "found"),
    [
        ("can", "significant", False),
        ("can", "a canned scan, uncan", False),
        ("can", "scan, but can", True),
        ("can", "I can't", True),
        ("can", "can_do", False),
        ("can", "can2", False),
        ("C++", "in C++, mostly", True),
        ("C++", "MC++", False),
        ("two words", "two words.", True),
        ("two words", "two wordsmiths", False),
        ("कर", "करि", False),
        ("é", "cafe\u0301", False),
    ],
)
def test_whole_words_are_found_only_between_other_characters(text, reply, found):
    assert verdict(contains(text, words=True), reply).passed is found
    assert verdict(excludes(text, words=True), reply).passed is not found
    assert verdict(contains(text.upper(), words=True, ignore_case=True), reply).passed is found


@pytest.mark.parametrize(
    ("check", "description"),
    [
        (contains("a", "b"), 'contains "a" and "b"'),
        (contains("a", ignore_case=True), 'contains "a" (upper or lower case)'),
        (contains("a", words=True), 'contains "a" as a whole word'),
        (excludes("a", "b", "c"), 'does not contain "a", "b" or "c"'),
        (starts_with("a"), 'starts with "a"'),
        (ends_with("a", "b"), 'ends with "a" or "b"'),
        (matches(r"\d+"), r"has a part that matches the regular expression `\d+`"),
        (matches("x", full=True), "matches as a whole the regular expression `x`"),
        (casing("lower"), "is all in lower case"),
    ],
)
def test_descriptions_are_phrases_for_the_model(check, description):
    assert check.description == description
    assert check.stage is CheckStage.INLINE


@given(st.text(min_size=1), st.text(), st.booleans())
def test_contains_and_excludes_are_opposites_for_one_text(needle, text, ignore_case):
    holds = verdict(contains(needle, ignore_case=ignore_case), text)
    lacks = verdict(excludes(needle, ignore_case=ignore_case), text)
    assert holds.passed != lacks.passed


@given(st.text())
def test_lowered_text_is_lower_and_raised_text_is_upper(text):
    lowered, raised = text.lower(), text.upper()
    if lowered == lowered.lower():
        assert verdict(casing("lower"), lowered).passed
    if raised == raised.upper():
        assert verdict(casing("upper"), raised).passed


@pytest.mark.parametrize(
    ("check", "seconds"),
    [
        (matches(r"(a|aa|b?a)+$", timeout=0.05), r"0\.05"),
        (occurrences("(?:a|aa)+$", at_least=1, timeout=0.01), r"0\.01"),
    ],
)
def test_a_pattern_that_needs_exponential_time_errs_instead_of_hanging(check, seconds):
    said = f"took more than {seconds} s on a reply of 4001 characters"
    with pytest.raises(RequirementError, match=said):
        verdict(check, "a" * 4000 + "!")
