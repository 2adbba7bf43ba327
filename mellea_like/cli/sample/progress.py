"""How far a call is: a row for each iteration in flight, and lines about what ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.core.streaming import REJECTED
from mellea_like.hooks.registry import Plugin, hook
from mellea_like.hooks.types import HookMode, HookType

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.slice import Slice
    from mellea_like.hooks.payloads import (
        GenerationErrorPayload,
        GenerationPreCallPayload,
        SamplingLoopEndPayload,
        ValidationPreCheckPayload,
    )

__all__ = ["Progress", "Row", "problems_of", "rejected_early"]

RUNNING = frozenset({"generating", "checking", "judging", "retrying"})


@dataclass(slots=True)
class Row:
    """What one subsample is at, or where turns are pooled, what one of those in flight is at."""

    subsample: int
    iteration: int | None = None
    state: str = "waiting"
    started: float = 0.0
    seconds: float | None = None
    failed: str = ""

    @property
    def running(self) -> bool:
        """Whether an iteration is under way."""
        return self.state in RUNNING

    def elapsed(self, now: float) -> float | None:
        """Return how long the latest iteration has taken."""
        if self.iteration is None:
            return None
        return now - self.started if self.seconds is None else self.seconds


class Progress(Plugin):
    """Watches a call."""

    def __init__(
        self, loop: int, concurrency: int, say: Callable[[str], None] | None = None
    ) -> None:
        self.loop = loop
        self.total = loop * concurrency
        self.rows = [Row(subsample) for subsample in range(concurrency)]
        self.ended = 0
        self.cancelled = 0
        self.say = say
        self._pooled = False
        self._most_rows = concurrency
        self._row_of: dict[int, Row] = {}
        self._errors: dict[str, int] = {}

    def follow(self, *, pooled: bool, extra: int) -> None:
        """Expect what a schedule may do."""
        self._pooled = pooled
        self._most_rows = len(self.rows) + extra

    @hook(HookType.GENERATION_PRE_CALL, mode=HookMode.OBSERVE)
    async def _on_request(self, payload: GenerationPreCallPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        state = "judging" if payload.purpose == "judge" else "generating"
        self._move(payload.subsample, payload.iteration, state)

    @hook(HookType.GENERATION_ERROR, mode=HookMode.OBSERVE)
    async def _on_error(self, payload: GenerationErrorPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        # Where it is not tried again, its slice says so at once.
        row = self._row_of.get(payload.iteration or 0)
        if row is not None and row.iteration == payload.iteration:
            row.state = "retrying"
            row.failed = str(payload.error) or type(payload.error).__name__

    @hook(HookType.VALIDATION_PRE_CHECK, mode=HookMode.OBSERVE)
    async def _on_validation(self, payload: ValidationPreCheckPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        self._move(payload.subsample, payload.iteration, "checking")

    @hook(HookType.SAMPLING_LOOP_END, mode=HookMode.OBSERVE)
    async def _on_end(self, payload: SamplingLoopEndPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        if payload.stop_reason is StopReason.CANCELLED:
            self.cancelled = sum(s.outcome is Outcome.CANCELLED for s in payload.slices)

    def on_slice(self, slice_: Slice) -> None:
        """Take note of an iteration that ended."""
        self.ended += 1
        row = self._row_of.pop(slice_.iteration, None)
        if row is None:
            row = self._choose(slice_.subsample)
        why = "; ".join(problems_of(slice_))
        if slice_.outcome is not Outcome.CANCELLED:
            row.failed = why
        # Slices are delivered beside the call: the subsample may be at its next iteration by now.
        if row.iteration is None or row.iteration == slice_.iteration:
            row.iteration, row.subsample = slice_.iteration, slice_.subsample
            row.state = slice_.outcome.value
            row.seconds = slice_.duration
        if self.say is not None:
            early = " early" if rejected_early(slice_) else ""
            line = (
                f"iteration {slice_.iteration} (subsample {slice_.subsample}):"
                f" {slice_.outcome}{early} after {slice_.duration:.2f} s"
            )
            first = slice_.iteration
            if slice_.error is not None:
                first = self._errors.setdefault(why, first)
            if first != slice_.iteration:
                self.say(f"{line}, as iteration {first}")
            else:
                self.say(f"{line}: {why}" if why else line)

    def _move(self, subsample: int | None, iteration: int | None, state: str) -> None:
        if subsample is None or iteration is None:
            return
        row = self._row_of.get(iteration)
        if row is None:
            row = self._row_of[iteration] = self._choose(subsample)
            row.iteration, row.subsample = iteration, subsample
            row.started, row.seconds = time.monotonic(), None
        if row.iteration == iteration:
            row.state = state

    def _choose(self, subsample: int) -> Row:
        """Choose the row for an iteration: its subsample's, unless that has another in flight."""
        own = self.rows[subsample]
        if not self._pooled or not own.running:
            return own
        free = next((row for row in self.rows if not row.running), None)
        if free is not None:
            return free
        if len(self.rows) == self._most_rows:
            return own  # What it shows is over: its slice is on the way.
        self.rows.append(Row(subsample))
        return self.rows[-1]


def rejected_early(slice_: Slice) -> bool:
    """Tell whether a reply was rejected before its end."""
    return slice_.generation is not None and slice_.generation.finish_reason == REJECTED


def problems_of(slice_: Slice) -> list[str]:
    """Say what an iteration lacked, with the checks as the user wrote them."""
    problems = [slice_.reason] if slice_.reason else []
    problems += [
        f"{requirement.name}: {verdict.reason}" if verdict.reason else requirement.name
        for requirement, verdict in slice_.failures
    ]
    if slice_.error is not None:
        problems.append(str(slice_.error) or type(slice_.error).__name__)
    return problems
