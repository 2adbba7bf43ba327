"""One task writes a journal, many rows at a time, while those who wait for a commit share it.

A commit waits for the disk, a millisecond or more. What is queued meanwhile is the next commit: so
the more there is to write, the less each row costs (group commit).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio
from anyio import to_thread

from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mellea_like.batch.journal.records import Row

__all__ = ["Commit", "JournalStatistics", "JournalWriter"]

Commit: TypeAlias = "Callable[[Mapping[str, Sequence[Row]]], None]"

LINGER = 0.05
"""How long rows that nobody waits for are gathered before they are written, in seconds."""

MANY = 1000
"""With so many rows queued there is nothing to wait for."""


class JournalStatistics(NamedTuple):
    """A look at what is written to a journal.

    Attributes:
        rows: rows committed.
        commits: commits, each of one row or more.
        queued: rows that wait to be written.
        most_queued: the most that ever waited.
        largest_commit: the most rows in one commit.
        slowest_commit: how long the slowest commit took, in seconds.
    """

    rows: int
    commits: int
    queued: int
    most_queued: int
    largest_commit: int
    slowest_commit: float


class _Batch:
    """Rows that are committed together."""

    __slots__ = ("done", "due", "error", "rows", "size")

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.size = 0
        self.done = anyio.Event()
        self.due = anyio.Event()
        self.error: JournalError | None = None


class JournalWriter:
    """The queue of rows, and the task that commits them.

    Args:
        linger: how long rows that nobody waits for are gathered, in seconds.
    """

    def __init__(self, linger: float = LINGER) -> None:
        self._linger = linger
        self._batch = _Batch()
        self._work = anyio.Event()
        self._closing = False
        self._failed: JournalError | None = None
        self._rows = self._commits = self._most_queued = self._largest = 0
        self._slowest = 0.0

    def put(self, statement: str, rows: Iterable[Row]) -> None:
        """Queue rows; never waits.

        Args:
            statement: what inserts them.
            rows: the rows.

        Raises:
            JournalError: the writer has failed before, or is closed.
        """
        self.check()
        batch = self._batch
        queued = batch.rows.setdefault(statement, [])
        before = len(queued)
        queued.extend(rows)
        batch.size += len(queued) - before
        self._most_queued = max(self._most_queued, batch.size)
        self._work.set()
        if batch.size >= MANY:
            batch.due.set()

    async def committed(self) -> None:
        """Wait until what is queued by now is on the disk.

        Raises:
            JournalError: it could not be written.
        """
        batch = self._batch
        batch.due.set()
        await batch.done.wait()
        if batch.error is not None:
            raise JournalError(str(batch.error)) from batch.error

    def check(self) -> None:
        """Make sure that rows can be written.

        Raises:
            JournalError: the writer has failed before, or is closed.
        """
        if self._failed is not None:
            raise JournalError(str(self._failed)) from self._failed
        if self._closing:
            msg = "this journal is closed: use it inside its `async with`"
            raise JournalError(msg)

    async def run(self, commit: Commit, limiter: anyio.CapacityLimiter) -> None:
        """Commit what is queued until the writer is closed and all is written, or it fails.

        Whoever runs it shields it from cancellation.

        Args:
            commit: writes rows, all or none of them, and returns when they are on the disk. It may
                block: it is called in a thread, one call at a time.
            limiter: the place for the one thread.
        """
        while True:
            if not self._batch.size and not self._closing:
                self._work = anyio.Event()
                await self._work.wait()
            if not self._batch.size:
                return
            with anyio.move_on_after(self._linger):
                await self._batch.due.wait()
            batch, self._batch = self._batch, _Batch()
            started = anyio.current_time()
            try:
                await to_thread.run_sync(commit, batch.rows, limiter=limiter)
            except JournalError as exc:
                self._fail(exc, batch)
                return
            except Exception as exc:  # noqa: BLE001 (told to everyone who waits)
                self._fail(JournalError(f"the journal's rows can't be written: {exc!r}"), batch)
                return
            self._slowest = max(self._slowest, anyio.current_time() - started)
            self._largest = max(self._largest, batch.size)
            self._rows += batch.size
            self._commits += 1
            batch.done.set()

    def _fail(self, error: JournalError, *batches: _Batch) -> None:
        """Take nothing more, and tell everyone who waits."""
        self._failed = error
        for batch in (*batches, self._batch):
            batch.error = error
            batch.done.set()

    @property
    def failed(self) -> JournalError | None:
        """Why nothing is written any more, or None."""
        return self._failed

    def close(self) -> None:
        """Take nothing more; what is queued will be written."""
        self._closing = True
        self._work.set()
        self._batch.due.set()

    def statistics(self) -> JournalStatistics:
        """Return a look at what is written.

        Returns:
            The numbers of this moment.
        """
        return JournalStatistics(
            self._rows,
            self._commits,
            self._batch.size,
            self._most_queued,
            self._largest,
            self._slowest,
        )
