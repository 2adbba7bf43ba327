"""A batch in rounds: every item has its first draw before any item has its second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from typing_extensions import TypeVar

from mellea_like.batch.batch_run import BatchRun
from mellea_like.batch.breadth_first import Waiting, WaitingItem
from mellea_like.batch.item import EarlierRun, replayed
from mellea_like.batch.journal.identity import differing_part, digest_of
from mellea_like.batch.source import END
from mellea_like.core.generation import Usage
from mellea_like.errors import MelleaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.streams.memory import MemoryObjectSendStream

    from mellea_like.batch.item import ItemResult, Job, Paused, Work
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.errors import JournalError

__all__ = ["BreadthRun"]

T = TypeVar("T")
I = TypeVar("I", default=Any)  # noqa: E741 (an item)

MANY = 100
"""The number of items to go through before other tasks get a chance to run."""


class BreadthRun(BatchRun[T, I]):
    """The results of a batch with ``order="breadth"``. It iterates over the source every round."""

    def __init__(self, work: Work, items: object, *, ordered: bool, **given: Any) -> None:
        if isinstance(items, Iterator | AsyncIterator):
            msg = (
                "order='breadth' iterates over the items once for each round of draws, but"
                f" {items!r} can be iterated over only once: pass a list, or an object whose"
                " __iter__ or __aiter__ starts again from the beginning"
            )
            raise TypeError(msg)
        super().__init__(work, items, ordered=ordered, **given)
        self._holds_back = ordered
        self._waiting = Waiting(None, self._earlier)
        self._sampled = bytearray()
        """One byte per item: 1 if it was finished in this run, else 0."""
        self._kept_back: dict[int, ItemResult[Any]] = {}
        """Results that the journal doesn't keep, by item id, until they are handed out in order."""
        self._under_way = 0
        self._quiet = anyio.Event()

    @property
    def _waiting_items(self) -> int:
        return self._waiting.count

    # The rounds

    async def _take_items(self, send: MemoryObjectSendStream[Job]) -> None:
        self._waiting = Waiting(self._open_journal, self._earlier)
        await super()._take_items(send)
        await self._take_further(send)

    async def _take_further(self, send: MemoryObjectSendStream[Job]) -> None:
        """Queue the waiting items for their next draw, round after round."""
        for draws in range(1, self._work.strategy.settings.max_iterations):
            await self._settled()
            if not self._waiting.count:
                break
            await self._take_again(send, partial(self._waiting.find, draws=draws))

    async def _take_again(
        self,
        send: MemoryObjectSendStream[Job],
        find: Callable[[int], Awaitable[WaitingItem | None]],
    ) -> None:
        """Iterate over the source again, and queue the waiting items that ``find`` returns."""
        self._waiting.begin_round()
        await self._source.go_through(partial(self._take_waiting, send, find))

    def _known(self, job: Job, stored: StoredItem) -> Job | None:
        if stored.result is not None and self._holds_back:
            self._window.release()
            return None
        known = super()._known(job, stored)
        if known is not None and known.earlier:
            self._waiting.count += 1
            self._window.release()
            return None
        return known

    async def _settled(self) -> None:
        """Wait until all items of a round have had their draw."""
        while self._under_way:
            self._quiet = anyio.Event()
            await self._quiet.wait()
        if self._open_journal is not None:
            await self._open_journal.flush()  # Then no item with a result is found to wait.

    async def _take_waiting(
        self,
        send: MemoryObjectSendStream[Job],
        find: Callable[[int], Awaitable[WaitingItem | None]],
        next_item: Callable[[], Awaitable[Any]],
    ) -> None:
        """Queue the items that ``find`` returns; stop if the source now gives different items."""
        position = 0
        await self._window.acquire()
        while position < self._taken and (item := await next_item()) is not END:
            found = await find(position)
            if found is not None:
                job, what = self._again(found, item)
                if what is not None:
                    msg = (
                        f"the {what} at position {position} has changed since the first round:"
                        " a source must give the same items in the same order in each round"
                    )
                    self._error = self._error or MelleaError(msg)
                    break
                self._send(job, send)
                await self._window.acquire()
            position += 1
            if position % MANY == 0:
                await checkpoint()
        self._window.release()
        if position < self._taken and self._error is None:
            msg = (
                f"the source of the batch gave {self._taken} items in the first round, but only"
                f" {position} in a later one"
            )
            self._error = MelleaError(msg)
        if self._error is not None and position < self._taken:
            self._reading.cancel("the source can't be gone through again")

    def _again(self, found: WaitingItem, item: Any) -> tuple[Job, str | None]:
        """Return a waiting item's job, and ``"item"`` or ``"prompt"`` if that part has changed."""
        kept = found.job
        same_text = kept is not None and type(item) is type(kept.item) is str and item == kept.item
        if kept is not None and (same_text or item is kept.item):
            return kept, None
        job = self._job(found.id, item)
        now = job.digest or digest_of(item, job.action)
        if kept is None:
            job = job._replace(attempt=found.attempt, earlier=found.slices)
            before = found.digest
        else:
            job = kept
            before = found.digest or digest_of(kept.item, kept.action)
        return job, None if now == before else differing_part(before, now)

    # Between two draws

    def _send(self, job: Job, send: MemoryObjectSendStream[Job]) -> None:
        self._under_way += 1
        super()._send(job, send)

    async def _sample(self, job: Job) -> None:
        try:
            await super()._sample(job)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    def _paused(self, job: Job, outcome: Paused) -> None:
        slices = outcome.slices
        for slice_ in slices[len(job.earlier) :]:
            self._usage += slice_.usage
        kept = job._replace(call=outcome.call, earlier=slices)
        waits = WaitingItem(job.id, job.digest, job.attempt, slices, kept)
        self._waiting.add(waits, self._kept_waiting)

    def _kept_waiting(self, error: JournalError | None) -> None:
        """Make room for another item once this one is stored; abort the batch if storing failed."""
        if error is not None:
            self._abort(error)
            return
        self._window.release()
        self._changed()

    def _unpaid(self, job: Job) -> None:
        if job.earlier:
            self._waiting.count += 1

    # Results in order, when the rounds are over

    def _make_room(self) -> None:
        if not self._holds_back or self._open_journal is not None:
            super()._make_room()

    def _finish(
        self, outcome: ItemResult[Any], before: Usage = Usage(), *, kept: bool = False
    ) -> None:
        if not self._holds_back:
            super()._finish(outcome, before)
            return
        self._count(outcome, before)
        self._window.release()
        if self._open_journal is None:
            self._finished[outcome.id] = outcome
            return
        self._sampled.extend(bytes(max(0, outcome.id + 1 - len(self._sampled))))
        self._sampled[outcome.id] = 1
        if not kept:
            self._kept_back[outcome.id] = outcome

    async def _conclude(self) -> None:
        if not self._holds_back or self._open_journal is None:
            return
        self._ordered = False  # From here on, results come in order anyway.
        # Items that were stopped still hold places in the old window.
        self._window = anyio.Semaphore(2 * self._concurrency, fast_acquire=True)
        run = EarlierRun(self._open_journal, now=True)
        await self._source.go_through(partial(self._take_finished, run))

    async def _take_finished(
        self, run: EarlierRun, next_item: Callable[[], Awaitable[Any]]
    ) -> None:
        self._sampled.extend(bytes(max(0, self._taken - len(self._sampled))))
        await self._window.acquire()
        for position, sampled in enumerate(self._sampled):
            if (item := await next_item()) is END:
                return
            outcome = self._kept_back.pop(position, None)
            if outcome is None:
                job = self._job(position, item)
                stored = await run.find(position, job.digest)
                if stored is None or stored.result is None:
                    continue
                outcome = replayed(stored, item, job.action, self._work)
                outcome = replace(outcome, replayed=not sampled)
            if not sampled:
                self._count(outcome)
            self._finished[outcome.id] = outcome
            self._wake()
            await self._window.acquire()
