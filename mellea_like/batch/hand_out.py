"""How results get from the workers to the consumer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.batch.item import EarlierRun, IdSet, replayed
from mellea_like.batch.source import END

if TYPE_CHECKING:
    from mellea_like.batch.intake import Intake
    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.progress import Tally

__all__ = ["HandOut", "HeldBack"]


class HandOut:
    """Hands results to the consumer, as they become ready or, if ``ordered``, by item id."""

    def __init__(self, window: anyio.Semaphore, tally: Tally, *, ordered: bool) -> None:
        self.window = window
        self._tally = tally
        self._ordered = ordered
        self._results: OrderedDict[int, ItemResult[Any]] = OrderedDict()
        self._news = anyio.Event()
        self._ended = False
        self._guard = anyio.ResourceGuard("iterating over")

    def put(self, result: ItemResult[Any]) -> None:
        """Add a result."""
        self._results[result.id] = result
        self._news.set()

    def end(self) -> None:
        """Record that no more results come. Missing results no longer hold up later ones."""
        if self._ordered:
            self._results = OrderedDict(sorted(self._results.items()))
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
            self.window.release()
            return result

    def _next(self) -> ItemResult[Any] | None:
        if self._ordered and not self._ended:
            return self._results.pop(self._tally.handed_on, None)
        return self._results.popitem(last=False)[1] if self._results else None


class HeldBack:
    """Holds back the results of a run in rounds, to hand them out in order after the last round."""

    def __init__(self) -> None:
        self._in_memory: dict[int, ItemResult[Any]] = {}  # Results that the journal lacks.
        self._sampled = IdSet()  # The items that were finished in this run.

    def put(self, result: ItemResult[Any], *, kept: bool) -> None:
        """Add a result; ``kept`` is whether the journal has the result."""
        self._sampled.add(result.id)
        if not kept:
            self._in_memory[result.id] = result

    async def deliver(self, intake: Intake, results: HandOut) -> None:
        """Hand out all results in the order of the items."""
        if intake.journal is None:
            for item_id in sorted(self._in_memory):
                results.put(self._in_memory[item_id])
            return
        stored_items = EarlierRun(intake.journal, now=True)
        count = intake.tally.taken
        async with intake.source.once() as next_item:
            await results.window.acquire()
            for position in range(count):
                if (item := await next_item()) is END:
                    intake.source.ended_early(count, position)
                    return
                sampled = position in self._sampled
                result = self._in_memory.pop(position, None)
                if result is None:
                    job = intake.job(position, item)
                    stored = await stored_items.find(position, job.digest)
                    if stored is None or stored.result is None:
                        continue
                    result = replayed(stored, job, intake.work)
                    result = replace(result, replayed=not sampled)
                if not sampled:
                    intake.tally.count(result)
                results.put(result)
                await results.window.acquire()
