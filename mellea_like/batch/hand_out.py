"""How results get from the workers to the consumer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.batch.intake import END
from mellea_like.batch.item import EarlierRun, IdSet, replayed

if TYPE_CHECKING:
    from mellea_like.batch.intake import Intake
    from mellea_like.batch.item import ItemResult, Job, Work
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.progress import Tally
    from mellea_like.core.generation import Usage


class HandOut:
    """Hands out results as they become ready; ``places`` bounds the items that are under way."""

    def __init__(self, places: int, tally: Tally) -> None:
        self.window = anyio.Semaphore(places, fast_acquire=True)
        self._room = self.window  # Gets back the places of results that the consumer takes.
        self._tally = tally
        self._results: OrderedDict[int, ItemResult[Any]] = OrderedDict()
        self._news = anyio.Event()
        self._ended = False
        self._guard = anyio.ResourceGuard("iterating over")

    def put(self, result: ItemResult[Any], before: Usage, *, kept: bool) -> None:  # noqa: ARG002
        """Count a result and hand it out; ``before`` is the cost that earlier turns counted."""
        self._tally.count(result, before)
        self._add(result)

    def replay(self, job: Job, stored: StoredItem, work: Work) -> None:
        """Hand out a result from the journal."""
        result = replayed(stored, job, work)
        self._tally.count_replayed(stored)
        self._add(result)

    async def deliver(self, intake: Intake) -> None:
        """Hand out the results that were held back, now that all items have ended."""

    def _add(self, result: ItemResult[Any]) -> None:
        self._results[result.id] = result
        self._news.set()

    def end(self) -> None:
        """Record that no more results come."""
        self._ended = True
        self._news.set()

    async def take(self) -> ItemResult[Any] | None:
        """Wait for the next result; return None if no more come."""
        with self._guard:
            await checkpoint()
            while (result := self._next()) is None:
                if self._ended:
                    return None
                self._news = anyio.Event()
                await self._news.wait()
            self._tally.handed_on += 1
            self._room.release()
            return result

    def _next(self) -> ItemResult[Any] | None:
        return self._results.popitem(last=False)[1] if self._results else None


class InOrder(HandOut):
    """Hands out results by item id. A slow item holds up later ones."""

    def end(self) -> None:
        """Record that no more results come. Missing results no longer hold up later ones."""
        self._results = OrderedDict(sorted(self._results.items()))
        super().end()

    def _next(self) -> ItemResult[Any] | None:
        return super()._next() if self._ended else self._results.pop(self._tally.handed_on, None)


class HeldBack(HandOut):
    """Holds back the results of a run in rounds, to hand them out in order after the last round."""

    def __init__(self, places: int, tally: Tally) -> None:
        super().__init__(places, tally)
        # All items come back before the first result is handed out, so results give back their
        # places when they are ready. Handing them out has its own window.
        self._room = anyio.Semaphore(places, fast_acquire=True)
        self._in_memory: dict[int, ItemResult[Any]] = {}  # Results that no journal has.
        self._sampled = IdSet()  # The items that were finished in this run.

    def put(self, result: ItemResult[Any], before: Usage, *, kept: bool) -> None:
        """Count a result, and hold it back."""
        self._tally.count(result, before)
        self._sampled.add(result.id)
        if not kept:
            self._in_memory[result.id] = result
        self.window.release()

    def replay(self, job: Job, stored: StoredItem, work: Work) -> None:  # noqa: ARG002
        """Count a result, and leave it in the journal for now."""
        self._tally.count_replayed(stored)
        self.window.release()

    async def deliver(self, intake: Intake) -> None:
        """Hand out all results in the order of the items."""
        if intake.journal is None:
            self._results.update(sorted(self._in_memory.items()))
            return
        stored_items = EarlierRun(intake.journal, now=True)
        count = intake.tally.taken
        async with intake.source.once() as next_item:
            await self._room.acquire()
            for position in range(count):
                if (item := await next_item()) is END:
                    intake.source.ended_early(count, position)
                    return
                result = self._in_memory.pop(position, None)
                if result is None:
                    job = intake.job(position, item)
                    stored = await stored_items.find(position, job.digest)
                    if stored is None or not stored.finished:
                        continue
                    result = replayed(stored, job, intake.work)
                    result = replace(result, replayed=position not in self._sampled)
                self._add(result)
                await self._room.acquire()
