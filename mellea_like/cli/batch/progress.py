"""The progress of a batch: a line that is redrawn on a terminal, or occasional lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rich.text import Text

from mellea_like.batch.progress import Progress
from mellea_like.cli.console import live_view
from mellea_like.cli.standard_streams import warn
from mellea_like.core.display import one_line, plural
from mellea_like.report.numbers import amount, money, seconds

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console

    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price


def _cost(usage: Usage, price: Price) -> str:
    return f"cost {money(price.cost(usage), price.currency, at_least=bool(usage.unknown))}"


def parts_of(progress: Progress, price: Price | None, since: float = 0.0) -> list[Text]:
    """Return the parts of a line that shows a batch's progress, the most important first.

    ``since`` is the age of ``progress`` in seconds; the time left is reduced by it.
    """
    done = f"{progress.done:,}" + ("" if progress.total is None else f"/{progress.total:,}")
    parts = [Text(done, "bold")]
    if progress.waiting:
        parts.append(Text(f"{progress.waiting:,} waiting"))
    if progress.jobs:
        answered = sum(job.succeeded + job.failed for job in progress.jobs)
        asked = sum(job.total for job in progress.jobs)
        far = f": {answered:,}/{asked:,} answered" if asked else ""
        parts.append(Text(f"{plural(len(progress.jobs), 'job')}{far}"))
    if not progress.done:
        return parts
    if progress.errored:
        parts.append(Text(plural(progress.errored, "error"), "red"))
    told = not progress.waiting  # Passing rows finish first, so the times so far are misleading.
    if told and progress.seconds_left is not None and progress.done != progress.total:
        parts.append(Text(f"{seconds(round(max(0.0, progress.seconds_left - since)))} left"))
    # Their share would mislead: rows under way mostly need more draws than those that are done.
    parts.append(Text(f"{progress.passed:,} passed", "green"))
    if told and progress.done > progress.replayed and progress.rate > 0:
        rate = progress.rate
        parts.append(Text(f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min", "cyan"))
    if price is not None:
        parts.append(Text(_cost(progress.usage, price), "dim"))
    parts.append(Text(f"{amount(progress.usage.total_tokens)} tokens", "dim"))
    return parts


def status_line(parts: list[Text], columns: int) -> Text:
    """Join the parts into one line, and cut it off after ``columns``, the terminal's width."""
    line = Text("  ", no_wrap=True).join(parts)
    line.truncate(max(1, columns), overflow="ellipsis")
    return line


class BatchView:
    """Shows the progress of a batch on standard error while it runs."""

    def __init__(
        self,
        price: Price | None,
        *,
        total: int | None = None,
        quiet: bool = False,
        lines: bool = False,  # Even on a terminal.
        every: float = 5.0,
    ) -> None:
        self.progress = Progress(total=total)
        self._price = price
        self._every = every
        self._updated = self._told = time.monotonic()
        self._live = None if quiet or lines else live_view(self.render)
        self._lines = not quiet and self._live is None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Store the progress; without a live view, show it in a line every few seconds."""
        self.progress, self._updated = progress, time.monotonic()
        due = self._updated - self._told >= self._every
        if self._lines and due and progress.done != progress.total:
            self._told = self._updated
            warn("  ".join(part.plain for part in parts_of(progress, self._price)))

    def tell(self, line: str) -> None:
        """Write a message to standard error, above the live view if there is one."""
        if self._live is None:
            warn(one_line(line))
            return
        with contextlib.suppress(OSError):
            self._live.console.print(Text(one_line(line)), soft_wrap=True)

    def render(self, console: Console) -> Text:
        """Return the progress as one line, with room for the ^C that terminals print at Ctrl-C."""
        since = time.monotonic() - self._updated
        return status_line(parts_of(self.progress, self._price, since), console.width - len("^C"))


def summary(progress: Progress, price: Price | None, *, left_out: int = 0) -> str:
    """Return a summary of a run in one sentence; ``left_out`` counts the skipped input lines."""
    counts = [f"{progress.passed:,} passed"]
    if progress.failed:
        counts.append(f"{progress.failed:,} failed")
    if progress.errored:
        counts.append(f"{progress.errored:,} ended in an error")
    usage = progress.usage
    spent = [plural(usage.requests, "request"), f"{amount(usage.total_tokens)} tokens"]
    details = ((usage.cached_input_tokens, "cached"), (usage.reasoning_tokens, "reasoning"))
    if told := ", ".join(f"{amount(n)} {what}" for n, what in details if n):
        spent[-1] += f" ({told})"
    if usage.cache_hits:
        spent.insert(1, f"{usage.cache_hits:,} from the cache")
    if price is not None:
        spent.append(_cost(usage, price))
    clauses = [
        f"{plural(progress.done, 'row')}: {', '.join(counts)}",
        ", ".join([*spent, seconds(progress.elapsed)]),
    ]
    if progress.replayed:
        clauses.append(f"{progress.replayed:,} came from the journal")
    if left_out:
        clauses.append(f"{plural(left_out, 'line')} left out")
    return "; ".join(clauses) + "."


def so_far(progress: Progress, *, journal: bool, resumable: bool = True) -> str:
    """Describe how far a stopped run got and how to continue it, as the end of a sentence."""
    rows = plural(progress.done, "row")
    if progress.total is not None:
        rows = f"{progress.done:,} of {progress.total:,} rows"
    ended = f" after {rows}."
    if progress.waiting:
        ended = f" after {rows}; {progress.waiting:,} more waiting for another draw."
    if not resumable:
        return ended
    if journal:
        return f"{ended} Run the same command with --resume to continue."
    return f"{ended} With --journal FILE, a run can be resumed."
