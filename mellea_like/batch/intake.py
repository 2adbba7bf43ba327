"""The intake of a batch: items of the source become jobs, which wait in a queue for the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.batch.item import EarlierRun
from mellea_like.batch.journal.identity import digest_of
from mellea_like.batch.source import END

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.streams.memory import MemoryObjectSendStream

    from mellea_like.batch.hand_out import HandOut
    from mellea_like.batch.item import Job, Work
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.progress import Tally
    from mellea_like.batch.source import Source


class Intake:
    """Takes items from the source, as far as the window has room, and queues them as jobs."""

    def __init__(
        self,
        work: Work,
        source: Source,
        *,
        journal: OpenJournal | None,
        results: HandOut,
        queue: MemoryObjectSendStream[Job],
        tally: Tally,
        abort: Callable[[Exception], None],
    ) -> None:
        self.work = work
        self.source = source
        self.journal = journal
        self.window = results.window
        self.tally = tally
        self.abort = abort
        self._queue = queue
        self._results = results
        self._unfinished = 0
        self._done = anyio.Event()

    def job(self, position: int, item: Any) -> Job:
        """Make the job of an item. If there is a journal, the job has the item's digest."""
        job = self.work.job(position, item)
        return job if self.journal is None else job._replace(digest=digest_of(item, job.action))

    def queue(self, job: Job) -> None:
        """Queue a job for the workers. The caller has acquired the job's place in the window."""
        self._unfinished += 1
        self._queue.send_nowait(job)
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
        """Take all items of the source, and queue those that have no result in the journal.

        ``resume`` returns the job of an item that an earlier run left unfinished, or None if the
        item waits for a later round.
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
                    self._results.replay(job, stored, self.work)
                elif (again := resume(job, stored)) is not None:
                    self.tally.waiting += again.waited
                    self.queue(again)
                else:
                    self.tally.waiting += 1
                    self.window.release()
            self.window.release()
            if earlier is not None and self.source.error is None:
                await earlier.check_end(self.tally.taken)
