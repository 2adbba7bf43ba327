"""The intake of a batch: items of the source become jobs, which wait in a queue for the workers."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgen, isgenerator
from typing import TYPE_CHECKING, Any, Final

import anyio

from mellea_like.batch.item import EarlierRun
from mellea_like.batch.journal.identity import digest_of
from mellea_like.errors import MelleaError
from mellea_like.runtime.event_loops import foreign
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from anyio.streams.memory import MemoryObjectSendStream

    from mellea_like.batch.hand_out import HandOut
    from mellea_like.batch.item import Job, Work
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.progress import Tally

END: Final = object()
"""The object that the function from `Source.once` returns after the last item."""


class Source:
    """Iterates over a batch's items, once for each round. If this raises, the items end there."""

    def __init__(self, items: object) -> None:
        if isinstance(items, str | bytes | bytearray):
            kind = type(items).__name__
            msg = f"items must be an iterable of items, not a single {kind}: put it in a list"
            raise TypeError(msg)
        if not isinstance(items, AsyncIterable | Iterable):
            msg = f"items must be an iterable or an async iterable, not {items!r}"
            raise TypeError(msg)
        self._items: Any = items
        self.error: Exception | None = None
        """The first error that iterating over the items raised; None if there was none."""
        self.total = len(items) if isinstance(items, Sized) else None

    @asynccontextmanager
    async def once(self) -> AsyncGenerator[Callable[[], Awaitable[Any]]]:
        """Iterate once: yield an async function that returns the next item, or `END` at the end."""
        items = _each(self._items)
        try:
            yield partial(self._next, items)
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await items.aclose()
            except Exception as exc:  # noqa: BLE001 (nothing more is wanted of it)
                warn("closing the source of the batch failed: %s: %s", type(exc).__name__, exc)

    def ended_early(self, taken: int, position: int) -> Exception:
        """Return the error of a round with fewer items than the first one; keep it as ``error``."""
        if self.error is None:
            msg = (
                f"the source of the batch gave {taken} items in the first round, but only"
                f" {position} in a later one"
            )
            self.error = MelleaError(msg)
        return self.error

    async def _next(self, items: AsyncGenerator[Any]) -> Any:
        try:
            with foreign("the source of the batch", MelleaError):
                return await anext(items, END)
        except Exception as exc:  # noqa: BLE001 (the source's; the iteration raises it at its end)
            self.error = self.error or exc
        return END


async def _each(items: Any) -> AsyncGenerator[Any]:
    """Yield the items of a plain or async source; if it is a generator, close it afterwards."""
    source = aiter(items) if hasattr(items, "__aiter__") else iter(items)
    try:
        if hasattr(items, "__aiter__"):
            async for item in source:
                yield item
        else:
            for item in source:
                yield item
    finally:
        if isasyncgen(source):
            await source.aclose()
        elif isgenerator(source):
            source.close()


@dataclass(kw_only=True)
class Intake:
    """Takes items from the source, as far as the window has room, and queues them as jobs."""

    work: Work
    source: Source
    journal: OpenJournal | None
    results: HandOut
    jobs: MemoryObjectSendStream[Job]
    tally: Tally
    abort: Callable[[Exception], None]

    def __post_init__(self) -> None:
        self.window = self.results.window
        self._unfinished = 0
        self._done = anyio.Event()

    def job(self, position: int, item: Any) -> Job:
        """Make the job of an item. If there is a journal, the job has the item's digest."""
        job = self.work.job(position, item)
        return job if self.journal is None else job._replace(digest=digest_of(item, job.action))

    def queue(self, job: Job) -> None:
        """Queue a job for the workers. The caller has acquired the job's place in the window."""
        self._unfinished += 1
        self.jobs.send_nowait(job)
        self.tally.changed()

    def job_done(self) -> None:
        """Record that a worker is done with a job."""
        self._unfinished -= 1
        self._done.set()

    async def join(self) -> None:
        """Wait until the workers are done with all queued jobs, and all records are on disk."""
        while self._unfinished:
            await self._next_done()
        if self.journal is not None:
            await self.journal.flush()

    async def idle(self) -> None:
        """Wait until no worker is sampling an item. Jobs may be left in the queue."""
        while self.tally.in_flight:
            await self._next_done()

    async def _next_done(self) -> None:
        self._done = anyio.Event()
        await self._done.wait()

    async def take_all(self, resume: Callable[[Job, StoredItem], Job | None]) -> None:
        """Take all items, and queue those that have no result in the journal.

        ``resume`` makes the job of an unfinished item, or returns None to let it wait for a round.
        """
        earlier = None if self.journal is None else EarlierRun(self.journal)
        async with self.source.once() as next_item:
            while True:
                await self.window.acquire()
                if (item := await next_item()) is END:
                    break
                job = self.job(self.tally.taken, item)
                self.tally.taken += 1
                stored = None if earlier is None else await earlier.find(job.id, job.digest)
                if stored is None:
                    self.queue(job)
                elif stored.finished:
                    self.results.replay(job, stored, self.work)
                elif (again := resume(job, stored)) is not None:
                    self.tally.waiting += again.waited
                    self.queue(again)
                else:
                    self.tally.waiting += 1
                    self.window.release()
            self.window.release()
            if earlier is not None and self.source.error is None:
                await earlier.check_end(self.tally.taken)
