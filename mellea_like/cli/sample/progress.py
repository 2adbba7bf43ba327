"""How far a call is: a row for each iteration in flight, and lines about what ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mellea_like.cli.errors import problems_of, rejected_early
from mellea_like.cli.terminal import one_line
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.hooks.plugins import Plugin, hook
from mellea_like.hooks.types import HookMode, HookType

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from rich.console import Console

    from mellea_like.core.slice import Slice
    from mellea_like.hooks.payloads import (
        GenerationErrorPayload,
        GenerationPreCallPayload,
        SamplingLoopEndPayload,
        ValidationPreCheckPayload,
    )

__all__ = ["LiveView", "Progress", "Row", "slices_table"]

RUNNING = frozenset({"generating", "checking", "judging", "retrying"})


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

REFRESHES_PER_SECOND = 8
NARROW = 60
"""Columns below which headings are short and less is shown."""


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
        self, loop: int, concurrency: int, tell: Callable[[str], None] | None = None
    ) -> None:
        self.loop = loop
        self.total = loop * concurrency
        self.rows = [Row(subsample) for subsample in range(concurrency)]
        self.ended = 0
        self.cancelled = 0
        self.tell = tell
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
        if self.tell is not None:
            early = " early" if rejected_early(slice_) else ""
            line = (
                f"iteration {slice_.iteration} (subsample {slice_.subsample}):"
                f" {slice_.outcome}{early} after {slice_.duration:.2f} s"
            )
            first = slice_.iteration
            if slice_.error is not None:
                first = self._errors.setdefault(why, first)
            if first != slice_.iteration:
                self.tell(f"{line}, as iteration {first}")
            else:
                self.tell(f"{line}: {why}" if why else line)

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


class LiveView:
    """Redraws the rows of a call until it ends, and then takes them away."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._began = time.monotonic()
        self._live = Live(
            get_renderable=self.render,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def render(self) -> Group:
        """Draw the rows of this moment."""
        now = time.monotonic()
        narrow = self._console.width < NARROW
        table = Table(box=None, padding=(0, 1, 0, 0), expand=True, show_edge=False)
        table.add_column("sub" if narrow else "subsample", justify="right", no_wrap=True)
        table.add_column("iter" if narrow else "iteration", justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True, min_width=10)
        table.add_column("s" if narrow else "seconds", justify="right", no_wrap=True, min_width=4)
        table.add_column("what failed", no_wrap=True, overflow="ellipsis", ratio=1)
        rows = self._progress.rows
        room = max(1, self._console.height - 4)
        # Where not all fit, those at work are worth the room.
        first = sorted(range(len(rows)), key=lambda i: not rows[i].running)[:room]
        for i in sorted(first):
            table.add_row(*self._cells(rows[i], now))
        hidden = (
            f", {len(rows) - len(first)} subsamples not shown" if len(first) < len(rows) else ""
        )
        seconds = f"{now - self._began:.1f} s"
        done = Text(
            f"{self._progress.ended} of {self._progress.total} done, {seconds}{hidden}", "dim"
        )
        done.truncate(max(1, self._console.width - len("^C")), overflow="ellipsis")
        return Group(table, done)

    def _cells(self, row: Row, now: float) -> tuple[Text, ...]:
        elapsed = row.elapsed(now)
        depth = "" if row.iteration is None else (row.iteration - 1) % self._progress.loop + 1
        return (
            Text(str(row.subsample)),
            Text(f"{depth}/{self._progress.loop}" if depth else "-"),
            Text(row.state, style=STYLES.get(row.state, "")),
            Text("-" if elapsed is None else f"{elapsed:.1f}"),
            Text(one_line(row.failed), style="dim" if row.running else ""),
        )


def slices_table(slices: tuple[Slice, ...], console: Console) -> Table:
    """Draw the record of a call."""
    narrow = console.width < NARROW
    table = Table(title="Slices, in the order they ended", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("id", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("sub", justify="right", no_wrap=True)
        table.add_column("depth", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    if not narrow:
        table.add_column("seconds", justify="right", no_wrap=True)
        table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("text, and what failed", overflow="fold", ratio=1)
    for s in slices:
        about = Text(one_line(s.text, 300))
        if rejected_early(s):
            about.append(" … (rejected early)", style="dim")
        for problem in problems_of(s):
            about.append(("\n" if about else "") + one_line(f"- {problem}", 300), style="yellow")
        middle = (Text(str(s.subsample)), Text(str(s.depth)))
        cost = (Text(f"{s.duration:.2f}"), Text(_tokens_of(s)))
        table.add_row(
            Text(str(s.iteration)),
            *(() if narrow else middle),
            Text(s.outcome.value, style=STYLES[s.outcome.value]),
            *(() if narrow else cost),
            about,
        )
    return table


def _tokens_of(slice_: Slice) -> str:
    """Write what an iteration cost."""
    usage = slice_.usage
    return f"{usage.input_tokens} + {usage.output_tokens}" + ("?" if usage.unknown else "")
