"""A file that remembers what a batch run has done, so that a run that was killed goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import anyio
from anyio import to_thread

from mellea_like.batch.journal.records import KeptText, result_rows, slice_row, to_json
from mellea_like.batch.journal.writer import JournalFile, JournalWriter, timestamp
from mellea_like.core.prices import checked_prices
from mellea_like.core.trace import slice_to_dict
from mellea_like.errors import JournalError
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from anyio.abc import TaskGroup

    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.journal.writer import JournalStatistics
    from mellea_like.core.prices import Price
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["Journal", "OpenJournal"]

_INSERT_ITEM = "INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?)"
_INSERT_ATTEMPT = "INSERT INTO attempts VALUES (?, ?, ?)"
_INSERT_SLICE = "INSERT INTO slices VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_RESULT = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)"


class Journal:
    """Where a batch run writes down what it has done, and finds it again when it goes on.

    It is an SQLite file that only its owner may read. A result is handed on only after it is on
    the disk, so that a run that was killed at any moment loses none and repeats none: only what was
    under way is sampled again. One process at a time writes it; `read_run` and `read_items` read it
    at any time.

    ::

        async with sample_many(strategy, prompts, concurrency=16, journal="run.db") as results:
            async for item in results:
                ...

    Args:
        path: where. A symbolic link is not followed, and a file that isn't a journal is left as it
            is. SQLite keeps files beside it while it is in use (``-wal``, ``-shm``), and after a
            kill; they belong to it, and are moved or copied with it only.
        resume: whether to go on with a journal that is there; False refuses it.
        text: whose words are kept: ``"all"`` slices', with their conversations; those of the
            ``"best"`` slice of each item, the winner or else the best failure; or of ``"none"``.
            The winner's own text and value are kept in any case, for they are the result; and so
            are outcomes, verdicts with their reasons, costs, errors and times of all slices, and
            each item's label and row of the input.
        prices: what tokens cost, for `read_run` and for reports.

    Raises:
        TypeError: the path isn't a path, or a price not a `Price`.
        ValueError: the path is empty, or ``text`` isn't one of the three.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        resume: bool = True,
        text: KeptText = "all",
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        if not isinstance(path, str | Path):
            msg = f"a journal's path is a str or a Path, not {type(path).__name__}"
            raise TypeError(msg)
        if not Path(path).name or "\0" in str(path):
            msg = f"a journal's path names a file, and {str(path)!r} does not"
            raise ValueError(msg)
        if text not in get_args(KeptText):
            msg = f"a journal's text is 'all', 'best' or 'none', not {text!r}"
            raise ValueError(msg)
        self._path = Path(path)
        self._resume = resume
        self._text: KeptText = text
        self._prices = checked_prices(prices)

    @property
    def path(self) -> Path:
        """Where the journal is."""
        return self._path

    def open(self, identity: Mapping[str, Any]) -> OpenJournal:
        """Open it for a run: to be entered with ``async with``.

        Args:
            identity: what the run is, as plain data by name: what was given to ``sample_many``. A
                journal that is there must be of the same run.

        Returns:
            The open journal. Entering it raises `JournalError` where the journal can't be made or
            used, is in use, is damaged or not a journal, or belongs to another run.
        """
        prices = None
        if self._prices is not None:
            prices = {model: [p.input, p.output, p.currency] for model, p in self._prices.items()}
        notes = {"text": self._text, "prices": prices}
        opened = partial(JournalFile, self._path, identity, resume=self._resume, notes=notes)
        return OpenJournal(self._path, self._text, opened)

    def __repr__(self) -> str:
        return f"Journal({str(self._path)!r})"


class OpenJournal:
    """A journal in use, as `Journal.open` gives it: what a run writes as it goes, and looks up.

    A task writes it. When the block is left, also by an error or a cancellation, what is queued is
    written first.
    """

    def __init__(self, path: Path, text: KeptText, make: Callable[[], JournalFile]) -> None:
        self._path = path
        self._text: KeptText = text
        self._make_file = make
        self._tasks: TaskGroup | None = None
        self._file: JournalFile | None = None
        self._problem: Exception | None = None
        self._running: dict[tuple[int, int], tuple[float, set[int]]] = {}

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            msg = f"journal {self._path} is open already: open it again with Journal.open()"
            raise RuntimeError(msg)
        self._ready = anyio.Event()
        self._writer = JournalWriter()
        self._thread = anyio.CapacityLimiter(1)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._live, name=f"journal {self._path.name}")
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
        failed = self._writer.failed
        if failed is None or isinstance(error, JournalError):
            return
        if error is None:
            raise JournalError(str(failed)) from failed
        warn("journal %s: not all of this run is written down: %s", self._path, failed)

    async def _leave(self) -> None:
        assert self._tasks is not None  # noqa: S101 (it was entered)
        self._writer.close()
        # Its one task raises nothing, and is shielded; what the block raised goes on as it is.
        await self._tasks.__aexit__(None, None, None)

    async def _live(self) -> None:
        """Open the file, write to it, and close it: nothing interrupts that halfway."""
        with anyio.CancelScope(shield=True):
            try:
                self._file = await to_thread.run_sync(self._make_file, limiter=self._thread)
            except Exception as exc:  # noqa: BLE001 (raised to whoever opens)
                self._problem = exc
                return
            finally:
                self._ready.set()
            try:
                await self._writer.run(self._file.commit, self._thread)
            finally:
                close = partial(self._file.close, ended=self._writer.failed is None)
                await to_thread.run_sync(close, limiter=self._thread)

    def _writable(self) -> JournalWriter:
        if self._file is None:
            msg = f"journal {self._path} is not open: use `async with`"
            raise JournalError(msg)
        self._writer.check()
        return self._writer

    async def lookup(self, item_id: int, count: int) -> Sequence[StoredItem]:
        """Look up what was known of items when the journal was opened.

        Args:
            item_id: the first item's id: its position in the input, from 0.
            count: how many ids to look for.

        Returns:
            The items among them that were begun, in order.

        Raises:
            JournalError: the journal is damaged.
        """
        self._writable()
        if self._file is None or item_id > self._file.last:
            return ()
        return await to_thread.run_sync(self._file.read, item_id, count, limiter=self._thread)

    def begin(self, item_id: int, attempt: int, digest: str, label: str, data: Any) -> None:
        """Note that an item is being sampled; never waits.

        Args:
            item_id: its id.
            attempt: which attempt at it, from 1: one more than were stored.
            digest: what tells it from other items.
            label: what to call it, in a line.
            data: its row of the input, as plain data, or None.

        Raises:
            JournalError: the journal has failed before, or is closed.
            TypeError: the data can't be written as JSON.
        """
        writer = self._writable()
        row = None if data is None else to_json(data)
        label = label.encode("utf-8", "backslashreplace").decode()
        writer.put(_INSERT_ITEM, [(item_id, digest, label, row)])
        writer.put(_INSERT_ATTEMPT, [(item_id, attempt, timestamp())])
        self._running[item_id, attempt] = anyio.current_time(), set()

    def slice(self, item_id: int, attempt: int, slice_: Slice) -> None:
        """Note how an iteration ended; never waits.

        Args:
            item_id: its item.
            attempt: which attempt at that, as begun.
            slice_: the record of the iteration.

        Raises:
            JournalError: the journal has failed before, or is closed.
            ValueError: the attempt was not begun, or is finished.
        """
        writer = self._writable()
        _, known = self._attempt(item_id, attempt)
        if slice_.iteration not in known:
            row = slice_row(item_id, attempt, slice_to_dict(slice_), self._text)
            writer.put(_INSERT_SLICE, [row])
            known.add(slice_.iteration)

    async def finish(
        self,
        item_id: int,
        attempt: int,
        result: SamplingResult[Any] | None,
        error: Exception | None,
    ) -> None:
        """Keep what came of an item; return when it is on the disk.

        A cancellation ends the wait and not the writing.

        Args:
            item_id: its id.
            attempt: which attempt at it, as begun.
            result: the result, or None where the call raised.
            error: what the call raised, or None.

        Raises:
            JournalError: it could not be written: the disk is full, for example.
            ValueError: the attempt was not begun, or is finished; or there is neither a result nor
                an error.
        """
        writer = self._writable()
        outcome = result if error is None else error
        if outcome is None:
            msg = f"item {item_id} is finished with a result or with an error"
            raise ValueError(msg)
        began, known = self._attempt(item_id, attempt)
        elapsed = result.elapsed if result is not None else anyio.current_time() - began
        slices, row = result_rows(item_id, attempt, outcome, float(elapsed), known, self._text)
        writer.put(_INSERT_SLICE, slices)
        writer.put(_INSERT_RESULT, [row])
        del self._running[item_id, attempt]
        await writer.committed()

    def _attempt(self, item_id: int, attempt: int) -> tuple[float, set[int]]:
        try:
            return self._running[item_id, attempt]
        except KeyError:
            msg = f"attempt {attempt} at item {item_id} was not begun, or is finished"
            raise ValueError(msg) from None

    def statistics(self) -> JournalStatistics:
        """Return a look at what is written.

        Returns:
            The numbers of this moment.
        """
        return self._writer.statistics()
