"""Small things that tests of schedules are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine_kit import a_slice

from mellea_like import Instruction, Outcome, Requirement, Slice
from mellea_like.schedules import CallFacts, CallProgress

if TYPE_CHECKING:
    from collections.abc import Sequence


def facts(
    *,
    concurrency_budget: int = 4,
    loop_budget: int = 8,
    requirements: Sequence[Requirement] = (),
    model: str | None = "model",
) -> CallFacts:
    """What a schedule knows of a call."""
    return CallFacts(Instruction("do it"), requirements, concurrency_budget, loop_budget, model)


def progress(now: float = 0.0, running: Sequence[float] = (), **fields: int) -> CallProgress:
    """How far a call has come."""
    counts = {"opened": len(running), "started": len(running), "failed": 0, "broken": 0}
    return CallProgress(now, running, **{**counts, "turns": 32, **fields})


def took(seconds: float, outcome: Outcome = Outcome.FAILED, **fields: Any) -> Slice:
    """A slice that took so long."""
    return a_slice(1, outcome, started_at=1.0, ended_at=1.0 + seconds, **fields)
