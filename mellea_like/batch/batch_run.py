"""A running batch: tasks that take items, sample them, store the results and hand them out."""

from __future__ import annotations

from collections import Counter, OrderedDict
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Self

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint
from typing_extensions import TypeVar

from mellea_like.batch.breadth_first import earlier_draws, why_not_in_rounds
from mellea_like.batch.item import (
    EarlierRun,
    ItemRecorder,
    ItemResult,
    Job,
    Paused,
    budget_spent,
    ended_by_error,
    replayed,
)
from mellea_like.batch.jobs import jobs_path
from mellea_like.batch.journal.identity import digest_of
from mellea_like.batch.journal.records import record_of
from mellea_like.batch.progress import Progress, Reporter
from mellea_like.batch.source import END, Source
from mellea_like.core.display import add_note, plural
from mellea_like.core.generation import Usage
from mellea_like.errors import JournalError
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.runtime.task_scope import task_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from mellea_like.backends import JobState
    from mellea_like.batch.breadth_first import WaitingItem
    from mellea_like.batch.item import Work
    from mellea_like.batch.journal.journal import Journal, OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.progress import OnProgress
    from mellea_like.core.result import SamplingResult

__all__ = ["BatchRun"]

T = TypeVar("T")
I = TypeVar("I", default=Any)  # noqa: E741 (an item)

Order = Literal["depth", "breadth"]

_NOTHING: Final = Usage()


class BatchRun(Generic[T, I]):
    """The results of a batch, as `sample_many` returns them.

    Enter it with ``async with``, then iterate over it. Leaving the block early cancels the items
    that are being sampled. After the block, nothing is running.
    """

    def __init__(
        self,
        work: Work,
        items: object,
        *,
        concurrency: int,
        ordered: bool,
        fail_fast: bool,
        journal: Journal | None,
        keep_errors: bool,
        identity: Mapping[str, Any],
        on_progress: OnProgress | None,
    ) -> None:
        self._work = work
        self._source = Source(items, self._source_failed)
        self._concurrency = concurrency
        self._ordered = ordered
        self._goes_on = why_not_in_rounds(work.strategy.settings) is None
        self._fail_fast = fail_fast
        self._journal = journal
        self._keep_errors = keep_errors
        self._identity = identity
        self._reporter: Reporter | None = None
        if on_progress is not None:
            self._reporter = Reporter(on_progress, lambda: self.progress)
        # Between the source and the consumer there are at most twice as many items as are sampled
        # at a time. So a slow consumer slows down the source, and if results come in order, a slow
        # item holds up later ones.
        self._window = anyio.Semaphore(2 * concurrency, fast_acquire=True)
        self._taken = self._handed_on = 0
        self._finished: OrderedDict[int, ItemResult[Any]] = OrderedDict()
        self._news: anyio.Event | None = None
        self._guard = anyio.ResourceGuard("iterating over")
        # State of the tasks:
        self._stack: AsyncExitStack | None = None
        self._scope = anyio.CancelScope()
        self._crew = anyio.CancelScope()
        self._reading = anyio.CancelScope()
        self._open_journal: OpenJournal | None = None
        # How the batch ends:
        self._ended = self._left = False
        self._start_no_more = self._aborted = False
        self._error: BaseException | None = None
        self._interrupt: BaseException | None = None
        # Its figures:
        self._began = 0.0
        self._took: float | None = None
        self._statuses: Counter[str] = Counter()
        self._replayed = self._in_flight = 0
        self._usage = self._replayed_usage = Usage()

    # --- what the user does ----------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """The progress of the batch at this moment."""
        now = anyio.current_time() if self._took is None else self._took
        return Progress(
            total=self._source.total,
            taken=self._taken,
            done=self._statuses.total(),
            handed_on=self._handed_on,
            passed=self._statuses["passed"],
            failed=self._statuses["failed"],
            errored=self._statuses["errored"],
            replayed=self._replayed,
            in_flight=self._in_flight,
            waiting=self._waiting_items,
            usage=self._usage,
            replayed_usage=self._replayed_usage,
            elapsed=0.0 if self._stack is None else now - self._began,
            jobs=self._jobs,
        )

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            msg = "a batch can be entered only once: create a new one with sample_many(...)"
            raise RuntimeError(msg)
        self._stack = AsyncExitStack()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._scope)
            if self._journal is not None:
                self._open_journal = await stack.enter_async_context(
                    self._journal.open(self._identity)
                )
                # A user's own kind of journal need not be a file.
                path: Path | None = getattr(self._journal, "path", None)
                if path is not None:
                    await to_thread.run_sync(self._check_jobs, path)
                if self._work.unique is not None:
                    await self._work.unique.load(self._open_journal)
            self._began = anyio.current_time()
            if self._reporter is not None:
                stack.callback(self._reporter.close)
            tasks = await stack.enter_async_context(task_scope())
            if self._reporter is not None:
                name = "reports the batch's progress"
                tasks.start_soon(self._guarded, self._reporter.run, name=name)
            tasks.start_soon(self._run, name="runs the batch")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._stack is not None  # noqa: S101 (it was entered)
        self._left = True
        try:
            return bool(await self._stack.__aexit__(kind, error, trace))
        finally:
            if self._interrupt is not None:
                raise self._interrupt

    def _check_jobs(self, journal: Path) -> None:
        """Raise if a provider may still be working on jobs that this run has submitted earlier."""
        if not jobs_path(journal).exists():
            return
        from mellea_like.batch.jobs.store import jobs_under_way  # noqa: PLC0415 (few runs have jobs)

        if count := jobs_under_way(journal):
            msg = (
                f"journal {journal}: {plural(count, 'job')} of this run may still be running at a"
                " provider's batch API: resume the run with BatchJobs (--batch-api), or cancel its"
                f" jobs first: mellea-like batch cancel {journal}"
            )
            raise JournalError(msg)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemResult[T, I]:
        """Wait for the next result.

        Returns:
            The result of an item.

        Raises:
            RuntimeError: the batch was not entered, or has been left.
            StopAsyncIteration: every item has been handed out.
            JournalError: the journal can no longer be used, or the items differ from those in the
                journal.
            LimitExceeded: a budget that the items share is spent.
            Exception: the source's error, once all earlier items have been handed out; or, with
                ``fail_fast``, the error of the first item that failed.
        """
        if self._stack is None or self._left:
            state = "is closed" if self._left else "is not open"
            msg = f"this batch {state}: iterate inside `async with sample_many(...) as results`"
            raise RuntimeError(msg)
        with self._guard:
            await checkpoint()
            while (outcome := self._next_finished()) is None:
                if self._ended:
                    self._finish_iteration()
                self._news = anyio.Event()
                await self._news.wait()
            self._handed_on += 1
            self._make_room()
            return outcome

    def _make_room(self) -> None:
        """Allow one more item to be taken from the source, because one was handed out."""
        self._window.release()

    def _next_finished(self) -> ItemResult[Any] | None:
        if self._ordered and not self._ended:
            return self._finished.pop(self._handed_on, None)
        return self._finished.popitem(last=False)[1] if self._finished else None

    def _finish_iteration(self) -> NoReturn:
        if self._reporter is not None:
            self._reporter.close()
        error, self._error = self._error, None
        try:
            raise StopAsyncIteration if error is None else error
        finally:
            del error  # Break the cycle between frame and exception.

    # --- the tasks -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run the reader and the workers until they end. None of them raises."""
        send, receive = anyio.create_memory_object_stream[Job](2 * self._concurrency)
        try:
            with send, receive, self._crew:
                async with anyio.create_task_group() as crew:
                    crew.start_soon(self._guarded, self._read, send, name="reads the batch's items")
                    for number in range(self._concurrency):
                        name = f"worker {number} of the batch"
                        crew.start_soon(self._guarded, self._serve, receive, name=name)
                if self._open_journal is not None:
                    await self._guarded(self._open_journal.flush)
            if not isinstance(self._error, JournalError):
                await self._guarded(self._conclude)
        finally:
            self._took = anyio.current_time()
            self._ended = True
            if self._ordered:  # Missing results no longer hold up later ones.
                self._finished = OrderedDict(sorted(self._finished.items()))
            self._wake()

    async def _guarded(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task's function, and handle its errors so that none reaches the task group."""
        try:
            await function(*arguments)
        except JournalError as exc:
            self._abort(exc)
        except BaseException as exc:  # noqa: BLE001 (what is left over is raised at the end)
            cancellation, rest = split_cancellation(exc)
            if cancellation is None or (rest is not None and not isinstance(rest, Exception)):
                self._interrupted(rest or exc)
            elif rest is not None:
                warn("error while the batch was being cancelled: %s: %s", type(rest).__name__, rest)
            if cancellation is not None:
                raise cancellation from None

    async def _read(self, send: MemoryObjectSendStream[Job]) -> None:
        """Take items from the source, and send the unfinished ones to the workers."""
        with send, self._reading:
            await self._take_items(send)

    async def _take_items(self, send: MemoryObjectSendStream[Job]) -> None:
        """Take all items of the source."""
        await self._source.go_through(partial(self._take_all, send))

    async def _conclude(self) -> None:
        """Finish up when all items have ended. The default does nothing."""

    async def _take_all(
        self, send: MemoryObjectSendStream[Job], next_item: Callable[[], Awaitable[Any]]
    ) -> None:
        earlier = None if self._open_journal is None else EarlierRun(self._open_journal)
        while True:
            await self._window.acquire()
            item = await next_item()
            if item is END:
                self._window.release()
                if earlier is not None and self._error is None:
                    await earlier.check_end(self._taken)
                return
            job = self._job(self._taken, item)
            self._taken += 1
            stored = None if earlier is None else await earlier.find(job.id, job.digest)
            again = job if stored is None else self._known(job, stored)
            if again is not None:
                self._send(again, send)

    def _known(self, job: Job, stored: StoredItem) -> Job | None:
        """Return the job for an item in the journal, or None if it needn't be sampled now."""
        if stored.result is None:
            return self._resumed(job, stored)
        self._finish(replayed(stored, job.item, job.action, self._work))
        return None

    def _job(self, position: int, item: Any) -> Job:
        """Make the job of an item. If there is a journal, the job has the item's digest."""
        job = self._work.job(position, item)
        if self._open_journal is None:
            return job
        return job._replace(digest=digest_of(item, job.action))

    def _earlier(self, stored: StoredItem) -> WaitingItem:
        """Return an unfinished item with the draws that it continues from."""
        settings = self._work.strategy.settings
        several = not isinstance(settings.selection, str)
        broken = bool(settings.stages)
        return earlier_draws(stored, self._work.format, several=several, broken=broken)

    def _resumed(self, job: Job, stored: StoredItem) -> Job:
        """Return a job that continues from an earlier run's draws or, if it can't, starts again."""
        job = job._replace(attempt=stored.attempts + 1)
        if self._goes_on:
            found = self._earlier(stored)
            if len(found.slices) < self._work.strategy.settings.loop_budget:
                return job._replace(earlier=found.slices)
        return job

    def _source_failed(self, error: Exception) -> None:
        """Note the source's error. The iteration raises it after all earlier items."""
        self._error = self._error or error

    def _send(self, job: Job, send: MemoryObjectSendStream[Job]) -> None:
        send.send_nowait(job)
        self._changed()

    async def _serve(self, jobs: MemoryObjectReceiveStream[Job]) -> None:
        """Run a worker: sample items one after another until no more come."""
        async for job in jobs:
            if self._start_no_more:
                self._unpaid(job)
                continue
            self._in_flight += 1
            try:
                await self._sample(job)
            finally:
                self._in_flight -= 1

    async def _sample(self, job: Job) -> None:
        """Sample an item. Store its result, unless it is paused, lacks budget or ends the batch."""
        recorder = None
        if self._open_journal is not None:
            recorder = ItemRecorder(self._open_journal, job, self._work.format, self._abort)
        outcome = await self._work.sample(job, recorder)
        if self._aborted:
            return
        if isinstance(outcome, Paused):
            self._paused(job, outcome)
            return
        spent = budget_spent(outcome)
        if spent is not None:
            self._unpaid(job)
            self._out_of_budget(spent)
            return
        result = record_of(outcome)
        error = outcome if isinstance(outcome, Exception) else None
        if result is not None:
            usage = result.usage
        else:
            usage = Usage() if recorder is None else recorder.usage
        item = ItemResult(job.id, job.item, result, error, job.attempt, usage=usage)
        if self._fail_fast and not item.success:
            try:
                item.unwrap()
            except Exception as exc:  # noqa: BLE001 (what the iteration raises)
                add_note(
                    exc, f"this is the error of item {item.id}; fail_fast=True ended the batch"
                )
                self._abort(exc)
            return
        self._keep(job, item, outcome)

    def _keep(
        self, job: Job, item: ItemResult[Any], outcome: SamplingResult[Any] | Exception
    ) -> None:
        """Store a result, and hand it out once it is stored."""
        if self._open_journal is None:
            self._finish(item, job.spent)
        elif self._keep_errors or not ended_by_error(item):
            then = partial(self._committed, item, job.spent, kept=True)
            self._open_journal.finish(job.id, job.attempt, outcome, then)
        else:
            then = partial(self._committed, item, job.spent, kept=False)
            self._open_journal.pause(job.id, job.attempt, (), then)

    def _paused(self, job: Job, outcome: Paused) -> None:
        """Store an item that now waits for its next draw."""
        raise NotImplementedError  # Only a run in rounds pauses calls.

    def _unpaid(self, job: Job) -> None:
        """Note that an item's next draw can't be paid for. The default does nothing."""

    @property
    def _jobs(self) -> Sequence[JobState]:
        """The jobs under way at providers' batch APIs; none by default."""
        return ()

    @property
    def _waiting_items(self) -> int:
        """The number of items that wait for their next draw."""
        return 0

    def _committed(
        self, item: ItemResult[Any], before: Usage, error: JournalError | None, *, kept: bool
    ) -> None:
        """Hand out an item once it is on disk, or abort the batch if it could not be stored."""
        if error is not None:
            self._abort(error)
        elif not self._aborted:
            self._finish(item, before, kept=kept)

    # --- how items end, and the batch ------------------------------------------------------------

    def _finish(
        self, outcome: ItemResult[Any], before: Usage = _NOTHING, *, kept: bool = False
    ) -> None:
        """Count a result and hand it out, without yielding to other tasks in between."""
        del kept
        self._count(outcome, before)
        self._finished[outcome.id] = outcome
        self._wake()

    def _count(self, outcome: ItemResult[Any], before: Usage = _NOTHING) -> None:
        self._statuses[outcome.status] += 1
        if outcome.replayed:
            self._replayed += 1
            self._replayed_usage += outcome.usage
        else:
            self._usage += outcome.usage - before
        self._changed()

    def _out_of_budget(self, error: Exception) -> None:
        """Start no further items, because the budget is spent. Those in flight continue."""
        if not self._start_no_more:
            add_note(error, "all items of the batch share this budget, so the batch ended")
            self._error = error  # An earlier source error isn't why items are missing.
        self._start_no_more = True
        self._reading.cancel("a budget is spent")

    def _abort(self, error: Exception) -> None:
        """End the batch with an error: cancel all of its tasks."""
        if not self._aborted:
            self._error = error
        self._aborted = True
        self._crew.cancel("the batch ended with an error")

    def _interrupted(self, error: BaseException) -> None:
        """Cancel the ``async with`` block, and make it raise ``error`` at its end."""
        self._interrupt = self._interrupt or error
        self._scope.cancel("the batch was interrupted")

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()

    def _changed(self) -> None:
        if self._reporter is not None:
            self._reporter.changed()
