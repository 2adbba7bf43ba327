"""How far a batch is: a line that is drawn again on a terminal, or a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.live import Live
from rich.text import Text

from mellea_like.batch.progress import Progress
from mellea_like.cli.live import make_console
from mellea_like.cli.terminal import is_terminal, one_line, warn
from mellea_like.core.prices import with_currency

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console

    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price

__all__ = ["BatchView", "Part", "duration", "in_short", "money", "parts_of", "status_line"]

BAR = 24
"""Columns of the bar at most, and those below which there is none."""
LEAST_BAR = 8

REFRESHES_PER_SECOND = 4

MINUTE = 60
HOUR = 3600


class Part(NamedTuple):
    """A piece of the line."""

    text: str
    rank: int
    style: str = ""


def duration(seconds: float) -> str:
    """Write a time in short."""
    whole = round(seconds)
    hours, rest = divmod(whole, HOUR)
    minutes, left = divmod(rest, MINUTE)
    if hours >= 48:  # noqa: PLR2004 (two days)
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def in_short(number: int) -> str:
    """Write a large number in short."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 0.99995 * size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def money(usage: Usage, price: Price) -> str:
    """Write what tokens cost."""
    amount = (usage.input_tokens * price.input + usage.output_tokens * price.output) / 1e6
    return ("≥" if usage.unknown else "") + with_currency(f"{amount:.6f}", price.currency)


def parts_of(progress: Progress, price: Price | None, since: float = 0.0) -> list[Part]:
    """Say how far a batch is."""
    done = f"{progress.done:,}" + ("" if progress.total is None else f"/{progress.total:,}")
    parts = [Part(done, 0, "bold")]
    if not progress.done:
        return parts
    sampled = progress.done - progress.replayed
    if sampled and progress.rate > 0:
        rate = progress.rate
        parts.append(Part(f"{rate:.1f}/s" if rate >= 1 else f"{rate * MINUTE:.1f}/min", 3, "cyan"))
    if progress.pass_rate is not None:
        parts.append(Part(f"{_percent(progress.pass_rate)} passed", 2, "green"))
    if progress.errored:
        errors = "1 error" if progress.errored == 1 else f"{progress.errored:,} errors"
        parts.append(Part(errors, 1, "red"))
    usage = progress.usage
    parts.append(Part(f"{in_short(usage.total_tokens)} tokens", 5, "dim"))
    if price is not None:
        parts.append(Part(f"cost {money(usage, price)}", 4, "dim"))
    if progress.seconds_left is not None and progress.done != progress.total:
        parts.append(Part(f"{duration(max(0.0, progress.seconds_left - since))} left", 1))
    return parts


def _percent(share: float) -> str:
    percent = round(100 * share)
    if percent in {0, 100} and 0 < share < 1:  # Not all, and not none.
        return ">99%" if percent else "<1%"
    return f"{percent}%"


def status_line(parts: list[Part], columns: int, share: float | None = None) -> Text:
    """Fit the pieces into a line of a terminal."""
    kept = list(parts)
    while len(kept) > 1 and _width(kept) > columns:
        last = max(range(len(kept)), key=lambda i: (kept[i].rank, i))
        del kept[last]
    pieces: list[Text | str] = [Text("  ").join(Text(part.text, part.style) for part in kept)]
    room = min(BAR, columns - _width(kept) - 2)
    if share is not None and room >= LEAST_BAR:
        full = round(share * room)
        pieces = [Text("━" * full, "green"), Text("─" * (room - full), "dim"), "  ", *pieces]
    line = Text.assemble(*pieces)
    line.truncate(max(1, columns), overflow="ellipsis")
    return line


def _width(parts: list[Part]) -> int:
    return sum(cell_len(part.text) for part in parts) + 2 * (len(parts) - 1)


class BatchView:
    """Shows how far a batch is while it runs, on standard error."""

    def __init__(
        self,
        price: Price | None,
        *,
        total: int | None = None,
        quiet: bool = False,
        lines: bool = False,
        every: float = 5.0,
    ) -> None:
        self.progress = Progress(total=total)
        self._price = price
        self._quiet = quiet
        self._every = every
        self._updated = self._said = time.monotonic()
        self._console: Console | None = None
        self._live: Live | None = None
        if not quiet and not lines and is_terminal(sys.stderr):
            console = make_console(sys.stderr)
            if not console.is_dumb_terminal:
                self._console = console

    def __enter__(self) -> Self:
        if self._console is not None:
            self._live = Live(
                get_renderable=self.render,
                console=self._console,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, progress: Progress) -> None:
        """Take the numbers of this moment."""
        self.progress, self._updated = progress, time.monotonic()
        if self._quiet or self._console is not None:
            return
        if self._updated - self._said >= self._every and progress.done != progress.total:
            self._said = self._updated
            warn("  ".join(part.text for part in parts_of(progress, self._price)))

    def say(self, line: str) -> None:
        """Write a line, above the view where there is one."""
        if self._live is None:
            warn(one_line(line))
            return
        with contextlib.suppress(OSError):
            self._live.console.print(Text(one_line(line)), soft_wrap=True)

    def render(self) -> Text:
        """Draw the line of this moment."""
        assert self._console is not None  # noqa: S101 (there is a terminal)
        progress, since = self.progress, time.monotonic() - self._updated
        share = None if not progress.total else min(1.0, progress.done / progress.total)
        columns = self._console.width - len("^C")
        return status_line(parts_of(progress, self._price, since), columns, share)
