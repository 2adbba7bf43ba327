"""The race of a call's subsamples: what they record, who wins, and how the others are stopped.

Producers (`subsample.produce`) record slices here; the consumer looks at them in the order recorded
and cancels what is no longer needed. Neither raises through the task group that they share: what
must end the call is handed to `Call.abort`, and raised when every producer has ended.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.generation import Usage
from mellea_like.core.result import StopReason
from mellea_like.core.shown import bounded, error_text
from mellea_like.core.slice import Outcome, Slice
from mellea_like.runtime.logs import warn
from mellea_like.runtime.native import scope_cancelled
from mellea_like.sampling.ending import Stop
from mellea_like.sampling.stuck import log_stuck_tasks, task_name
from mellea_like.sampling.subsample import produce

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mellea_like.errors import LimitExceeded
    from mellea_like.sampling.call import Call
    from mellea_like.sampling.delivery import Delivery
    from mellea_like.sampling.scheduler import Conductor
    from mellea_like.sampling.settings import Settings
    from mellea_like.sampling.turns import Turn

__all__ = ["Race"]

_PASSED = Outcome.PASSED

NUMBER = re.compile(r"\d+")
"""What tells errors apart that are otherwise alike: ids, times."""


class Race:
    """The subsamples of one call at work.

    Args:
        sampling_id: the call's id.
        settings: the strategy's configuration.

    Attributes:
        slices: the record of each iteration that ended, in that order.
        stopping: whether no further turn may start.
        won: whether it is certain that a slice has won.
        timed_out: whether the call's time was up before all turns were spent.
        ordered: whether the winner must not depend on timing.
        cut_short: whether a subsample was cancelled before its end.
        under_way: subsamples that have begun and not ended.
        conductor: starts the iterations, where a schedule has something to decide.
        stopped: why the race was stopped before its turns were spent; None if it was not.
    """

    # What most calls never change stands here, for a pending call takes memory.
    stopping = False
    won = False
    timed_out = False
    cut_short = False
    under_way = 0
    conductor: Conductor | None = None
    stopped: Stop | None = None
    _active = 0
    _best_rank: tuple[int, int] | None = None
    _delivery: Delivery | None = None
    _idle: anyio.Event | None = None
    _left: BaseException | None = None
    _scope: anyio.CancelScope | None = None
    _recorded: anyio.Event | None = None
    _seen = 0
    _waiting = 0
    _watched = False

    def __init__(self, sampling_id: str, settings: Settings) -> None:
        self._sampling_id = sampling_id
        self._settings = settings
        self.slices: list[Slice] = []
        self.ordered = settings.selection == "ordered"
        self._chain_scopes: dict[int, anyio.CancelScope] = {}
        self._running: dict[int, Turn] = {}

    # What producers use

    @property
    def passed(self) -> bool:
        """Whether a slice has passed."""
        return self.won or self._best_rank is not None

    def scope_of(self, chain: int) -> AbstractContextManager[object]:
        """Return what cancels one subsample alone; only an ordered selection needs it."""
        if not self.ordered:
            return nullcontext()
        return self._chain_scopes.setdefault(chain, anyio.CancelScope())

    def was_cancelled(self, chain: int) -> bool:
        """Tell whether one subsample alone was cancelled."""
        scope = self._chain_scopes.get(chain)
        return scope is not None and scope.cancel_called

    def may_start(self, turn: Turn) -> bool:
        """Tell whether a turn of an ordered call may start; note that its subsample is at it."""
        if self._best_rank is not None and turn.rank > self._best_rank:
            return False
        self._running[turn.subsample] = turn
        return True

    @property
    def usage(self) -> Usage:
        """What the slices recorded so far have cost."""
        return sum((slice_.usage for slice_ in self.slices), Usage())

    def record(self, slice_: Slice) -> None:
        """Keep a finished slice and tell the consumer: one synchronous step."""
        self.slices.append(slice_)
        passed = slice_.outcome is _PASSED
        if passed:
            if not self.ordered:
                self.won = True
                self._start_no_more()
            elif self._best_rank is None or slice_.rank < self._best_rank:
                self._best_rank = slice_.rank
        if passed or self._watched:
            self._send.send_nowait(slice_)
        if self._recorded is not None:
            self._wake()

    def _log_errors(self) -> None:
        """Log the errors, those that differ in numbers only as one with their count."""
        kinds: dict[object, list[Slice]] = {}
        for slice_ in self.slices:
            if (error := slice_.error) is not None:
                text = NUMBER.sub("0", bounded(error_text(error)))
                kind = (type(error), getattr(error, "status", None), text)
                kinds.setdefault(kind, []).append(slice_)
        for alike in kinds.values():
            first = alike[0]
            what: tuple[object, ...] = (type(first.error).__name__, first.error)
            if len(alike) == 1:
                message, what = "iteration %d errored: %s: %s", (first.iteration, *what)
            else:
                message = "%d iterations errored alike, iteration %d first: %s: %s"
                what = (len(alike), first.iteration, *what)
            warn(
                message,
                *what,
                sampling_id=self._sampling_id,
                iteration=first.iteration,
                subsample=first.subsample,
            )

    def siblings_at_work(self) -> bool:
        """Tell whether a producer is at work besides one that asks and those that wait."""
        return self.conductor is None and self._active - self._waiting > 1

    async def next_record(self) -> None:
        """Wait until a sibling has recorded a slice, or has ended."""
        if self._recorded is None:
            self._recorded = anyio.Event()
        self._waiting += 1
        try:
            await self._recorded.wait()
        finally:
            self._waiting -= 1

    def _wake(self) -> None:
        if self._recorded is not None:
            self._recorded.set()
            self._recorded = None

    def ended(self, chain: int, *, broken: bool = False) -> None:
        """Count a producer as ended; the last one closes the queue.

        Args:
            chain: its index; -1 for what starts the producers.
            broken: whether a permanent error ended it.
        """
        self._running.pop(chain, None)
        if self.conductor is not None and chain >= 0:
            self.conductor.chain_ended(chain, broken=broken)
        self._active -= 1
        self.under_way -= 1
        self._wake()
        if self._active == 0:
            self._send.close()
        if self.under_way == 0 and self._idle is not None:
            self._idle.set()

    def out_of_budget(self, error: LimitExceeded) -> None:
        """Start no further turn, for a budget is spent; what is paid for already may go on."""
        if self.stopping:
            return
        self.stopped = Stop(StopReason.BUDGET, str(error), error)
        self._start_no_more()

    def hopeless(self, why: str) -> None:
        """Stop: further turns would not help."""
        if not self.stopping:
            self.stopped = Stop(StopReason.HOPELESS, why)
            self.stop()

    # What the call uses

    def stop(self) -> None:
        """Start no further turn, and cancel those that run."""
        self._start_no_more()
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, call: Call, delivery: Delivery | None) -> None:
        """Run the producers, and be their consumer.

        Args:
            call: the call. It is not kept: a call that refers to its race and back would wait for
                the garbage collector.
            delivery: what hands slices to hooks and to the progress callback.
        """
        self.conductor = conductor = call.conductor()
        concurrency = self._settings.concurrency_budget
        turns = concurrency * call.loop_budget
        self._delivery = delivery
        # A failed slice that nobody else waits for is no reason to wake the consumer.
        self._watched = self.ordered or delivery is not None
        self._send, receive = anyio.create_memory_object_stream[Slice](turns)
        late, at_work, decided = False, 0, 0
        try:
            with self._send, receive:
                async with anyio.create_task_group() as producers:
                    if call.deadline is not None:
                        producers.cancel_scope.deadline = call.deadline
                    self._scope = producers.cancel_scope
                    if conductor is None:
                        # Where a draw can't fail, there is nothing to race.
                        abreast = concurrency if call.can_fail else 1
                        for chain in range(abreast):
                            self._open(producers, call, chain, chain + concurrency - abreast)
                    else:
                        self._active = 1
                        producers.start_soon(self._keep_time, conductor)
                        conductor.start(partial(self._open, producers, call))
                    try:
                        await self._consume(receive)
                    except anyio.get_cancelled_exc_class() as exc:
                        self._note_native(exc)
                        raise
                    except BaseException as exc:  # noqa: BLE001 (an interrupt; raised again later)
                        call.abort(exc)
                    finally:
                        late = not self.stopping and producers.cancel_scope.cancel_called
                        at_work, decided = self._active, len(self.slices)
                        self._start_no_more()
                        if self._active:
                            producers.cancel_scope.cancel()
                        self._deliver()
                        if self.under_way:
                            await self._await_producers()
        finally:
            self.conductor = None  # It refers to the call.
            self.won = self.passed
            self._log_errors()
            # Cancelled siblings end in whatever order the event loop keeps its tasks in; those
            # that ended at the same instant stand in the order of their ids, so that runs can be
            # compared.
            self.slices[decided:] = sorted(
                self.slices[decided:], key=lambda slice_: (slice_.ended_at, slice_.iteration)
            )
            # The time may run out in the very moment in which the last turn ends.
            turns_left = (at_work > 0 or self.cut_short) and len(self.slices) < turns
            self.timed_out = late and (
                turns_left or any(s.outcome is Outcome.CANCELLED for s in self.slices)
            )
            # The slices of a call whose caller left are delivered, too.
            self._deliver()
        if self._left is not None:
            # Where a producer's time limit ran out as well, anyio (4.16) counts its cancellation as
            # one of this task's, and takes the native one for its own.
            raise self._left

    def _start_no_more(self) -> None:
        self.stopping = True
        if self.conductor is not None:
            self.conductor.stop()

    def _open(self, producers: TaskGroup, call: Call, chain: int, last: int | None = None) -> None:
        """Start the producer of a chain, and of those up to the last that follow it."""
        self._active += 1
        last = chain if last is None else last
        producers.start_soon(produce, call, chain, last, name=task_name(call.sampling_id, chain))

    async def _keep_time(self, conductor: Conductor) -> None:
        """Run the conductor's clock; it counts as a producer, for it may still open chains."""
        self.under_way += 1
        try:
            await conductor.keep_time()
        finally:
            self.ended(-1)

    async def _consume(self, receive: Any) -> None:
        """Look at slices as they are recorded, until the call is decided or the turns are spent.

        What comes through the queue only wakes this up: the list of slices is what counts.
        """
        while True:
            try:
                await receive.receive()
                while True:
                    receive.receive_nowait()
            except anyio.EndOfStream:
                return
            except anyio.WouldBlock:
                pass
            if self.won or (self.stopping and self.stopped is None):
                return
            if self._best_rank is not None:
                self._cancel_higher_ranks(self._best_rank)
            self._deliver()

    def _cancel_higher_ranks(self, best: tuple[int, int]) -> None:
        for chain, turn in self._running.items():
            if turn.rank > best:
                self._chain_scopes[chain].cancel()

    def _deliver(self) -> None:
        """Queue the slices recorded since the last time for hooks and the progress callback."""
        if self._delivery is not None:
            for slice_ in self.slices[self._seen :]:
                self._delivery.put(slice_)
        self._seen = len(self.slices)

    async def _await_producers(self) -> None:
        """Wait for cancelled producers; say which don't end when the grace period is over.

        One that has not begun is the task group's to wait for: when an event loop shuts down, it
        may never begin.
        """
        grace = self._settings.cancel_grace
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(grace):
                self._idle = anyio.Event()
                try:
                    await self._idle.wait()
                except anyio.get_cancelled_exc_class() as exc:
                    self._note_native(exc)
                    raise
            if self.under_way:
                log_stuck_tasks(self._sampling_id, grace)

    def _note_native(self, cancellation: BaseException) -> None:
        """Keep a native cancellation: it leaves the call, whatever the task group makes of it."""
        if not scope_cancelled():
            self._left = type(cancellation)(*cancellation.args)
