"""The order of a batch with `BatchJobs`: items get turns when jobs have answered their requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from mellea_like.batch.hand_out import HeldBack
from mellea_like.batch.item import Paused
from mellea_like.batch.jobs.backend import PARKING
from mellea_like.batch.jobs.parking import Parking
from mellea_like.batch.jobs.rounds import JobRounds
from mellea_like.batch.jobs.store import JobStore
from mellea_like.batch.waiting import Waiting, earlier_draws, not_refused
from mellea_like.core.argument_checks import is_async
from mellea_like.runtime.task_scope import run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mellea_like.batch.hand_out import HandOut
    from mellea_like.batch.intake import Intake
    from mellea_like.batch.item import Job, TurnOutcome
    from mellea_like.batch.jobs.records import Answer
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.orders import Sample
    from mellea_like.core.slice import Slice

GRACE = 5.0
"""The seconds after which a task of a round is logged if it ignores its cancellation."""


class ByJobs:
    """Samples each item until its requests wait for a job, and again when they are answered.

    The repeated call makes the same requests as before, and this time gets the answers.
    """

    in_order: ClassVar[type[HandOut]] = HeldBack

    def __init__(self, intake: Intake) -> None:
        assert intake.journal is not None  # noqa: S101 (checked before)
        self._intake = intake
        self._work = intake.work
        self._waiting = Waiting(intake, self._earlier)
        self._charged: dict[int, frozenset[int]] = {}
        settings = self._work.strategy.settings
        self._draws = settings.max_iterations
        # A plain function's marks are simply made again; those of an async one may have a cost.
        mark = None if settings.chooser is None else settings.chooser.mark
        self._scores = mark is not None and is_async(mark)
        self._rounds = JobRounds(
            partial(JobStore, intake.journal.path),
            self._work.example.budgets,
            self._jobs_changed,
        )

    @staticmethod
    async def check(journal: OpenJournal) -> None:
        """Accept every journal, because this order continues the jobs of its run."""

    def _jobs_changed(self) -> None:
        self._intake.tally.jobs = tuple(self._rounds.states.values())
        self._intake.tally.changed()

    async def feed(self) -> None:
        """Queue all items and, after each round of jobs, the items whose requests were answered."""
        rounds = self._rounds
        await rounds.open()
        try:
            await self._intake.take_all(self._resume)
            await self._intake.join()
            while self._intake.tally.waiting and (due := await rounds.round()):
                done = anyio.Event()
                turn = partial(self._turn, due, done), partial(rounds.look_until, done)
                await run_together(turn, "batch", "round", GRACE)
        finally:
            rounds.release()  # Items in flight may wait for a share of the budget.
            with anyio.CancelScope(shield=True):
                await self._intake.idle()
                await rounds.close()

    async def _turn(self, due: set[int], done: anyio.Event) -> None:
        """Give the items in ``due`` another turn, and wait until all of them have had it."""
        await self._waiting.queue_again(due=due)
        await self._intake.join()
        done.set()

    def _resume(self, job: Job, stored: StoredItem) -> Job:
        found = self._earlier(stored)
        earlier, attempt = not_refused(found.earlier), found.attempt
        if refused := found.earlier[len(earlier) :]:
            again = frozenset(slice_.iteration for slice_ in refused)
            self._charged[job.id] = self._charged.get(job.id, frozenset()) | again
            attempt = stored.attempts + 1
        return job._replace(attempt=attempt, earlier=earlier, waited=bool(earlier))

    def _earlier(self, stored: StoredItem) -> Job:
        # A draw that passed has won, but the result was not written any more.
        found = earlier_draws(stored, self._work, passed=True)
        kept = {slice_.iteration for slice_ in found.earlier}
        void = {s.iteration for _, s in stored.slices} - kept
        if void:
            self._charged[stored.id] = frozenset(void)
        return found

    async def work_on(self, job: Job, sample: Sample) -> None:
        """Sample an item until it ends, or its requests wait for one of the provider's jobs."""
        rounds = self._rounds
        answers, marks = await rounds.do(rounds.store.known, job.id)
        if self._scores:
            job = _with_marks(job, marks)
        before = len(marks)
        job = job._replace(trial=job.id in rounds.canaries)
        paused = await sample(job, partial(self._call, answers))
        self._waiting.after_turn(job, paused)
        if len(marks) != before:
            await rounds.do(rounds.store.mark, job.id, marks)

    async def _call(
        self, answers: Mapping[str, Answer], job: Job, on_slice: Callable[[Slice], None] | None
    ) -> TurnOutcome:
        parking = Parking(
            self._rounds,
            job,
            answers,
            budgets=self._work.example.budgets,
            charged=self._charged.get(job.id, frozenset()),
            listener=on_slice,
        )
        PARKING.set(parking)
        with parking.scope:
            job = job._replace(wrap=parking.around)
            result = await self._work.call(job, parking.hear, draws=self._draws)
            parking.ended()
            return result
        return Paused(tuple(parking.slices))


def _with_marks(job: Job, marks: dict[int, Any]) -> Job:
    """Add the marks of earlier draws; from the first pass without a mark on, draws are repeated."""
    for place, slice_ in enumerate(job.earlier):
        if slice_.passed and slice_.iteration not in marks:
            earlier = job.earlier[:place]
            return job._replace(earlier=earlier, attempt=job.attempt + 1, marks=marks)
    return job._replace(marks=marks)
