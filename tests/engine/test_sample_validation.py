"""Validation inside a call: stages, skipping, judges, combined requirements, usage."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import by_iteration, says

from mellea_like import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    ValidationResult,
)
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import RequirementError

pytestmark = pytest.mark.anyio

KIND = '{"passed": true, "reason": "it is kind"}'


def statuses(slice_):
    return [str(verdict.status) for _, verdict in slice_.validations]


def tracked(name, answer, log, *, seconds=None, inline=False):
    def plain(candidate):
        log.append(name)
        return answer

    async def awaited(candidate):
        log.append(name)
        await anyio.sleep(seconds)
        return answer

    return Requirement(name, plain if seconds is None else awaited, inline=inline)


# --- stages -----------------------------------------------------------------------------------


STAGES = ["inline", "thread", "async"]


@pytest.mark.parametrize("failing", STAGES)
@pytest.mark.parametrize(
    ("strategy", "settings", "skips"),
    [
        (RejectionSamplingStrategy, {}, True),
        (RepairTemplateStrategy, {}, False),
        (MultiTurnStrategy, {}, False),
        (RejectionSamplingStrategy, {"validate_all": True}, False),
        (RepairTemplateStrategy, {"validate_all": False}, True),
    ],
)
async def test_after_a_failed_stage_the_later_ones_are_skipped_unless_all_reasons_are_wanted(
    failing, strategy, settings, skips
):
    log = []
    checks = [
        tracked("inline", failing != "inline", log, inline=True),
        tracked("thread", failing != "thread", log),
        tracked("async", failing != "async", log, seconds=0),
    ]
    made = strategy(ScriptedBackend(["a"]), loop_budget=1, **settings)
    result = await made.sample("do", checks)
    failed_at = STAGES.index(failing)
    assert log == (STAGES[: failed_at + 1] if skips else STAGES)
    expected = ["passed"] * 3
    expected[failed_at] = "failed"
    if skips:
        expected[failed_at + 1 :] = ["skipped"] * (2 - failed_at)
    assert statuses(result.best) == expected
    skipped = [v for _, v in result.best.validations if v.status == "skipped"]
    assert {v.reason for v in skipped} <= {"an earlier requirement was not met"}
    assert not any(skipped)
    assert result.best.problems == (failing,)


async def test_async_members_of_a_stage_run_beside_each_other(virtual_clock):
    log = []
    checks = [tracked(f"c{i}", True, log, seconds=i) for i in (3, 1, 2)]
    strategy = RejectionSamplingStrategy(by_iteration({}), loop_budget=1)
    result = await strategy.sample("do", checks)
    assert result.elapsed == pytest.approx(3)
    assert [r.description for r, _ in result.best.validations] == ["c3", "c1", "c2"]


# --- judges -----------------------------------------------------------------------------------


async def test_a_requirements_own_judge_comes_before_the_strategys(virtual_clock):
    judge, own = ScriptedBackend([]), ScriptedBackend([KIND])
    strategy = RejectionSamplingStrategy(ScriptedBackend(["text"]), judge=judge)
    check = Requirement("be kind", judge=own)
    assert (await strategy.sample("do", [check])).success
    assert len(own.requests) == 1
    assert judge.requests == []


@pytest.mark.parametrize(
    "reply",
    ["not yes", "yes", "true", "passed", '{"passed": "yes", "reason": ""}', "null", KIND + "!"],
)
async def test_a_verdict_that_does_not_parse_is_an_error_not_a_pass(virtual_clock, reply):
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(["a"]), judge=ScriptedBackend([reply]), loop_budget=1
    )
    with pytest.raises(RequirementError, match="the judge's reply is not") as caught:
        await strategy.sample("do", ["be kind"])
    assert caught.value.requirement == "be kind"


async def test_judges_are_asked_at_temperature_0_and_not_by_format_unless_told(virtual_clock):
    judge = ScriptedBackend([KIND, KIND])
    backend = ScriptedBackend(["7", "7"])
    options = {"temperature": 1.0, "max_tokens": 9}
    await RejectionSamplingStrategy(backend, judge=judge, options=options).sample(
        "do", ["be kind"], format=int
    )
    await RejectionSamplingStrategy(
        backend, judge=judge, judge_options={"temperature": 0.5, "model": "strict"}
    ).sample("do", ["be kind"], options=options)
    first, second = judge.requests
    assert (first.options.temperature, first.options.max_tokens) == (0.0, None)
    assert first.format is None
    assert (second.options.temperature, second.options.model) == (0.5, "strict")
    assert backend.requests[1].options.temperature == 1.0


# --- combined ---------------------------------------------------------------------------------


a, b = says("a"), says("b")


@pytest.mark.parametrize(
    ("requirement", "texts"),
    [
        (a & b, {"a b": True, "a": False, "b": False, "x": False}),
        (a | b, {"a b": True, "a": True, "b": True, "x": False}),
        (~a, {"a": False, "b": True}),
        (a & ~b, {"a": True, "a b": False, "x": False}),
        (~(a & b), {"a b": False, "a": True, "x": True}),
        (~(a | b), {"a": False, "x": True}),
        (~~a, {"a": True, "x": False}),
        (a & b & says("c"), {"a b c": True, "a b": False}),
        (a | b | says("c"), {"c": True, "d": False}),
        ((a | b) & says("c"), {"a c": True, "c": False, "a": False}),
    ],
    ids=lambda value: getattr(value, "description", ""),
)
async def test_combined_requirements(virtual_clock, requirement, texts):
    for text, passed in texts.items():
        strategy = RejectionSamplingStrategy(ScriptedBackend([text]), loop_budget=1)
        result = await strategy.sample("do", [requirement])
        assert result.success is passed, text


@pytest.mark.parametrize(
    ("requirement", "text", "problem"),
    [
        (a & b, "a", "say a and say b: say b: it lacks b"),
        (a & b, "x", "say a and say b: say a: it lacks a; say b: it lacks b"),
        (a | b, "x", "say a or say b: say a: it lacks a; say b: it lacks b"),
        (~a, "a", "not: say a: it meets 'say a'"),
    ],
    ids=lambda value: getattr(value, "description", ""),
)
async def test_the_reason_names_what_decided(virtual_clock, requirement, text, problem):
    strategy = RejectionSamplingStrategy(ScriptedBackend([text]), loop_budget=1)
    assert (await strategy.sample("do", [requirement])).best.problems == (problem,)


async def test_or_stops_at_the_first_stage_that_decides_it(virtual_clock):
    asked = []

    async def expensive(candidate):
        asked.append(candidate.text)
        return True

    either = Requirement("expensive", expensive) | a
    strategy = RejectionSamplingStrategy(ScriptedBackend(["a"]), loop_budget=1)
    assert (await strategy.sample("do", [either])).success
    assert asked == []
    strategy = RejectionSamplingStrategy(ScriptedBackend(["c"]), loop_budget=1)
    assert (await strategy.sample("do", [either])).success
    assert asked == ["c"]


async def test_scores_of_the_parts_make_the_whole_ones(virtual_clock):
    def scored(score, *, passed):
        return Requirement(f"s{score}", lambda c: ValidationResult(passed, "", score), inline=True)

    low, high = scored(0.2, passed=False), scored(0.9, passed=False)
    strategy = RejectionSamplingStrategy(ScriptedBackend(["a"]), loop_budget=1)
    result = await strategy.sample("do", [low & high, low | high, ~a & b])
    assert [v.score for _, v in result.best.validations] == [0.2, 0.9, None]
