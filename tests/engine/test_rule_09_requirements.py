"""Rule 9 of the engine: requirements keep their order, and none is ever dropped."""

from __future__ import annotations

import pytest
from engine_kit import says

from mellea_like import Instruction, RejectionSamplingStrategy, Requirement, ValidationResult
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.validation import ValidationStatus
from mellea_like.hooks import HookType, hook
from mellea_like.requirements.merging import merge_requirements

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

a, b, c = says("a"), says("b"), says("c")


def judge_all(request):
    return '{"passed": true, "reason": ""}' if request.meta.purpose == "judge" else "a b c"


async def checked(strategy, action, requirements, **arguments):
    result = await strategy.sample(action, requirements, **arguments)
    return [requirement for requirement, _ in result.slices[0].validations]


async def test_rule_09_equal_texts_count_once():
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(judge_all), requirements=["is kind", "is short"]
    )
    action = Instruction("do", requirements=("is short", "is true"))
    got = await checked(strategy, action, ["is kind", a])
    assert [r.description for r in got] == ["is kind", "is short", "is true", "say a"]


@pytest.mark.parametrize(
    ("sources", "merged"),
    [
        ([], []),
        ([[], []], []),
        ([["x"], ["x", "y"]], ["x", "y"]),
        ([[a], ["say a"]], ["say a", "say a"]),
        ([[b, a], [a, b]], ["say b", "say a"]),
    ],
)
def test_rule_09_merging(sources, merged):
    assert [r.description for r in merge_requirements(*sources)] == merged


@pytest.mark.parametrize("keep", [0, 1])
async def test_rule_09_a_plugin_that_returns_fewer_drops_none(keep):
    @hook(HookType.VALIDATION_PRE_CHECK)
    async def fewer(payload):
        return payload.model_copy(update={"requirements": payload.requirements[:keep]})

    strategy = RejectionSamplingStrategy(ScriptedBackend(["b c"]), plugins=[fewer], loop_budget=1)
    result = await strategy.sample("do", [c, a])
    assert not result.success
    assert [r for r, _ in result.slices[0].validations] == [c, a]


async def test_rule_09_what_a_plugin_adds_is_checked_after_the_rest_and_once():
    @hook(HookType.VALIDATION_PRE_CHECK)
    async def more(payload):
        return payload.model_copy(update={"requirements": (b, a)})

    strategy = RejectionSamplingStrategy(ScriptedBackend(["a c"]), plugins=[more], loop_budget=1)
    result = await strategy.sample("do", [c, a])
    assert not result.success
    assert [r for r, _ in result.slices[0].validations] == [c, a, b]


async def test_rule_09_every_declared_requirement_has_a_verdict_in_the_record():
    strategy = RejectionSamplingStrategy(ScriptedBackend(["nothing"]), loop_budget=1)

    async def later(candidate):
        return True

    result = await strategy.sample("do", [Requirement("later", later), a, b])
    statuses = [verdict.status for _, verdict in result.slices[0].validations]
    assert statuses == [ValidationStatus.SKIPPED, ValidationStatus.FAILED, ValidationStatus.FAILED]
    assert not result.success


async def test_rule_09_a_validator_that_skips_does_not_pass():
    skips = Requirement("skips", lambda c: ValidationResult.skipped("not now"), inline=True)
    strategy = RejectionSamplingStrategy(ScriptedBackend(["a"]), loop_budget=1)
    result = await strategy.sample("do", [skips, a])
    assert not result.success
    assert str(result.slices[0].outcome) == "failed"


async def test_rule_09_a_validator_that_says_it_erred_is_believed_and_the_subsample_goes_on():
    error = LookupError("index is down")

    def check(candidate):
        return ValidationResult.errored(error) if candidate.text == "?" else True

    strategy = RejectionSamplingStrategy(ScriptedBackend(["?", "a"]))
    result = await strategy.sample("do", [Requirement("errs", check, inline=True), a])
    assert [str(s.outcome) for s in result.slices] == ["errored", "passed"]
    assert result.errors == (error,)
