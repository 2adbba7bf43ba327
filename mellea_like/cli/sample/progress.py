"""The progress of a call: a table of draws in flight, or a line for each draw that has ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mellea_like.cli.errors import problems_of, rejected_early
from mellea_like.core.display import attempt_name, one_line, plural
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.hooks.plugins import Plugin, hook
from mellea_like.hooks.types import HookMode, HookType

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from mellea_like.core.slice import Slice
    from mellea_like.hooks import (
        GenerationErrorPayload,
        GenerationPreCallPayload,
        SamplingLoopEndPayload,
        ValidationPreCheckPayload,
    )

STYLES = {
    "waiting": "dim",
    "generating": "cyan",
    "checking": "cyan",
    "judging": "magenta",
    "retrying": "yellow",
    "passed": "bold green",
    "failed": "yellow",
    "errored": "red",
    "cancelled": "dim",
}

NARROW = 60
"""The terminal width, in columns, below which tables show less."""


@dataclass(slots=True)
class Row:
    """A row of the progress table: the latest draw of a lane, if there was one."""

    iteration: int | None = None
    state: str = "waiting"
    started: float = 0.0
    seconds: float | None = None
    failed: str = ""

    @property
    def running(self) -> bool:
        """Whether the draw is under way."""
        return self.iteration is not None and self.seconds is None


class Progress(Plugin):
    """Records the states of a call's draws, for display."""

    def __init__(
        self, attempts: int, lanes: int, tell: Callable[[str], None] | None = None
    ) -> None:
        self.attempts = attempts
        self.lanes = lanes
        self.began = time.monotonic()
        self.ended = 0
        self.cancelled = 0
        self.tell = tell
        self.rows = [Row() for _ in range(lanes)]
        self._errors: dict[str, Slice] = {}

    @hook(HookType.GENERATION_PRE_CALL, mode=HookMode.OBSERVE)
    async def _on_request(self, payload: GenerationPreCallPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        state = "judging" if payload.purpose == "judge" else "generating"
        self._move(payload.subsample, payload.iteration, state)

    @hook(HookType.GENERATION_ERROR, mode=HookMode.OBSERVE)
    async def _on_error(self, payload: GenerationErrorPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        # If there is no retry, the draw's record follows immediately.
        self._move(payload.subsample, payload.iteration, "retrying", str(payload.error))

    @hook(HookType.VALIDATION_PRE_CHECK, mode=HookMode.OBSERVE)
    async def _on_validation(self, payload: ValidationPreCheckPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        self._move(payload.subsample, payload.iteration, "checking")

    @hook(HookType.SAMPLING_LOOP_END, mode=HookMode.OBSERVE)
    async def _on_end(self, payload: SamplingLoopEndPayload) -> None:  # pyright: ignore[reportUnusedFunction]
        if payload.stop_reason is StopReason.CANCELLED:
            self.cancelled = sum(s.outcome is Outcome.CANCELLED for s in payload.slices)

    def on_slice(self, slice_: Slice) -> None:
        """Record a draw that ended. If ``tell`` is set, call it with a line about the draw."""
        self.ended += 1
        why = "; ".join(problems_of(slice_))
        row = self.rows[slice_.subsample]
        # Records are delivered beside the call, so the lane may already be at its next attempt.
        if row.iteration in {None, slice_.iteration}:
            row.iteration = slice_.iteration
            row.state, row.seconds = slice_.outcome.value, slice_.duration
        if slice_.outcome is not Outcome.CANCELLED:
            row.failed = why
        if self.tell is not None:
            early = " early" if rejected_early(slice_) else ""
            line = f"{self.called(slice_)}: {slice_.outcome}{early} after {slice_.duration:.2f} s"
            first = slice_
            if slice_.error is not None:
                first = self._errors.setdefault(why, first)
            if first is not slice_:
                line = f"{line}, like {self.called(first)}"
            elif why:
                line = f"{line}: {why}"
            self.tell(one_line(line))

    def called(self, slice_: Slice) -> str:
        """Return a draw's name, as in "attempt 2 of 8, lane 3"."""
        lane = slice_.lane if self.lanes > 1 else None
        return attempt_name(slice_.attempt, lane, self.attempts)

    def _move(
        self, subsample: int | None, iteration: int | None, state: str, failed: str = ""
    ) -> None:
        """Show a draw's state in the row of its lane, in place of the lane's draw before it."""
        if subsample is None or iteration is None:
            return
        row = self.rows[subsample]
        if row.iteration != iteration:
            row = Row(iteration, started=time.monotonic(), failed=row.failed)
            self.rows[subsample] = row
        row.state, row.failed = state, failed or row.failed


def render(progress: Progress, console: Console) -> Group:
    """Return a table of the current rows, followed by a line of totals."""
    now = time.monotonic()
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, show_edge=False)
    table.show_header = console.width >= NARROW
    table.add_column("lane", justify="right", no_wrap=True)
    table.add_column("attempt", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    table.add_column("seconds", justify="right", no_wrap=True, min_width=4)
    table.add_column("what failed", no_wrap=True, overflow="ellipsis", ratio=1)
    rows = progress.rows
    room = max(1, console.height - 4)
    # If not all rows fit, the running draws come first.
    shown = sorted(sorted(range(len(rows)), key=lambda i: not rows[i].running)[:room])
    for lane, row in ((i + 1, rows[i]) for i in shown):
        attempt, took = "-", "-"
        if row.iteration is not None:
            attempt = f"{(row.iteration - 1) % progress.attempts + 1} of {progress.attempts}"
            took = f"{now - row.started if row.seconds is None else row.seconds:.1f}"
        table.add_row(
            str(lane),
            attempt,
            Text(row.state, style=STYLES[row.state]),
            took,
            Text(one_line(row.failed), style="dim" if row.running else ""),
        )
    total = progress.attempts * progress.lanes
    hidden = f", {len(rows) - room} not shown" if len(rows) > room else ""
    done = f"{progress.ended} of at most {plural(total, 'draw')}"
    done += f", {now - progress.began:.1f} s{hidden}"
    foot = Text(done, "dim")
    foot.truncate(max(1, console.width - len("^C")), overflow="ellipsis")
    return Group(table, foot)
