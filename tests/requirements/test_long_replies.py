"""Ready-made checks of long replies take linear time."""

from __future__ import annotations

import time

import pytest
from engine_kit import candidate

from mellea_like.requirements import checks

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
