"""The live view on a terminal: a row for each iteration in flight."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mellea_like.cli.sample.progress import problems_of, rejected_early
from mellea_like.cli.terminal import one_line

if TYPE_CHECKING:
    from typing import Self, TextIO

    from mellea_like.cli.sample.progress import Progress, Row
    from mellea_like.core.slice import Slice

__all__ = ["LiveView", "make_console", "slices_table"]

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
UNKNOWN_WIDTH = 120
"""Columns of what is written to a file or a pipe."""


class SafeConsole(Console):
    """A console whose broken pipe ends the output and nothing else."""

    def on_broken_pipe(self) -> None:
        """Write nothing more."""
        self.quiet = True


def make_console(stream: TextIO) -> SafeConsole:
    """Make a console for a stream."""
    width = None if stream.isatty() else UNKNOWN_WIDTH
    return SafeConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)


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
        cost = (Text(f"{s.duration:.2f}"), Text(tokens_of(s)))
        table.add_row(
            Text(str(s.iteration)),
            *(() if narrow else middle),
            Text(s.outcome.value, style=STYLES[s.outcome.value]),
            *(() if narrow else cost),
            about,
        )
    return table


def tokens_of(slice_: Slice) -> str:
    """Write what an iteration cost."""
    usage = slice_.usage
    return f"{usage.input_tokens} + {usage.output_tokens}" + ("?" if usage.unknown else "")
