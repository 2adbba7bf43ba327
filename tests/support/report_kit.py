"""Records for reports: of real calls of a simulated model, in virtual time."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from engine_kit import a_slice

from mellea_like import (
    Generation,
    Message,
    Outcome,
    RepairTemplateStrategy,
    Requirement,
    SamplingResult,
    ValidationResult,
)
from mellea_like.backends import SimulatedBackend
from mellea_like.backends.simulated import passes
from mellea_like.core import Usage
from mellea_like.core.decision import Answer, Decision
from mellea_like.core.result import StopReason
from mellea_like.core.serialization import decision_to_dict
from mellea_like.errors import BackendError, BackendUnavailable
from mellea_like.testing import run_virtual

BEGUN = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)
MODEL = "simulated-small"
PRICES = {MODEL: [0.4, 1.6]}


def contains(word: str) -> Requirement:
    def check(candidate: Any) -> tuple[bool, str]:
        there = word in candidate.text.split()
        return there, "" if there else f"the word {word!r} is missing"

    return Requirement(f"the reply says {word!r}", check, name=f"says {word}", inline=True)


CHECKS = [passes, contains("alpha"), contains("beta")]


def calls(number: int, seed: int = 7, **more: Any) -> list[dict[str, Any]]:
    """Sample so many times, a few at a time; gives an item for each."""
    chance = {"pass_rate": 0.7, "error_rate": 0.08, "straggler_rate": 0.05, **more}
    backend = SimulatedBackend(seed=seed, median=1.2, output_tokens=14, model=MODEL, **chance)
    strategy = RepairTemplateStrategy(backend, loop_budget=3, concurrency_budget=3, retry=None)
    items: list[dict[str, Any]] = []

    async def one(position: int, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            begun = anyio.current_time()
            ask = Message("user", f"Write a line about harbour number {position}.")
            trace, error = None, None
            try:
                result = await strategy.sample(ask, CHECKS)
            except BackendError as exc:
                error = {"type": type(exc).__name__, "message": str(exc)}
            else:
                trace = result.to_dict()
            items.append(item(position, trace, error, begun, anyio.current_time() - begun))

    async def all_of_them() -> None:
        limiter = anyio.CapacityLimiter(8)
        async with anyio.create_task_group() as tasks:
            for position in range(number):
                tasks.start_soon(one, position, limiter)

    run_virtual(all_of_them)
    return items


def item(
    position: int,
    trace: dict[str, Any] | None,
    error: dict[str, str] | None = None,
    begun: float = 0.0,
    elapsed: float = 1.0,
    **more: Any,
) -> dict[str, Any]:
    """An item's record, as a journal's reader gives it."""
    status = "errored" if trace is None else "passed" if trace["success"] else "failed"
    nothing = {"requests": 0, "input_tokens": 0, "output_tokens": 0, "unknown": 0}
    return {
        "id": position,
        "label": f"harbour number {position}",
        "data": None,
        "status": status,
        "attempts": 1,
        "error": error,
        "started": (BEGUN + timedelta(seconds=begun)).isoformat(),
        "elapsed": elapsed if trace is None else trace["elapsed"],
        "usage": nothing if trace is None else trace["usage"],
        "trace": trace,
        **more,
    }


def run_of(items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A run's record."""
    counts = {
        status: sum(i["status"] == status for i in items)
        for status in ("passed", "failed", "errored", "unfinished")
    }
    return {
        "format": "mellea_like.run",
        "version": 1,
        "identity": {
            "strategy": "RepairTemplateStrategy",
            "model": MODEL,
            "requirements": [check.description for check in CHECKS],
            "options": {"temperature": 0.7, "max_tokens": 64},
            "prompt": "Write a line about {harbour}.",
            "input": "harbours.jsonl",
        },
        "started": BEGUN.isoformat(),
        "ended": (BEGUN + timedelta(seconds=0.3 * len(items))).isoformat(),
        "counts": counts,
        "prices": PRICES,
        **more,
    }


def many(items: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """As many items, drawn from a few."""
    chance = random.Random(1)
    return [
        {**chance.choice(items), "id": n, "label": f"harbour number {n}"} for n in range(number)
    ]


WORD = Requirement("it says a word", lambda candidate: True, name="word", inline=True)


def trace_of(*iterations: tuple[str, int], best: int | None = 0) -> dict[str, Any]:
    """A call's record, made up: of each iteration its outcome and its tokens."""
    slices = []
    for number, (outcome, tokens) in enumerate(iterations, 1):
        judged, passed = outcome in {"passed", "failed"}, outcome == "passed"
        verdict = ValidationResult(passed, "" if passed else "it is missing")
        made = a_slice(
            number,
            Outcome(outcome),
            verdicts=[(WORD, verdict)] if judged else (),
            error=BackendUnavailable("overloaded") if outcome == "errored" else None,
            action=Message("user", "Say a word."),
            messages=(Message("user", "Say a word."),),
            generation=Generation(f"reply {number}", None, Usage(1, 1, tokens), "m", "stop"),
            started_at=number - 1.0,
            ended_at=float(number),
            usage=Usage(1, 1, tokens),
        )
        slices.append(made if judged else replace(made, generation=None))
    won = best is not None and slices[best].passed
    reason = StopReason.PASSED if won else StopReason.EXHAUSTED
    elapsed = float(len(slices))
    return SamplingResult(tuple(slices), best, reason, "0123456789abcdef", BEGUN, elapsed).to_dict()


def decision(*won: int, kind: str = "best-of", **more: Any) -> dict[str, Any]:
    """What a selection decided, as a call's record has it."""
    return decision_to_dict(Decision(kind, won, more.pop("reason", "they passed"), **more))


def usage(tokens: int, requests: int = 1) -> dict[str, int]:
    return {"requests": requests, "input_tokens": requests, "output_tokens": tokens, "unknown": 0}


NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><style>*{display:none}</style>",
    "]]></svg></pre></details></script><!--",
    "'; DROP TABLE items; --{{ 7 * 7 }}{% raw %}",
    "a\r\nb\rc\x00d\x1b[2Je\x7f\x85",
    "\u202edesrever\u202c \u2066isolated\u2069 \u200f\u061c",
    "\ud83d lone \udc00 halves",
    "w" * 5000,
    "שלום עולם، مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301",
    "javascript:alert(1)",
    "https://example.org/picture.png",
    "\n\n  leading and trailing \n\n",
]
"""What a model may say, and no page may do."""


def nasty_trace(text: str) -> dict[str, Any]:
    """A call's record with a text in every place that has one."""
    trace = trace_of(("failed", 3), ("errored", 2), ("passed", 5), ("cancelled", 1), best=2)
    for slice_ in trace["slices"]:
        slice_["action"] = {"type": text, "text": text}
        slice_["model"] = slice_["finish_reason"] = text
        slice_["reason"] = text
        if slice_["text"] is not None:
            slice_["text"] = text
            slice_["value"] = {text: [text]}
        if slice_["error"] is not None:
            slice_["error"] = {"type": text, "message": text}
        for verdict in slice_["validations"]:
            verdict |= {"name": text, "description": text, "reason": text, "score": 0.5}
    some = text[:100]  # An item of a run has room for so much.
    call = {"id": some, "type": "function", "function": {"name": some, "arguments": some}}
    parts = [
        {"type": "text", "text": some},
        {"type": "image_url", "image_url": {"url": some}},
        {"type": "file", "file": {"file_id": some, "filename": some}},
        {"type": "input_audio", "input_audio": {"data": "", "format": some}},
        {"type": some},
    ]
    trace["prompts"] = [
        [],
        [{"role": "user", "content": text}, {"role": text, "content": parts, "tool_calls": [call]}],
    ]
    trace["slices"][2] |= {"tool_calls": [call], "refusal": some, "reasoning": some}
    trace["slices"][0]["prompt"] = 0
    trace["decision"] = decision(
        3, kind=text, reason=text, answers=(Answer(text, 2.0, (3,)),), share=1.0, errors=(text,)
    )
    return {**trace, "stop_detail": text, "sampling_id": text}


def nasty_run(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's record with a text in every place that has one."""
    trace = nasty_trace(text)
    lost = {**trace, "success": False, "best_index": 0, "stop_reason": text}
    error = {"type": text, "message": text}
    items = [
        item(0, trace, label=text),
        item(1, lost, label=text),
        item(2, None, error, label=text),
        item(3, None, label=text, status="unfinished"),
    ]
    identity = {text: text, "model": text, "strategy": {text: [text]}, "checks": [text, {}]}
    return run_of(items, identity=identity, prices={text: [1.0, 2.0]}), items
