"""Rule 8 of the engine: what goes wrong in a validator or a strategy is never a pass."""

from __future__ import annotations

import anyio
import numpy as np
import pytest
from engine_kit import after, by_iteration, outcomes, yes

from mellea_like import (
    BaseSamplingStrategy,
    Instruction,
    Outcome,
    RejectionSamplingStrategy,
    Requirement,
    ValidationResult,
)
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import StopReason
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import BadVerdict, RequirementError
from mellea_like.hooks import HookType
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def broken(candidate):
    if "bad" in candidate.text:
        raise LookupError("bug")
    return "yes" in candidate.text


async def broken_async(candidate):
    await anyio.sleep(0.1)
    return broken(candidate)


KINDS = [
    pytest.param({"validator": broken, "inline": True}, id="inline"),
    pytest.param({"validator": broken_async}, id="async"),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_rule_08_by_default_an_exception_makes_the_slice_errored_and_the_next_turn_starts(
    kind,
):
    check = Requirement("check", name="my check", **kind)
    strategy = RejectionSamplingStrategy(ScriptedBackend(["bad", "no", "yes"]))
    result = await strategy.sample("do", [check])
    assert outcomes(result) == {1: "errored", 2: "failed", 3: "passed"}
    error = result.slices[0].error
    assert isinstance(error, RequirementError)
    assert isinstance(error.__cause__, LookupError)
    assert error.requirement == "my check"
    assert str(error) == "requirement 'my check' could not be decided: LookupError: bug"
    [(requirement, verdict)] = result.slices[0].validations
    assert requirement is check
    assert verdict.status is ValidationStatus.ERRORED
    assert verdict.error is error
    assert not verdict


@pytest.mark.parametrize("kind", KINDS)
async def test_rule_08_on_error_fail_makes_it_a_failed_verdict(kind):
    check = Requirement("check", on_error="fail", **kind)
    result = await RejectionSamplingStrategy(ScriptedBackend(["bad", "yes"])).sample("do", [check])
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert result.errors == ()
    [problem] = result.slices[0].problems
    assert problem == "check: it could not be checked: LookupError: bug"


@pytest.mark.parametrize("kind", KINDS)
async def test_rule_08_on_error_raise_cancels_the_siblings_and_raises(kind):
    recording = RecordingPlugin()
    check = Requirement("check", name="mine", on_error="raise", **kind)
    backend = by_iteration({1: after(1, "bad")}, default=after(9, "no"))
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=3, plugins=[recording]
    )
    with pytest.raises(LookupError, match="bug") as caught:
        await strategy.sample("do", [check])
    assert caught.value.__notes__ == ["raised by requirement 'mine', whose on_error is 'raise'"]
    assert anyio.current_time() < 2
    assert backend.statistics().cancelled == 2
    [end] = recording.of(HookType.SAMPLING_LOOP_END)
    assert end.error is caught.value
    assert end.stop_reason is StopReason.ERROR
    assert [s.outcome for s in end.slices] == [
        Outcome.ERRORED,
        Outcome.CANCELLED,
        Outcome.CANCELLED,
    ]


@pytest.mark.parametrize("on_error", ["error", "fail", "raise"])
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "async"])
@pytest.mark.parametrize(
    "verdict",
    [None, 1, 0, "yes", "", (True,), (True, 1), (1, "why"), (True, "why", 1), [True, "why"], {}],
    ids=repr,
)
async def test_rule_08_what_is_no_verdict_is_raised_whatever_on_error_says(
    verdict, inline, on_error
):
    async def answer(candidate):
        return verdict

    validator = (lambda candidate: verdict) if inline else answer
    check = Requirement("check", validator, name="mine", inline=inline, on_error=on_error)
    backend = by_iteration({}, default=after(1, "no"))
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=2)
    with pytest.raises(BadVerdict, match="requirement 'mine'") as caught:
        await strategy.sample("do", [check])
    assert isinstance(caught.value, RequirementError)
    assert isinstance(caught.value, TypeError)
    assert caught.value.requirement == "mine"
    assert "return a bool, (bool, reason) or a ValidationResult" in str(caught.value)
    assert backend.statistics().started == 2


@pytest.mark.parametrize(
    ("verdict", "passed", "reason"),
    [
        (True, True, ""),
        (False, False, ""),
        ((True, "fine"), True, "fine"),
        ((False, "why"), False, "why"),
        (ValidationResult(True, "ok", 0.5), True, "ok"),
        (ValidationResult(False, "poor", 0.1), False, "poor"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("form", ["inline", "async", "inline that gives a coroutine"])
async def test_rule_08_verdicts_and_awaitables_of_them_are_read(verdict, passed, reason, form):
    async def answer(candidate):
        await anyio.sleep(0.1)
        return verdict

    validators = {
        "inline": lambda candidate: verdict,
        "async": answer,
        "inline that gives a coroutine": lambda candidate: answer(candidate),  # noqa: PLW0108
    }
    check = Requirement("check", validators[form], inline=form != "async")
    result = await RejectionSamplingStrategy(ScriptedBackend(["no"]), loop_budget=1).sample(
        "do", [check]
    )
    [(_, got)] = result.slices[0].validations
    assert (result.success, got.passed, got.reason) == (passed, passed, reason)


@pytest.mark.parametrize("on_error", ["error", "fail"])
@pytest.mark.parametrize(
    "combine",
    [
        lambda check: ~check,
        lambda check: ~~check,
        lambda check: ~(check & check),
        lambda check: ~(check | yes),
        lambda check: ~(yes & check),
        lambda check: ~~~check,
        lambda check: check & Requirement("fine", lambda c: True, inline=True),
    ],
    ids=["~a", "~~a", "~(a&a)", "~(a|yes)", "~(yes&a)", "~~~a", "a&true"],
)
async def test_rule_08_no_combination_turns_an_exception_into_a_pass(combine, on_error):
    check = Requirement("check", broken, inline=True, on_error=on_error)
    strategy = RejectionSamplingStrategy(ScriptedBackend(["bad"], cycle=True), loop_budget=1)
    try:
        result = await strategy.sample("do", [combine(check)])
    except RequirementError:
        return
    assert not result.success


async def test_rule_08_select_from_failure_may_return_what_is_an_index():
    class Last(RejectionSamplingStrategy):
        def select_from_failure(self, slices):
            return np.int64(len(slices) - 1)

    result = await Last(by_iteration({})).sample("do", [yes])
    assert result.best.iteration == 3


@pytest.mark.parametrize(
    "answer",
    [None, Instruction("x"), (Instruction("x"), None), (1, 2), ("text", "context"), (1, 2, 3)],
    ids=lambda answer: type(answer).__name__,
)
async def test_rule_08_a_repair_that_is_none_is_an_error_that_names_the_strategy(answer):
    class Odd(BaseSamplingStrategy):
        def repair(self, history):
            return answer

    with pytest.raises(TypeError, match=r"Odd\.repair returned .*, not \(Action, Context\)"):
        await Odd(by_iteration({})).sample("do", [yes])


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [(n, ValueError, ".*0 to 1") for n in (-1, 2, 100)]
    + [(odd, TypeError, " not an int") for odd in (None, True, 1.0, "0")],
)
async def test_rule_08_an_impossible_choice_is_an_error_that_names_the_strategy(answer, error, why):
    class Odd(RejectionSamplingStrategy):
        def select_from_failure(self, slices):
            return answer

    with pytest.raises(error, match=rf"Odd\.select_from_failure returned {answer!r},{why}"):
        await Odd(by_iteration({}), loop_budget=2).sample("do", [yes])


async def test_rule_08_the_base_class_does_not_know_how_to_repair():
    with pytest.raises(NotImplementedError):
        await BaseSamplingStrategy(by_iteration({})).sample("do", [yes])
