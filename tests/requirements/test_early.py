"""Requirements that are checked while a reply is still arriving."""

from __future__ import annotations

import pytest

from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationStatus, Verdict
from mellea_like.errors import BadVerdict, RequirementError
from mellea_like.requirements.checks import at_least
from mellea_like.requirements.early_rejection import EarlyWatch

FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN


def says(name: str, answers: dict[str, object] | None = None, **settings) -> Requirement:
    """Make a requirement whose stream check looks up its answer, and raises exceptions in it."""
    given = answers or {}

    def check(text, delta):
        answer = given.get(text, UNKNOWN)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Requirement(name, stream=check, **settings)


def outcome(requirement, text):
    """Return the part of a text that had arrived when a watch rejected it, and the verdict."""
    watch = EarlyWatch([requirement])
    for i in range(len(text)):
        rejection = watch.feed(text[: i + 1], text[i])
        if rejection is not None:
            return text[: i + 1], rejection[1]
    return None


class Counting:
    """A stateful check: fails at the third piece."""

    def __init__(self):
        self.pieces = 0

    def __call__(self, text, delta):
        self.pieces += 1
        return FAIL if self.pieces == 3 else UNKNOWN


def test_only_requirements_with_a_stream_check_are_watches():
    plain, early = Requirement("plain"), says("early")
    assert not any(requirement.streams for requirement in (plain, plain & plain, ~plain))
    assert (plain & ~early).streams
    assert EarlyWatch([plain, plain | plain]).feed("a", "a") is None


def test_the_first_failure_is_the_rejection_and_says_which_requirement():
    plain = Requirement("plain")
    watch = EarlyWatch([plain, says("a", {"xy": (FAIL, "y is bad")}), says("b", {"xy": FAIL})])
    assert watch.feed("x", "x") is None
    position, verdict = watch.feed("xy", "y")
    assert position == 1
    assert (verdict.status, verdict.reason) == (ValidationStatus.FAILED, "y is bad")
    assert verdict.error is None


def test_a_rejection_stands():
    watch = EarlyWatch([says("a", {"xy": FAIL}), says("b", {"x": FAIL})])
    assert watch.feed("x", "x")[0] == 1
    assert watch.feed("xy", "y")[0] == 1


def test_each_watch_and_each_requirement_has_fresh_copies_of_stateful_checks():
    requirement = Requirement("three", stream=Counting())
    assert outcome(requirement, "abcd")[0] == "abc"
    assert outcome(requirement, "abcd")[0] == "abc"
    assert requirement.stream.pieces == 0

    shared = Counting()
    both = [Requirement("a", stream=shared), Requirement("b", stream=shared)]
    watch = EarlyWatch(both)
    assert watch.feed("a", "a") is None
    assert watch.feed("ab", "b") is None
    assert watch.feed("abc", "c")[0] == 0


PLAIN = Requirement("plain")
FAILS, GOOD = says("a", {"x": (FAIL, "x")}), says("c", {"x": PASS})
LATER, NEVER = says("b", {"xy": (FAIL, "y")}), says("b", {"xyz": (FAIL, "z")})
THEN = says("b", {"xy": PASS})
ARRIVING = "it was rejected while it was still arriving"


@pytest.mark.parametrize(
    ("requirement", "text", "reason"),
    [
        (says("a", {"x": FAIL}), "x", ARRIVING),
        (says("a", {"x": (FAIL, "")}), "x", ARRIVING),
        (says("a", {"x": PASS, "xy": FAIL}), None, ""),
        (says("a", {"x": (PASS, "fine"), "xy": FAIL}), None, ""),
        (says("a", {"x": (UNKNOWN, "who knows"), "xy": FAIL}), "xy", ARRIVING),
        (LATER & says("c", {"x": PASS, "xyz": FAIL}), "xy", "b: y"),
        (says("c", {"x": PASS, "xyz": FAIL}) & LATER, "xy", "b: y"),
        (LATER & PLAIN, "xy", "b: y"),
        (says("a", {"x": (FAIL, "x"), "xy": PASS}) | NEVER, "xyz", "a: x; b: z"),
        (NEVER | says("a", {"x": (FAIL, "x"), "xy": PASS}), "xyz", "b: z; a: x"),
        (FAILS | PLAIN, None, ""),
        (FAILS | says("c", {"x": PASS, "xy": FAIL}), None, ""),
        (says("c", {"x": PASS, "xy": FAIL}) | FAILS, None, ""),
        (at_least(2, FAILS, PLAIN, LATER), "xy", "a: x; b: y"),
        (at_least(1, FAILS, PLAIN, LATER), None, ""),
        (at_least(2, FAILS, GOOD, GOOD, LATER), None, ""),
        (~at_least(2, LATER, GOOD, GOOD, PLAIN), "x", None),
        (~says("a", {"x": FAIL, "xy": PASS}), None, ""),
        (~THEN, "xy", "it meets 'b'"),
        (~(GOOD & THEN), "xy", None),
        (~(GOOD | THEN), "x", None),
        (~(GOOD & PLAIN), None, ""),
        (~(GOOD | PLAIN), "x", None),
        ((says("a", {"x": PASS, "xy": FAIL}) | PLAIN) & NEVER, "xyz", "b: z"),
        ((says("a", {"x": PASS, "xy": FAIL}) | PLAIN) & PLAIN, None, ""),
    ],
)
def test_a_reply_is_rejected_once_it_can_not_pass(requirement, text, reason):
    rejected = outcome(requirement, "xyz")
    if text is None:
        assert rejected is None
    else:
        assert rejected[0] == text
        assert reason in (None, rejected[1].reason)


# --- exceptions and answers that are none -----------------------------------------------------


def test_an_exception_in_a_check_is_what_on_error_says():
    cause = KeyError("colour")
    verdict = outcome(says("a", {"x": cause}), "x")[1]
    assert verdict.status is ValidationStatus.ERRORED
    assert isinstance(verdict.error, RequirementError)
    assert verdict.error.__cause__ is cause
    assert verdict.error.requirement == "a"
    assert "requirement 'a' could not be decided: KeyError: 'colour'" in verdict.reason

    verdict = outcome(says("a", {"x": cause}, on_error="fail"), "x")[1]
    assert verdict.status is ValidationStatus.FAILED
    assert verdict.error is cause
    assert verdict.reason == "it could not be checked: KeyError: 'colour'"

    with pytest.raises(KeyError) as caught:
        outcome(says("a", {"x": cause}, on_error="raise"), "x")
    assert caught.value is cause
    assert cause.__notes__ == ["raised by requirement 'a', whose on_error is 'raise'"]


@pytest.mark.parametrize(
    "answer", [None, True, (FAIL, 3), ("fail", "why"), [FAIL, "why"], (FAIL, "", "")]
)
@pytest.mark.parametrize("on_error", ["error", "fail", "raise"])
def test_an_answer_that_is_no_verdict_is_raised_and_names_the_requirement(answer, on_error):
    with pytest.raises(BadVerdict, match="'colours': its stream check returned") as caught:
        outcome(says("colours", {"x": answer}, on_error=on_error), "x")
    assert caught.value.requirement == "colours"


def test_a_coroutine_for_an_answer_is_closed():
    async def later():
        return FAIL

    answer = later()
    with pytest.raises(BadVerdict):
        outcome(says("a", {"x": answer}), "x")
    assert answer.cr_frame is None  # If it were not closed, a warning would fail the test later.


# --- combinations -----------------------------------------------------------------------------


def test_an_error_in_a_part_is_never_argued_away():
    bad = says("bad", {"x": KeyError("k")})
    good = says("good", {"x": PASS})
    for whole in (bad & good, good | bad, ~bad, ~(good | bad), bad | Requirement("plain")):
        assert outcome(whole, "x")[1].status is ValidationStatus.ERRORED


def test_a_part_that_failed_by_an_exception_does_not_make_its_negation_true():
    bad = says("bad", {"x": KeyError("k")}, on_error="fail")
    for whole in (~bad, ~~bad, ~(bad | bad)):
        verdict = outcome(whole, "x")[1]
        assert verdict.status is ValidationStatus.FAILED
        assert isinstance(verdict.error, KeyError)
    assert outcome(bad | says("later"), "xy") is None


def test_parts_keep_their_own_on_error_and_name():
    whole = says("good", {"x": PASS}) & says("bad", {"x": KeyError("k")}, on_error="raise")
    with pytest.raises(KeyError):
        outcome(whole, "x")
    with pytest.raises(BadVerdict, match="'odd'"):
        outcome(says("good") | says("odd", {"x": 3}), "x")
