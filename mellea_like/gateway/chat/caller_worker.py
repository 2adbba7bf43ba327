"""The process that runs what callers bring: patterns and schemas. It may hang; nothing else does.

It reads a question a line, and writes an answer a line, both in JSON. The kernel ends it when a
question takes more processor time or memory than it may.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.conversation import Context, Instruction
from mellea_like.core.generation import Generation
from mellea_like.core.validation import Candidate, ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks import json_schema
from mellea_like.requirements.expressions import parse_check

if TYPE_CHECKING:
    from mellea_like.core.requirement import Requirement

__all__ = ["main"]

MEMORY = 2**30
"""Bytes of address space; a pattern can ask for more than there is."""

NICENESS = 10


def main() -> None:
    """Answer questions until there are no more."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # Nobody catches its signal.
        answer = _answer(asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        spent = time.process_time() - began
        sys.stdout.write(json.dumps({**answer, "spent": spent}) + "\n")
        sys.stdout.flush()


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        requirement = _made(json.dumps(asked["check"]))
        result = _verdict(requirement, asked["text"])
    except (TypeError, ValueError) as exc:
        return {"wrong": str(exc)}
    except (RequirementError, MemoryError, RecursionError) as exc:
        return {"costly": str(exc) or "it takes too much memory"}
    made = {"name": requirement.name, "description": requirement.description}
    return {**made, "verdict": [result.passed, result.reason, result.score]}


@lru_cache(maxsize=64)
def _made(check: str) -> Requirement:
    given = json.loads(check)
    return parse_check(given) if isinstance(given, str) else json_schema(given)


def _verdict(requirement: Requirement, text: str) -> ValidationResult:
    assert requirement.validator is not None  # noqa: S101 (a ready-made check has one)
    candidate = Candidate(text, text, Generation(text), Context(), Instruction(text))
    verdict = requirement.validator(candidate)
    return verdict if isinstance(verdict, ValidationResult) else anyio.run(_awaited, verdict)


async def _awaited(verdict: Any) -> ValidationResult:
    result: ValidationResult = await verdict
    return result
