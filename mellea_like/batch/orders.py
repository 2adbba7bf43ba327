"""The orders in which a batch samples its items: depth first, or breadth first in rounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from anyio import to_thread

from mellea_like.batch.hand_out import HandOut, HeldBack, InOrder
from mellea_like.batch.item import Call, Job, Paused
from mellea_like.batch.waiting import Waiting, earlier_draws, resumed, why_not_in_rounds
from mellea_like.sampling import features_of

if TYPE_CHECKING:
    from pathlib import Path

    from mellea_like.batch.intake import Intake
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem

Sample: TypeAlias = Callable[[Job, Call], Awaitable[Paused | None]]
"""A function that samples an item, and returns its `Paused` state unless the item is finished."""


class Order(Protocol):
    """Decides which item is sampled next, and for how long."""

    in_order: ClassVar[type[HandOut]]
    """How results are handed out if they must be in the order of the items."""

    def __init__(self, intake: Intake) -> None: ...

    @staticmethod
    async def check(journal: OpenJournal) -> None:
        """Raise if a provider's batch API may still be working on the run."""
        # A user's own kind of journal need not be a file.
        path: Path | None = getattr(journal, "path", None)
        if path is not None:
            from mellea_like.batch.jobs.store import refuse_jobs_under_way  # noqa: PLC0415

            await to_thread.run_sync(refuse_jobs_under_way, path)

    async def feed(self) -> None:
        """Queue each item once for every turn that it needs."""
        ...

    async def work_on(self, job: Job, sample: Sample) -> None:
        """Give a queued item its turn, in the task of a worker."""
        ...


class DepthFirst(Order):
    """The order in which all draws of an item are made in one turn."""

    in_order = InOrder

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def feed(self) -> None:
        """Queue all items once."""
        await self._intake.take_all(self._resume)

    async def work_on(self, job: Job, sample: Sample) -> None:
        """Make all draws of an item."""
        await sample(job, self._intake.work.call)

    def _resume(self, job: Job, stored: StoredItem) -> Job:
        work = self._intake.work
        if why_not_in_rounds(features_of(work.strategy.settings)) is not None:
            return job._replace(attempt=stored.attempts + 1)
        return resumed(job, stored, work)._replace(waited=False)


class BreadthFirst(Order):
    """The order in which all items have their first draw, then their second, and so on."""

    in_order = HeldBack

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._work = intake.work
        self._waiting = Waiting(intake, partial(earlier_draws, work=self._work))

    async def feed(self) -> None:
        """Queue the new items in round 1 and, in round n + 1, the items that have had n draws."""
        await self._intake.take_all(self._resume)
        for draws in range(1, self._work.strategy.settings.max_iterations):
            await self._intake.join()
            if not self._intake.tally.waiting:
                break
            await self._waiting.queue_again(draws=draws)

    async def work_on(self, job: Job, sample: Sample) -> None:
        """Make one draw of an item."""
        paused = await sample(job, partial(self._work.call, draws=1))
        self._waiting.after_turn(job, paused)

    def _resume(self, job: Job, stored: StoredItem) -> Job | None:
        again = resumed(job, stored, self._work)
        return None if again.waited else again
