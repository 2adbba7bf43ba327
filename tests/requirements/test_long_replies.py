"""Ready-made checks of long replies take linear time and don't block the event loop."""

from __future__ import annotations

import time

import anyio
import pytest
from engine_kit import candidate

from mellea_like.requirements import checks, checks_common
from mellea_like.requirements.staged_validation import StagedValidation

CHECKS = [
    checks.word_count(at_most=3),
    checks.char_count(at_most=3),
    checks.line_count(at_most=3),
    checks.sentence_count(at_most=3),
    checks.contains("aaab", "e\u0301", ignore_case=True),
    checks.excludes("a" * 99 + "b", ignore_case=True),
    checks.starts_with("a" * 999 + "b", ignore_case=True),
    checks.ends_with("b" * 99, ignore_case=True),
    checks.matches("^a*b$"),
    *(checks.casing(kind) for kind in ("lower", "upper")),
    checks.is_json(),
    checks.json_schema({"type": "array", "items": {"type": "integer"}}),
    checks.parses_as(list[int]),
    checks.one_of(["a", "b"], ignore_case=True),
    checks.number_between(1, 2),
]
PARTS = [*'a \n.["`', "!)", "ab ", "J. ", "a\u0301", "```\n", "\n   ", "\u3002\u300d"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_time_of_a_check_is_linear_in_the_length_of_the_reply(check):
    def seconds(part: str, length: int) -> float:
        reply = candidate(part * (length // len(part)))
        began = time.process_time()
        check.validator(reply)
        return time.process_time() - began

    for part in PARTS:
        short = max(seconds(part, 5_000), 0.001)
        # 10 times, and 100 if it were quadratic. The garbage collector may take its time in one.
        assert any(seconds(part, 50_000) < 40 * short for _ in range(3)), part


@pytest.mark.anyio
async def test_a_very_long_reply_does_not_hold_the_event_loop_up():
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        reply = candidate("ab " * 300_000)
        [verdict] = await StagedValidation([checks.word_count(at_most=3)]).check(reply)
        tasks.cancel_scope.cancel()
    assert verdict.reason.startswith("it has 300000 words")
    assert ticks > 1


@pytest.mark.anyio
async def test_a_check_has_a_time_limit_of_its_own(monkeypatch):
    monkeypatch.setattr(checks_common, "LONG_SECONDS", 0.001)
    reply = candidate("ab " * 300_000)
    [verdict] = await StagedValidation([checks.word_count(at_most=3)]).check(reply)
    assert verdict.status.value == "errored"
