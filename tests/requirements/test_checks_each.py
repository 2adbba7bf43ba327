"""A check of each part of a reply."""

from __future__ import annotations

import pickle

import pytest
from engine_kit import verdict

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends import ScriptedBackend
from mellea_like.core.requirement import CheckStage
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks import (
    casing,
    contains,
    each,
    ends_with,
    matches,
    starts_with,
    word_count,
)


def decided(check, text):
    """Return the engine's verdict."""
    strategy = RejectionSamplingStrategy(ScriptedBackend([text]), loop_budget=1)
    return strategy.sample_sync("Write.", [check]).best.validations[0][1]


@pytest.mark.parametrize(
    ("part", "check", "good", "bad"),
    [
        ("sentence", word_count(at_most=2), "one two. three four!", "one two. three four five!"),
        ("line", ends_with("!"), "a!\n\n b! \n", "a!\nb"),
        ("line", starts_with("  "), "  a\n  b", "  a\nb"),
        ("paragraph", contains("x"), "a\nx\n\n \nx b", "x\n\na\nb"),
        ("item", casing("lower"), "List:\n- a\n2) b\n * c", "- a\n- B"),
        ("item", word_count(exactly=1), "1. a\n   more text\n2. b", "no items"),
        ("item", word_count(exactly=1), "• a\na) b\nB. c", "• a b"),
    ],
)
def test_each_part_is_checked(part, check, good, bad):
    assert verdict(each(part, check), good).passed
    assert not verdict(each(part, check), bad).passed


def test_the_first_part_that_fails_is_shown():
    result = verdict(each("sentence", word_count(at_most=1)), "One. Two more. Three more. Four.")
    assert result.reason == (
        'sentence 2 fails, "Two more.": it has 2 words; at most 1 is allowed (and 1 more)'
    )
    assert result.score == pytest.approx(0.5)
    for part in ("sentence", "line", "paragraph", "item"):
        assert verdict(each(part, word_count(at_most=9)), " \n").reason == f"it has no {part}"


async def is_short(candidate):
    return len(candidate.text) < 3, "too long"


@pytest.mark.parametrize(
    ("check", "stage"),
    [
        (Requirement("is short", is_short), CheckStage.AWAITED),
        (Requirement("is short", lambda c: len(c.value) < 3), CheckStage.AWAITED),
        (Requirement("is short", lambda c: len(c.value) < 3, inline=True), CheckStage.INLINE),
    ],
)
def test_a_check_of_ones_own_runs_where_it_may_wait(check, stage):
    whole = each("line", check)
    assert whole.stage is stage
    assert decided(whole, "ab\ncd").passed
    assert decided(whole, "ab\ncde").status is ValidationStatus.FAILED


def test_a_check_that_errs_for_a_part_errs_as_a_whole():
    def look_up(candidate):
        raise OSError("away")

    with pytest.raises(RequirementError, match="OSError: away"):
        decided(each("line", Requirement("known", look_up)), "a")


def test_a_very_long_reply_is_checked_in_a_thread():
    text = "a b.\n" * 40_000
    assert decided(each("line", word_count(exactly=2)), text).passed
    assert decided(each("line", word_count(exactly=2) & contains("a")), text).passed


def test_it_pickles():
    check = pickle.loads(pickle.dumps(each("line", matches("a"), name="lines")))
    assert check.name == "lines"
    assert verdict(check, "a\nba").passed
