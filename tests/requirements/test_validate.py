"""Checking a candidate against requirements, outside of any call."""

from __future__ import annotations

import json

import anyio
import pytest
from engine_kit import candidate, says

from mellea_like import Requirement, ValidationResult
from mellea_like.backends.function import FunctionBackend
from mellea_like.core.backend import JUDGING, Judging, Options
from mellea_like.errors import BadVerdict
from mellea_like.requirements.checks import at_least
from mellea_like.requirements.staged_validation import StagedValidation

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

a, b = says("a"), says("b")


async def kind(request):
    passed = "kind" in request.messages[-1].text.partition("<text>")[2].partition("</text>")[0]
    return json.dumps({"passed": passed, "reason": "be kind"})


async def verdicts(requirements, text="a", *, judge=kind, check_all=False):
    judging = Judging(lambda backend: backend, Options(), None, FunctionBackend(judge))
    token = JUDGING.set(judging)
    try:
        return await StagedValidation(requirements).check(candidate(text), check_all)
    finally:
        JUDGING.reset(token)


def names(results):
    return [str(result.status) for result in results]


@pytest.mark.parametrize(
    ("requirements", "text", "check_all", "done"),
    [
        ([a], "a", False, True),
        ([a, Requirement("be kind")], "a", False, False),
        ([a, Requirement("be kind")], "b", False, True),
        ([a, Requirement("be kind")], "b", True, False),
        ([Requirement("be kind")], "a", False, False),
        ([a & b], "a", False, False),
    ],
)
async def test_whether_there_is_more_to_do_after_the_inline_stage(
    requirements, text, check_all, done
):
    validation = StagedValidation(requirements)
    assert validation.begin(candidate(text), check_all)[1] is done


async def test_an_inline_check_that_gives_a_coroutine_fails_the_stage_when_it_fails():
    async def answer(asked):
        return False

    def inline(asked):
        return answer(asked)

    checks = [Requirement("now", inline, inline=True), Requirement("be kind")]
    assert names(await verdicts(checks)) == ["failed", "skipped"]
    assert names(await verdicts(checks, check_all=True)) == ["failed", "failed"]


@pytest.mark.parametrize(
    ("error", "words"), [(LookupError("bug"), "LookupError: bug"), (LookupError(), "LookupError")]
)
async def test_an_error_is_told_by_type_and_message(error, words):
    def broken(asked):
        raise error

    [result] = await verdicts([Requirement("b", broken, inline=True, name="b")])
    assert str(result.error) == f"requirement 'b' could not be decided: {words}"


async def test_two_that_are_to_raise_give_one_exception():
    async def broken(asked):
        raise LookupError("bug")

    checks = [Requirement(f"b{i}", broken, on_error="raise") for i in range(2)]
    with pytest.raises(LookupError):
        await verdicts(checks)


async def test_a_bad_verdict_is_shown_in_ascii_and_not_at_any_length():
    check = Requirement("b", lambda asked: "ü" * 1000, inline=True)
    with pytest.raises(BadVerdict) as caught:
        await verdicts([check])
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("seconds", [1, 3])
async def test_the_timeout_is_for_judges_too(seconds):
    async def slow(request):
        await anyio.sleep(seconds)
        return json.dumps({"passed": True, "reason": "late"})

    [result] = await verdicts([Requirement("be kind", timeout=2)], judge=slow)
    assert names([result]) == ["passed" if seconds < 2 else "errored"]


async def test_the_timeout_of_a_part_counts_inside_a_combination():
    async def slow(asked):
        await anyio.sleep(9)
        return True

    [result] = await verdicts([a & Requirement("slow", slow, timeout=1)])
    assert names([result]) == ["errored"]
    assert anyio.current_time() == pytest.approx(1)


# --- combined requirements --------------------------------------------------------------------


async def broken(asked):
    raise LookupError("bug")


bad = Requirement("bad", broken)
good = Requirement("good", lambda asked: True, inline=True)
wrong = Requirement("wrong", lambda asked: False, inline=True)
late_good = Requirement("late good", lambda asked: _true(), inline=True)


async def _true():
    return True


@pytest.mark.parametrize(
    ("whole", "status"),
    [
        (good & bad, "errored"),
        (wrong & bad, "failed"),  # the cheap part decided it; the other was never asked
        (good | bad, "passed"),
        (wrong | bad, "errored"),
        (~bad, "errored"),
        (~(good & bad), "errored"),
        (~(good | bad), "failed"),
        (~(wrong & bad), "passed"),
        (late_good & good, "passed"),
        (~late_good, "failed"),
        (wrong | late_good, "passed"),
        (at_least(1, wrong, good, bad), "passed"),
        (at_least(2, wrong, good, wrong, bad), "errored"),
        (at_least(2, wrong, wrong, bad), "failed"),
        (at_least(2, wrong, late_good, good, bad), "passed"),
        (at_least(3, late_good, good, "be kind"), "failed"),
        (~at_least(2, good, wrong), "passed"),
    ],
    ids=lambda value: getattr(value, "description", value),
)
async def test_an_error_is_never_argued_away_and_never_looked_for(whole, status):
    assert names(await verdicts([whole])) == [status]


async def test_a_majority_names_who_voted_against_and_scores_as_many_as_it_needs():
    scored = [
        Requirement(f"judge {i}", lambda _, i=i: ValidationResult(i > 1, f"vote {i}", i / 4))
        for i in range(4)
    ]
    [for_, against] = await verdicts([at_least(2, *scored), at_least(3, *scored)], check_all=True)
    assert (for_.passed, for_.score) == (True, 0.5)
    assert for_.reason == "2 of 4 met: judge 2: vote 2; judge 3: vote 3"
    assert (against.passed, against.score) == (False, 0.25)
    assert against.reason == "2 of 4 met: judge 0: vote 0; judge 1: vote 1"
    [panel] = await verdicts([at_least(2, *["be kind"] * 3)], "a kind a")
    assert panel.reason == "3 of 3 met: be kind; be kind; be kind"
    assert at_least(2, *["be kind"] * 3).description == "at least 2 of 3 verdicts: be kind"
    assert at_least(2, a, b, "be kind").description == "at least 2 of these: say a; say b; be kind"
