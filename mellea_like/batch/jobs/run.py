"""A batch with `BatchJobs`: a call is set aside while its requests wait for a job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

from mellea_like.batch.breadth_first import earlier_draws
from mellea_like.batch.breadth_run import BreadthRun
from mellea_like.batch.item import Paused, Work, ended_by_error
from mellea_like.batch.jobs import jobs_path
from mellea_like.batch.jobs.backend import PARKING, Parking
from mellea_like.batch.jobs.rounds import JobRounds
from mellea_like.batch.jobs.store import JobStore
from mellea_like.batch.journal.reader import read_run
from mellea_like.core.argument_checks import is_async
from mellea_like.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectSendStream

    from mellea_like.backends import JobState
    from mellea_like.batch.breadth_first import WaitingItem
    from mellea_like.batch.item import ItemResult, Job
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.core.conversation import Action
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["JobsRun"]

T = TypeVar("T")
I = TypeVar("I", default=Any)  # noqa: E741 (an item)


class JobsRun(BreadthRun[T, I]):
    """The results of a batch with `BatchJobs` as its backend.

    When a job has ended, the items that it answered are sampled again from their records. Their
    calls make the same requests as before, and this time find the answers. The replies are checked,
    and the next requests go into the next job.
    """

    def __init__(self, work: Work, items: object, **given: Any) -> None:
        work = _JobsWork(*work)._replace(draws=work.strategy.settings.max_iterations)
        super().__init__(work, items, **given)
        assert self._journal is not None  # noqa: S101 (checked before)
        path = self._journal.path
        self._charged: dict[int, frozenset[int]] = {}
        self._canaries = set[int]()
        selection = work.strategy.settings.selection
        # A plain function's marks are simply made again; those of an async one may have a cost.
        mark = None if isinstance(selection, str) else selection.mark
        self._scores = mark is not None and is_async(mark)
        self._rounds = JobRounds(
            lambda: JobStore(jobs_path(path), str(read_run(path, check=False)["started"])),
            work.example.budgets,
            self._changed,
        )

    def _check_jobs(self, journal: Path) -> None:
        """Allow jobs of an earlier session to be under way, because this run continues them."""

    @property
    def _jobs(self) -> Sequence[JobState]:
        return tuple(self._rounds.states.values())

    async def _take_items(self, send: MemoryObjectSendStream[Job]) -> None:
        await self._rounds.open()
        try:
            await super()._take_items(send)
        except LimitExceeded as exc:
            self._out_of_budget(exc)
        except Exception as exc:  # noqa: BLE001 (the iteration raises it)
            self._abort(exc)
        finally:
            await self._rounds.close()

    async def _take_further(self, send: MemoryObjectSendStream[Job]) -> None:
        while True:
            await self._settled()
            if not self._waiting.count or not (due := await self._rounds.round()):
                return
            if self._rounds.direct and len(due) == 1:
                self._canaries |= due
            await self._take_again(send, partial(self._due, due))

    async def _due(self, due: set[int], position: int) -> WaitingItem | None:
        """Return the item at a position if it is in ``due`` and is waiting; else None."""
        return await self._waiting.find(position) if position in due else None

    # Items of an earlier sitting

    def _known(self, job: Job, stored: StoredItem) -> Job | None:
        if stored.result is None:
            return self._resumed(job, stored)
        return super()._known(job, stored)

    def _resumed(self, job: Job, stored: StoredItem) -> Job:
        found = self._earlier(stored)
        return job._replace(attempt=found.attempt, earlier=found.slices)

    def _earlier(self, stored: StoredItem) -> WaitingItem:
        # A draw that passed won, but the result wasn't written any more.
        broken = bool(self._work.strategy.settings.stages)
        found = earlier_draws(stored, self._work.format, several=True, broken=broken)
        kept = {slice_.iteration for slice_ in found.slices}
        void = {body["iteration"] for _, body in stored.slices} - kept
        if void:
            self._charged[stored.id] = frozenset(void)
        return found

    # Sampling

    async def _sample(self, job: Job) -> None:
        rounds = self._rounds
        answers, marks = await rounds.known(job.id)
        if self._scores:
            job = _with_marks(job, marks)
        parking = Parking(
            rounds,
            job,
            answers,
            budgets=self._work.example.budgets,
            direct=rounds.direct,
            charged=self._charged.get(job.id, frozenset()),
            sitting=rounds.sitting,
        )
        before = len(marks)
        token = PARKING.set(parking)
        try:
            await super()._sample(job)
        finally:
            PARKING.reset(token)
        if len(marks) != before:
            await rounds.mark(job.id, marks)

    def _keep(
        self, job: Job, item: ItemResult[Any], outcome: SamplingResult[Any] | Exception
    ) -> None:
        if job.id in self._canaries and ended_by_error(item):
            errors: Any = (item.error,) if item.result is None else item.result.errors
            self._abort(errors[0])
            return
        super()._keep(job, item, outcome)


class _JobsWork(Work):
    """The work on items whose calls are set aside when their requests wait for jobs."""

    __slots__ = ()

    async def _call(
        self, job: Job, action: Action[Any], on_slice: Callable[[Slice], None] | None
    ) -> SamplingResult[Any] | Paused | Exception:
        parking = PARKING.get()
        assert parking is not None  # noqa: S101 (the run has set it)
        job = job._replace(wrap=parking.around)
        with parking.scope:
            result = await super()._call(job, action, parking.hearing(on_slice))
            parking.ended()
            return result
        return Paused(tuple(parking.slices))


def _with_marks(job: Job, marks: dict[int, Any]) -> Job:
    """Add the draws' scores or keys to a job; drop the first pass without one, and later draws."""
    for place, slice_ in enumerate(job.earlier):
        if slice_.passed and slice_.iteration not in marks:
            earlier = job.earlier[:place]
            return job._replace(earlier=earlier, attempt=job.attempt + 1, marks=marks)
    return job._replace(marks=marks)
