"""`Journal`: the file that records a batch run, so that a killed run can be resumed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import anyio
from anyio import to_thread

from mellea_like.batch.journal.records import (
    KeptText,
    input_row,
    own_text,
    result_rows,
    slice_row,
)
from mellea_like.batch.journal.writer import JournalFile, timestamp
from mellea_like.core.argument_checks import check_one_of
from mellea_like.core.prices import checked_prices
from mellea_like.errors import JournalError
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from anyio.abc import TaskGroup

    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.journal.records import Row
    from mellea_like.core.prices import Price
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["Journal"]

_INSERT_ITEM = "INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?)"
_INSERT_ATTEMPT = "INSERT OR IGNORE INTO attempts VALUES (?, ?, ?)"
_INSERT_SLICE = "INSERT INTO slices VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_PART = "INSERT OR IGNORE INTO parts VALUES (?, ?)"
_INSERT_RESULT = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)"

LINGER = 0.05
"""The seconds for which rows are gathered before they are written, if nothing waits for them."""

MANY = 1000
"""The number of queued rows at which they are written without waiting for more."""


class Journal:
    """The file in which a batch run stores its results, and from which it is resumed.

    It is an SQLite file that only its owner may read. A result is handed out only after it is on
    disk. So a run that is killed at any moment loses no result and repeats none; only the items
    that were being sampled are sampled again. One process at a time can write to the journal;
    `read_run` and `read_items` can read it at any time. The data of large images, sounds and files
    is written only once, no matter how many conversations contain it.

    ::

        async with sample_many(strategy, prompts, concurrency=16, journal="run.db") as results:
            async for item in results:
                ...

    Args:
        path: the file's path. A symbolic link is not followed, and a file that isn't a journal is
            not changed. While the journal is in use, and after a kill, SQLite keeps files beside
            it (``-wal``, ``-shm``). They must be moved or copied together with the journal.
        resume: whether to continue if the journal exists. With False, an existing file is an error.
        text: the texts to keep: ``"all"`` keeps the texts and conversations of all draws;
            ``"best"`` only those of each item's best draw (the winner, or else the best failure);
            and ``"none"`` keeps none. In any case, the journal keeps the winner's text and value,
            because they are the result. It also keeps every draw's outcome, verdicts with reasons,
            cost, error and times, and each item's label and input row.
        prices: the prices of tokens by model, for `read_run` and for reports. With None, a resumed
            run keeps the prices that its journal has.

    Attributes:
        path: the path of the journal.
        text: the texts to keep.

    Raises:
        TypeError: the path isn't a path, or a price isn't a `Price`.
        ValueError: ``text`` isn't one of the three.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        resume: bool = True,
        text: KeptText = "all",
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        check_one_of("a journal's text", text, get_args(KeptText))
        self.path = Path(path)
        self.text: KeptText = text
        self._resume = resume
        self._prices = checked_prices(prices)

    def open(self, identity: Mapping[str, Any]) -> OpenJournal:
        """Open the journal for a run, as `sample_many` does.

        Args:
            identity: the parts of the run's identity as plain data, by name. An existing journal
                must have the same identity.

        Returns:
            The open journal. Enter it with ``async with``, which raises `JournalError` if the
            journal can't be created or used, is in use, is damaged or not a journal, or belongs to
            another run.
        """
        notes: dict[str, Any] = {"text": self.text}
        if self._prices is not None:
            notes["prices"] = {model: price.as_list() for model, price in self._prices.items()}
        opened = partial(JournalFile, self.path, identity, resume=self._resume, notes=notes)
        return OpenJournal(self.path, self.text, opened)

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r})"


class _Queued:
    """Rows to commit together, grouped by the SQL statement that inserts them."""

    __slots__ = ("done", "due", "error", "rows", "size", "told")

    def __init__(self) -> None:
        self.told: list[Callable[[JournalError | None], object]] = []
        self.rows: dict[str, list[Row]] = {}
        self.size = 0
        self.done = anyio.Event()
        self.due = anyio.Event()
        self.error: JournalError | None = None


class OpenJournal:
    """A journal in use. Rows queued while a commit waits for the disk form the next one.

    When the ``async with`` block ends, even by an error or a cancellation, they are written.
    """

    def __init__(self, path: Path, text: KeptText, open_file: Callable[[], JournalFile]) -> None:
        self.path = path
        self._text: KeptText = text
        self._open_file = open_file
        self._file: JournalFile | None = None
        self._tasks: TaskGroup | None = None
        self._problem: Exception | None = None
        self._failed: JournalError | None = None
        self._closing = False
        # The attempts being sampled: their start, the iterations written, and the item's text.
        self._running: dict[tuple[int, int], tuple[float, set[int], str | None]] = {}
        self._parts: set[str] = set()

    async def __aenter__(self) -> Self:
        self._ready = anyio.Event()
        self._work = anyio.Event()
        self._queued = _Queued()
        self._writing: _Queued | None = None
        self._thread = anyio.CapacityLimiter(1)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._live, name=f"journal {self.path.name}")
        try:
            await self._ready.wait()
        except BaseException:
            await self._leave()
            raise
        if self._problem is not None:
            await self._leave()
            raise self._problem
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()
        if self._failed is None or isinstance(error, JournalError):
            return
        if error is None:
            raise JournalError(str(self._failed)) from self._failed
        warn("journal %s: this run is not completely recorded: %s", self.path, self._failed)

    async def _leave(self) -> None:
        assert self._tasks is not None  # noqa: S101 (it was entered)
        self._closing = True
        self._work.set()
        self._queued.due.set()
        # The only task raises nothing and is shielded, so the block's exception isn't changed.
        await self._tasks.__aexit__(None, None, None)

    # --- what a run does -------------------------------------------------------------------------

    async def lookup(self, item_id: int, count: int, *, now: bool = False) -> Sequence[StoredItem]:
        """Return items by their ids; without ``now``, none beyond those of earlier runs."""
        file = self._usable()
        if item_id > file.last and not now:
            return ()
        read = partial(file.read, item_id, item_id + count, count, unfinished=False)
        return await to_thread.run_sync(read, limiter=self._thread)

    async def unfinished(self, item_id: int, count: int) -> Sequence[StoredItem]:
        """Return the first ``count`` items without a result, from the id ``item_id`` on."""
        read = partial(self._usable().read, item_id, sys.maxsize, count, unfinished=True)
        return await to_thread.run_sync(read, limiter=self._thread)

    def begin(
        self,
        item_id: int,
        attempt: int,
        digest: str,
        label: str,
        data: Any,
        known: Iterable[int] = (),
    ) -> None:
        """Record that an attempt begins; ``known`` are the iterations that are written already."""
        self._usable()
        row, parts = input_row(data)
        label = label.encode("utf-8", "backslashreplace").decode()
        self._put_parts(parts)
        self._put(_INSERT_ITEM, [(item_id, digest, label, row)])
        self._put(_INSERT_ATTEMPT, [(item_id, attempt, timestamp())])
        self._running[item_id, attempt] = anyio.current_time(), set(known), own_text(data)

    def slice(self, item_id: int, attempt: int, slice_: Slice) -> None:
        """Record a draw of an attempt at an item, without waiting for the disk."""
        self._usable()
        _, known, own = self._running[item_id, attempt]
        if slice_.iteration not in known:
            self._put(_INSERT_SLICE, [slice_row(item_id, attempt, slice_, self._text, own)])
            known.add(slice_.iteration)

    def finish(
        self,
        item_id: int,
        attempt: int,
        outcome: SamplingResult[Any] | Exception,
        then: Callable[[JournalError | None], object],
    ) -> None:
        """Queue a result; call ``then`` with None once the result is on disk, or with an error."""
        self._usable()
        began, known, own = self._running.pop((item_id, attempt))
        took = anyio.current_time() - began
        elapsed = took if isinstance(outcome, Exception) else float(outcome.elapsed)
        slices, row, parts = result_rows(
            item_id, attempt, outcome, elapsed, known, self._text, own=own
        )
        self._put_parts(parts)
        self._put(_INSERT_SLICE, slices)
        self._put(_INSERT_RESULT, [row])
        self._queued.told.append(then)
        self._queued.due.set()

    def pause(
        self,
        item_id: int,
        attempt: int,
        slices: Sequence[Slice],
        then: Callable[[JournalError | None], object],
    ) -> None:
        """Set an attempt aside; call ``then`` with None once it is on disk, or with an error."""
        self._usable()
        for slice_ in slices:
            self.slice(item_id, attempt, slice_)
        del self._running[item_id, attempt]
        queued = self._queued if self._queued.size else self._writing
        if queued is None:
            then(None)
        else:
            queued.told.append(then)
            queued.due.set()

    async def flush(self) -> None:
        """Wait until all queued rows are on disk. A cancellation ends the wait, not the writing."""
        queued = self._queued if self._queued.size else self._writing
        if queued is not None:
            queued.due.set()
            await queued.done.wait()
            if queued.error is not None:
                raise JournalError(str(queued.error)) from queued.error

    def _usable(self) -> JournalFile:
        if self._failed is not None:
            raise JournalError(str(self._failed)) from self._failed
        if self._file is None or self._closing:
            msg = f"journal {self.path} is closed: use it inside its `async with`"
            raise JournalError(msg)
        return self._file

    # --- how it is written -----------------------------------------------------------------------

    def _put(self, statement: str, rows: Iterable[Row]) -> None:
        queued = self._queued
        of_statement = queued.rows.setdefault(statement, [])
        before = len(of_statement)
        of_statement.extend(rows)
        queued.size += len(of_statement) - before
        self._work.set()
        if queued.size >= MANY:
            queued.due.set()

    def _put_parts(self, parts: Mapping[str, bytes]) -> None:
        """Queue the data of large parts, skipping parts that were queued before."""
        if new := parts.keys() - self._parts:
            self._put(_INSERT_PART, [(sha256, parts[sha256]) for sha256 in new])
            self._parts |= new

    async def _live(self) -> None:
        """Run the writing task, shielded from cancellation: open the file, write, and close it."""
        with anyio.CancelScope(shield=True):
            try:
                file = await to_thread.run_sync(self._open_file, limiter=self._thread)
                self._file = file
            except Exception as exc:  # noqa: BLE001 (raised to whoever opens)
                self._problem = exc
                return
            finally:
                self._ready.set()
            try:
                await self._write(file)
            finally:
                close = partial(file.close, ended=self._failed is None)
                await to_thread.run_sync(close, limiter=self._thread)

    async def _write(self, file: JournalFile) -> None:
        """Commit queued rows until the journal is closed and none are left, or a commit fails."""
        while True:
            if not self._queued.size and not self._closing:
                self._work = anyio.Event()
                await self._work.wait()
            if not self._queued.size:
                return
            with anyio.move_on_after(LINGER):
                await self._queued.due.wait()
            self._writing = queued = self._queued
            self._queued = _Queued()
            try:
                await to_thread.run_sync(file.commit, queued.rows, limiter=self._thread)
            except Exception as exc:  # noqa: BLE001 (told to everyone who waits)
                failed = exc
                if not isinstance(failed, JournalError):
                    failed = JournalError(f"the journal's rows can't be written: {exc!r}")
                self._failed = failed
                for waiting in (queued, self._queued):
                    waiting.error = failed
                    _tell(waiting)
                return
            self._writing = None
            _tell(queued)


def _tell(queued: _Queued) -> None:
    """Report a commit's outcome to all functions and tasks that wait for it."""
    queued.done.set()
    for then in queued.told:
        then(queued.error)
