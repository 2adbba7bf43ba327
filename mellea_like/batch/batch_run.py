"""A running batch: tasks that take items, sample them, store the results and hand them out."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Self, final

import anyio
from typing_extensions import TypeVar

from mellea_like.batch.hand_out import HandOut
from mellea_like.batch.intake import Intake, Source
from mellea_like.batch.item import (
    ItemRecorder,
    Job,
    Paused,
    budget_spent,
    ended_by_error,
    fatal_error,
    result_of,
)
from mellea_like.batch.progress import Tally
from mellea_like.core.display import add_note
from mellea_like.errors import JournalError, LimitExceeded
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.runtime.task_scope import task_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from mellea_like.batch.item import Call, ItemResult, Work
    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.orders import Order
    from mellea_like.batch.progress import OnProgress, Progress
    from mellea_like.core.generation import Usage
    from mellea_like.core.result import SamplingResult

__all__ = ["BatchRun"]

T = TypeVar("T")
I = TypeVar("I", default=Any)  # noqa: E741 (an item)


@final
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
        order: type[Order],
        concurrency: int,
        ordered: bool,
        fail_fast: bool,
        journal: AbstractAsyncContextManager[OpenJournal] | None,
        keep_errors: bool,
        on_progress: OnProgress | None,
    ) -> None:
        self._work = work
        self._source = Source(items)
        self._order = order
        self._concurrency = concurrency
        self._fail_fast = fail_fast
        self._journal = journal
        self._keep_errors = keep_errors
        self._tally = Tally(self._source.total, on_progress)
        hand_out = order.in_order if ordered else HandOut
        self._results = hand_out(2 * concurrency, self._tally)
        # State of the tasks:
        self._stack: AsyncExitStack | None = None
        self._scope = anyio.CancelScope()
        self._crew = anyio.CancelScope()  # Cancelled if an error ends the batch.
        self._reading = anyio.CancelScope()  # Cancelled if a budget is spent.
        self._open_journal: OpenJournal | None = None
        # How the batch ends:
        self._left = False
        self._error: BaseException | None = None
        self._interrupt: BaseException | None = None  # Raised when the block is left.

    # --- what the user does ----------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """The progress of the batch at this moment."""
        return self._tally.progress()

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            msg = "a batch can be entered only once: create a new one with sample_many(...)"
            raise RuntimeError(msg)
        self._stack = AsyncExitStack()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._scope)
            if self._journal is not None:
                self._open_journal = await stack.enter_async_context(self._journal)
                await self._order.check(self._open_journal)
                if self._work.unique is not None:
                    await self._work.unique.load(self._open_journal)
            self._tally.begin()
            stack.callback(self._tally.close)
            tasks = await stack.enter_async_context(task_scope())
            name = "reports the batch's progress"
            tasks.start_soon(self._guarded, self._tally.report, name=name)
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemResult[T, I]:
        """Wait for the next result.

        Returns:
            The result of an item.

        Raises:
            RuntimeError: the batch was not entered, or has been left.
            StopAsyncIteration: every result has been handed out.
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
        result = await self._results.take()
        if result is not None:
            return result
        self._tally.close()
        error, self._error = self._error, None
        try:
            raise StopAsyncIteration if error is None else error
        finally:
            del error  # Break the cycle between frame and exception.

    # --- the tasks -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run the tasks of the reader and the workers until they end."""
        send, receive = anyio.create_memory_object_stream[Job](inf)  # The window bounds it.
        intake = Intake(
            work=self._work,
            source=self._source,
            journal=self._open_journal,
            results=self._results,
            jobs=send,
            tally=self._tally,
            abort=self._abort,
        )
        order = self._order(intake)
        try:
            with send, receive, self._crew:
                async with anyio.create_task_group() as crew:
                    name = "reads the batch's items"
                    crew.start_soon(self._guarded, self._read, order, send, name=name)
                    worker = partial(self._serve, order, intake, receive)
                    for number in range(self._concurrency):
                        name = f"worker {number} of the batch"
                        crew.start_soon(self._guarded, worker, name=name)
                if self._open_journal is not None:
                    await self._guarded(self._open_journal.flush)
            if not isinstance(self._error, JournalError):
                await self._guarded(self._results.deliver, intake)
        finally:
            self._error = self._error or self._source.error
            self._tally.end()
            self._results.end()

    async def _guarded(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a function in a task; if it raises, end the batch instead of raising in the task."""
        try:
            await function(*arguments)
        except JournalError as exc:
            self._abort(exc)
        except BaseException as exc:  # noqa: BLE001 (what is left over is raised at the end)
            cancellation, rest = split_cancellation(exc)
            if cancellation is None or (rest is not None and not isinstance(rest, Exception)):
                self._interrupt = self._interrupt or rest or exc
                self._scope.cancel("the batch was interrupted")
            elif rest is not None:
                warn("error while the batch was being cancelled: %s: %s", type(rest).__name__, rest)
            if cancellation is not None:
                raise cancellation from None

    async def _read(self, order: Order, queue: MemoryObjectSendStream[Job]) -> None:
        """Run the reader: ``order`` queues the items, and an error is kept for the batch's end."""
        with queue, self._reading:
            try:
                await order.feed()
            except LimitExceeded as exc:
                self._out_of_budget(exc)
            except JournalError:
                raise
            except Exception as exc:  # noqa: BLE001 (raised after the results that are ready)
                self._error = self._error or exc

    async def _serve(
        self, order: Order, intake: Intake, jobs: MemoryObjectReceiveStream[Job]
    ) -> None:
        """Run a worker: sample items one after another until no more come."""
        async for job in jobs:
            if self._reading.cancel_called:
                continue
            self._tally.waiting -= job.waited
            self._tally.in_flight += 1
            try:
                await order.work_on(job, self._sample)
            finally:
                self._tally.in_flight -= 1
                intake.job_done()

    async def _sample(self, job: Job, call: Call) -> Paused | None:
        """Sample an item, and store its result, or return its state if it is paused."""
        recorder = None
        if self._open_journal is not None:
            recorder = ItemRecorder(self._open_journal, job, self._work.format, self._abort)
        outcome = await self._work.sample(job, recorder, call)
        if self._crew.cancel_called:
            return None
        if isinstance(outcome, Paused):
            return outcome
        spent = budget_spent(outcome)
        if spent is not None:
            self._tally.waiting += job.waited
            self._out_of_budget(spent)
            return None
        cost = job.spent if recorder is None else job.spent + recorder.usage
        item = result_of(job, outcome, cost)
        if (fatal := fatal_error(job, item, fail_fast=self._fail_fast)) is not None:
            self._abort(fatal)
        else:
            self._store(job, item, outcome)
        return None

    def _store(
        self, job: Job, item: ItemResult[Any], outcome: SamplingResult[Any] | Exception
    ) -> None:
        """Store a result in the journal, if there is one, and then hand the result out."""
        journal = self._open_journal
        kept = journal is not None and (self._keep_errors or not ended_by_error(item))
        then = partial(self._finish, item, job.spent, kept=kept)
        if journal is None:
            then(None)
        elif kept:
            journal.finish(job.id, job.attempt, outcome, then)
        else:
            journal.pause(job.id, job.attempt, (), then)

    # --- how items end, and the batch ------------------------------------------------------------

    def _finish(
        self,
        item: ItemResult[Any],
        before: Usage,
        error: JournalError | None,
        *,
        kept: bool,
    ) -> None:
        """Hand out a result, or abort the batch if storing it raised ``error``."""
        if error is not None:
            self._abort(error)
        if self._crew.cancel_called:
            return
        self._results.put(item, before, kept=kept)

    def _out_of_budget(self, error: Exception) -> None:
        """Start no further items, because the budget is spent. Items in flight continue."""
        if not self._reading.cancel_called:
            add_note(error, "all items of the batch share this budget, so the batch ended")
            self._error = error  # An earlier source error isn't why items are missing.
        self._reading.cancel("a budget is spent")

    def _abort(self, error: BaseException) -> None:
        """End the batch with an error: cancel all of its tasks."""
        if not self._crew.cancel_called:
            self._error = error
        self._crew.cancel("the batch ended with an error")
