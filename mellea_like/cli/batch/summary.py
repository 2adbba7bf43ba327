"""What is said at the end of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.cli.batch.progress import duration, in_short, money

if TYPE_CHECKING:
    from mellea_like.batch.progress import Progress
    from mellea_like.core.prices import Price

__all__ = ["so_far", "summary"]


def summary(progress: Progress, price: Price | None, *, left_out: int = 0) -> str:
    """Say how a run went."""
    counts = [f"{progress.passed:,} passed"]
    if progress.failed:
        counts.append(f"{progress.failed:,} failed")
    if progress.errored:
        counts.append(f"{progress.errored:,} ended in an error")
    usage = progress.usage
    requests = "1 request" if usage.requests == 1 else f"{usage.requests:,} requests"
    parts = [requests, f"{in_short(usage.total_tokens)} tokens"]
    if price is not None:
        parts.append(f"cost {money(usage, price)}")
    said = [
        f"{_rows(f'{progress.done:,}')}: {', '.join(counts)}",
        ", ".join([*parts, duration(progress.elapsed)]),
    ]
    if progress.replayed:
        said.append(f"{progress.replayed:,} came from the journal")
    if left_out:
        said.append(f"{left_out:,} line{'' if left_out == 1 else 's'} left out")
    return "; ".join(said) + "."


def so_far(progress: Progress, *, journal: bool, goes_on: bool = True) -> str:
    """Say how far a run came that was stopped, and how to go on."""
    total = "" if progress.total is None else f" of {progress.total:,}"
    said = f" after {_rows(f'{progress.done:,}{total}')}."
    if not goes_on:
        return said
    if journal:
        return f"{said} The same command with --resume goes on."
    return f"{said} A run with --journal FILE could be resumed."


def _rows(count: str) -> str:
    return "1 row" if count == "1" else f"{count} rows"
