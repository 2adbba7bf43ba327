"""Requirements, the verdicts on them, and how they combine."""

from __future__ import annotations

import functools
import math
import pickle
import threading
from decimal import Decimal
from fractions import Fraction

import pytest

from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.requirement import CheckStage, Requirement, requirement
from mellea_like.core.validation import ValidationResult, Verdict


def yes(candidate):
    return True


async def later(candidate):
    return True


class Checker:
    def __call__(self, candidate):
        return True


class AsyncChecker:
    async def __call__(self, candidate):
        return True


def judged(description: str = "it is good") -> Requirement:
    return Requirement(description)


# --- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("passed", [1, "yes", None])
def test_a_verdict_is_a_bool(passed):
    with pytest.raises(TypeError, match="passed must be a bool"):
        ValidationResult(passed)


def test_a_reason_is_a_text():
    with pytest.raises(TypeError, match="reason must be a str"):
        ValidationResult(True, None)


@pytest.mark.parametrize("score", [-0.1, 1.1, math.nan, Decimal("NaN"), Fraction(3, 2), 10**400])
def test_a_score_lies_between_0_and_1(score):
    with pytest.raises(ValueError, match="between 0 and 1"):
        ValidationResult(True, score=score)
    assert ValidationResult(True, score=0).score == 0
    assert ValidationResult(True, score=1).score == 1


@pytest.mark.parametrize("score", ["0.5", True, 1j, [0.5]])
def test_a_score_is_a_number(score):
    with pytest.raises(TypeError, match="score must be a number"):
        ValidationResult(True, score=score)


# --- construction -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"description": 3}, TypeError, "description must be a str"),
        ({"description": "  "}, ValueError, "description can't be empty"),
        ({"validator": "x"}, TypeError, "must be callable"),
        ({"on_error": "ignore"}, ValueError, "on_error must be 'error', 'fail' or 'raise'"),
        ({"weight": 0}, ValueError, "weight must be greater than 0 and finite, not 0"),
        ({"weight": True}, TypeError, "weight must be a number"),
        ({"timeout": 0}, ValueError, "timeout must be greater than 0"),
        ({"validator": later, "inline": True}, ValueError, "inline can't be combined"),
        ({"validator": yes, "judge": ScriptedBackend([])}, ValueError, "judge can't be combined"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Requirement(**{"description": "it holds", **arguments})


@pytest.mark.parametrize(
    ("validator", "inline", "stage"),
    [
        (yes, False, CheckStage.THREAD),
        (yes, True, CheckStage.INLINE),
        (Checker(), False, CheckStage.THREAD),
        (functools.partial(yes), False, CheckStage.THREAD),
        (later, False, CheckStage.AWAITED),
        (AsyncChecker(), False, CheckStage.AWAITED),
        (functools.partial(functools.partial(later)), False, CheckStage.AWAITED),
        (functools.partial(AsyncChecker()), False, CheckStage.AWAITED),
        (None, False, CheckStage.AWAITED),
    ],
)
def test_cheap_requirements_are_checked_first(validator, inline, stage):
    assert Requirement("x", validator, inline=inline).stage is stage


def test_a_requirement_is_immutable_and_compares_by_identity():
    it = judged()
    with pytest.raises(AttributeError, match=r"immutable.*setting weight"):
        it.weight = 2.0
    with pytest.raises(AttributeError, match="immutable"):
        del it.weight
    with pytest.raises(AttributeError):
        it.other = 1
    assert it != judged()
    assert len({it, judged(), it}) == 2


def test_a_requirement_is_neither_true_nor_false():
    with pytest.raises(TypeError, match=r"combine requirements with &, \| and ~"):
        bool(judged())
    with pytest.raises(TypeError):
        _ = judged() and judged()


# --- the decorator ----------------------------------------------------------------------------


def test_requirement_decorates_a_validator():
    @requirement("three lines", weight=2, timeout=3, on_error="fail", check_only=True)
    def three_lines(candidate):
        return False

    assert type(three_lines) is Requirement
    assert three_lines.description == "three lines"
    assert three_lines.name == "three_lines"
    assert three_lines.validator(None) is False
    assert (three_lines.weight, three_lines.timeout) == (2.0, 3)
    assert (three_lines.on_error, three_lines.check_only) == ("fail", True)
    assert three_lines.stage is CheckStage.THREAD


def test_a_decorator_without_parentheses_is_explained():
    with pytest.raises(TypeError, match=r"@requirement\('exactly three lines'\)"):
        requirement(yes)


# --- combinations -----------------------------------------------------------------------------


def test_a_combination_is_judged_if_any_part_is():
    checked = requirement("x", yes)
    assert (checked & judged()).judged
    assert (~(checked | judged())).judged
    assert not (checked & checked).judged


def test_a_combination_is_hidden_from_the_model_only_if_all_parts_are():
    open_, hidden = requirement("o", yes), requirement("h", yes, check_only=True)
    assert not (open_ & hidden).check_only
    assert (hidden & hidden).check_only
    assert (~hidden).check_only


@pytest.mark.parametrize("other", ["text", yes, None, True])
def test_requirements_combine_with_requirements_only(other):
    with pytest.raises(TypeError):
        judged() & other
    with pytest.raises(TypeError):
        judged() | other


# --- stream checks ----------------------------------------------------------------------------


def watches(text, delta):
    return Verdict.UNKNOWN


async def watches_later(text, delta):
    return Verdict.UNKNOWN


class Watcher:
    def __call__(self, text, delta):
        return Verdict.UNKNOWN

    def look(self, text, delta):
        return Verdict.UNKNOWN


class AsyncWatcher:
    async def __call__(self, text, delta):
        return Verdict.UNKNOWN


class Locked(Watcher):
    def __init__(self):
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "stream",
    [
        watches,
        Watcher(),
        Watcher().look,
        functools.partial(watches),
        lambda text, delta, limit=3: Verdict.UNKNOWN,
        lambda *pieces: Verdict.UNKNOWN,
        max,
    ],
)
def test_a_stream_check_takes_the_text_and_its_newest_piece(stream):
    assert Requirement("x", stream=stream).stream is stream
    assert Requirement("x", yes, stream=stream).streams


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ("watch", "must be callable, not 'watch'"),
        (yes, "takes exactly two arguments, the text so far and its newest piece"),
        (lambda text, delta, more: Verdict.UNKNOWN, "takes exactly two arguments"),
        (Watcher, "takes exactly two arguments"),
        (Verdict, "takes exactly two arguments"),
        (watches_later, "can't be async"),
        (functools.partial(watches_later), "can't be async"),
        (AsyncWatcher(), "can't be async"),
        (Locked(), "can't be copied, but each draw needs its own copy: .*__deepcopy__"),
    ],
)
def test_a_wrong_stream_check_is_refused(stream, message):
    with pytest.raises(TypeError, match=f"requirement 'x': the stream check.*{message}"):
        Requirement("x", stream=stream)


def test_a_combination_streams_if_any_part_does():
    plain, early = Requirement("p", yes), Requirement("e", yes, stream=watches)
    assert not (plain | plain).streams
    assert (~(plain & early)).streams
    assert (plain | early).stream is None


def test_a_pickled_requirement_keeps_its_stream_check():
    assert pickle.loads(pickle.dumps(Requirement("e", yes, stream=watches))).stream is watches


class WithOwners(Requirement):
    def __init__(self, description, owner):
        super().__init__(description)
        vars(self).update(owner=owner)


def test_a_pickled_requirement_keeps_what_a_subclass_added():
    assert pickle.loads(pickle.dumps(WithOwners("it is short", "Anna"))).owner == "Anna"
