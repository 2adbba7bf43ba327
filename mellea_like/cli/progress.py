"""How far a call is: one row a subsample, kept up to date by hooks, and lines about what ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.hooks.registry import Plugin, hook
from mellea_like.hooks.types import HookMode, HookType

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.slice import Slice
    from mellea_like.hooks.payloads import (
        GenerationPreCallPayload,
        SamplingLoopEndPayload,
        ValidationPreCheckPayload,
    )

__all__ = ["Progress", "Row", "problems_of"]

RUNNING = frozenset({"generating", "checking", "judging"})


@dataclass(slots=True)
class Row:
    """Where one subsample is.

    Args:
        subsample: its index, 0-based.
        iteration: the id of its latest iteration; None before the first.
        state: what it is doing, or how its latest iteration ended.
        started: when the latest iteration started, on `time.monotonic`'s clock.
        seconds: how long the latest iteration took; None while it runs.
        failed: what its latest finished iteration lacked; empty for nothing.
    """

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
        """Return how long the latest iteration has taken.

        Args:
            now: the time on `time.monotonic`'s clock.

        Returns:
            Seconds, or None before the first iteration.
        """
        if self.iteration is None:
            return None
        return now - self.started if self.seconds is None else self.seconds


class Progress(Plugin):
    """Watches a call.

    Args:
        loop: iterations of each subsample.
        concurrency: number of subsamples.
        say: called with a line about each slice that ended; None for silence.

    Attributes:
        rows: one for each subsample.
        ended: how many iterations have ended.
        cancelled: iterations that were cancelled with the call, once it is over.
    """

    def __init__(
        self, loop: int, concurrency: int, say: Callable[[str], None] | None = None
    ) -> None:
        self.loop = loop
        self.rows = [Row(subsample) for subsample in range(concurrency)]
        self.ended = 0
        self.cancelled = 0
        self.say = say
        self._errors: dict[str, int] = {}

    @hook(HookType.GENERATION_PRE_CALL, mode=HookMode.OBSERVE)
    async def _on_request(self, payload: GenerationPreCallPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        state = "judging" if payload.purpose == "judge" else "generating"
        self._move(payload.subsample, payload.iteration, state)

    @hook(HookType.VALIDATION_PRE_CHECK, mode=HookMode.OBSERVE)
    async def _on_validation(self, payload: ValidationPreCheckPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        self._move(payload.subsample, payload.iteration, "checking")

    @hook(HookType.SAMPLING_LOOP_END, mode=HookMode.OBSERVE)
    async def _on_end(self, payload: SamplingLoopEndPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        if payload.stop_reason is StopReason.CANCELLED:
            self.cancelled = sum(s.outcome is Outcome.CANCELLED for s in payload.slices)

    def on_slice(self, slice_: Slice) -> None:
        """Take note of an iteration that ended.

        Args:
            slice_: its record.
        """
        self.ended += 1
        row = self.rows[slice_.chain]
        why = "; ".join(problems_of(slice_))
        if slice_.outcome is not Outcome.CANCELLED:
            row.failed = why
        # Slices are delivered beside the call: the subsample may be at its next iteration by now.
        if row.iteration is None or row.iteration == slice_.iteration:
            row.iteration = slice_.iteration
            row.state = slice_.outcome.value
            row.seconds = slice_.duration
        if self.say is not None:
            line = (
                f"iteration {slice_.iteration} (subsample {slice_.subsample}):"
                f" {slice_.outcome} after {slice_.duration:.2f} s"
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
        row = self.rows[subsample]
        if row.iteration != iteration:
            row.iteration, row.started, row.seconds = iteration, time.monotonic(), None
        row.state = state


def problems_of(slice_: Slice) -> list[str]:
    """Say what an iteration lacked, with the checks as the user wrote them.

    Args:
        slice_: its record.

    Returns:
        A line for each problem, and one for its error.
    """
    problems = [f"the reply does not parse: {slice_.reason}"] if slice_.reason else []
    problems += [
        f"{requirement.name}: {verdict.reason}" if verdict.reason else requirement.name
        for requirement, verdict in slice_.failures
    ]
    if slice_.error is not None:
        problems.append(str(slice_.error) or type(slice_.error).__name__)
    return problems
