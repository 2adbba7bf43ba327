"""The progress of a batch, and reports of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import anyio

from mellea_like.core.generation import Usage
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.backends import JobState
    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.journal.reader import StoredItem

__all__ = ["Progress"]

EVERY_SECONDS = 0.5
"""The fewest seconds between two calls of ``on_progress``. The last call may come sooner."""

OnProgress: TypeAlias = "Callable[[Progress], object]"


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of a batch's progress.

    Args:
        total: the number of items, if the source has a length; else None.
        taken: the number of items taken from the source.
        done: the number of items that have a result.
        handed_on: the number of results that the consumer has received.
        passed: the number of items that passed.
        failed: the number of items that failed: no draw passed, or fewer than the selection needs.
        errored: the number of items whose call raised.
        replayed: the number of items that came from the journal.
        in_flight: the number of items that are being sampled.
        waiting: the number of items that wait for their next draw, with ``breadth_first=True``.
        usage: the cost of the items done in this run, and of the draws of waiting items.
        replayed_usage: the cost, in earlier runs, of the items that came from the journal.
        elapsed: seconds since the run began.
        jobs: the jobs under way at a provider's batch API, in their last known state; see
            `BatchJobs`.
    """

    total: int | None = None
    taken: int = 0
    done: int = 0
    handed_on: int = 0
    passed: int = 0
    failed: int = 0
    errored: int = 0
    replayed: int = 0
    in_flight: int = 0
    usage: Usage = Usage()
    replayed_usage: Usage = Usage()
    elapsed: float = 0.0
    waiting: int = 0
    jobs: Sequence[JobState] = ()

    @property
    def rate(self) -> float:
        """The items finished per second in this run, not counting items from the journal."""
        return (self.done - self.replayed) / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def pass_rate(self) -> float | None:
        """The share of finished items that passed; None if no item is finished yet.

        Items that pass finish sooner than items that keep failing. So while many items are in
        flight or waiting, compared with those that are done, this is higher than it will be.
        """
        return self.passed / self.done if self.done else None

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until all items are done, at the `rate` so far; None if unknown.

        Quick items finish first. So while many items are in flight, compared with those that are
        done, the estimate is too low.
        """
        if self.total is None or self.rate <= 0:
            return None
        return max(0, self.total - self.done) / self.rate


class Tally:
    """Counts the items and the cost of a running batch, and reports the progress to the user."""

    def __init__(self, total: int | None, on_progress: OnProgress | None) -> None:
        self.taken = self.handed_on = self.in_flight = self.waiting = 0
        self.usage = Usage()
        self.jobs: Sequence[JobState] = ()
        self._total = total
        self._statuses: Counter[str] = Counter()
        self._replayed = 0
        self._replayed_usage = Usage()
        self._began: float | None = None
        self._ended: float | None = None
        self._on_progress = on_progress
        self._news = anyio.Event()

    def begin(self) -> None:
        """Note the time at which the run begins."""
        self._began = anyio.current_time()

    def end(self) -> None:
        """Note the time at which the run ends."""
        self._ended = anyio.current_time()

    def count(self, outcome: ItemResult[object], before: Usage) -> None:
        """Count a new result; ``before`` is the part of its cost that has been counted already."""
        self._statuses[outcome.status] += 1
        self.usage += outcome.usage - before
        self.changed()

    def count_replayed(self, stored: StoredItem) -> None:
        """Count a result from the journal."""
        self._statuses[stored.status] += 1
        self._replayed += 1
        self._replayed_usage += stored.usage
        self.changed()

    def progress(self) -> Progress:
        """Return the progress at this moment."""
        elapsed = 0.0
        if self._began is not None:
            now = anyio.current_time() if self._ended is None else self._ended
            elapsed = now - self._began
        return Progress(
            total=self._total,
            taken=self.taken,
            done=self._statuses.total(),
            handed_on=self.handed_on,
            passed=self._statuses["passed"],
            failed=self._statuses["failed"],
            errored=self._statuses["errored"],
            replayed=self._replayed,
            in_flight=self.in_flight,
            waiting=self.waiting,
            usage=self.usage,
            replayed_usage=self._replayed_usage,
            elapsed=elapsed,
            jobs=self.jobs,
        )

    def changed(self) -> None:
        """Record that the progress has changed, so that `report` reports it."""
        self._news.set()

    async def report(self) -> None:
        """Report the progress at the start and after changes, until cancelled or closed."""
        while self._on_progress is not None:
            self._tell()
            await anyio.sleep(EVERY_SECONDS)
            await self._news.wait()

    def close(self) -> None:
        """Report the progress one last time, and never again."""
        self._tell()
        self._on_progress = None

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        self._news = anyio.Event()
        try:
            self._on_progress(self.progress())
        except Exception as exc:  # noqa: BLE001 (it ends nothing)
            self._on_progress = None
            warn("on_progress failed, and won't be called again: %s: %s", type(exc).__name__, exc)
