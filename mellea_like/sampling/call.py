"""One call of `sample`: its state, its consumer, and its end.

Producers (`subsample.produce`) record slices here; the consumer sees them in the order recorded and
cancels what is no longer needed. Neither raises through the task group that they share: what must
end the call is kept in `fatal`, and raised when every producer has ended.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.action import Instruction
from mellea_like.core.message import Message
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import HookError, SamplingFailed
from mellea_like.hooks.dispatch import HookRun
from mellea_like.hooks.registry import snapshot
from mellea_like.hooks.types import HookType
from mellea_like.requirements.validate import Checklist
from mellea_like.runtime.logs import warn
from mellea_like.runtime.native import clock, scope_cancelled, split_cancellation
from mellea_like.sampling import events
from mellea_like.sampling.delivery import Delivery
from mellea_like.sampling.ending import Ending, conclude
from mellea_like.sampling.observed import observed
from mellea_like.sampling.stuck import log_stuck_tasks, task_name
from mellea_like.sampling.subsample import produce
from mellea_like.telemetry.names import STOP_REASON

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.action import Action
    from mellea_like.core.backend import Backend
    from mellea_like.core.context import Context
    from mellea_like.core.requirement import Requirement
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import Plan
    from mellea_like.sampling.turns import Turn

__all__ = ["Call"]

DRAIN_SECONDS = 2.0
"""How long deliveries and background hooks may go on after the last iteration, in all."""


_PASSED = Outcome.PASSED
_NO_HOOKS = HookRun((), "")


class Call:
    """The state of one call; made, run once, and forgotten.

    Args:
        strategy: whose call it is.
        plan: what it does.
        on_slice: the user's progress callback.
    """

    # What most calls never change stands here, for a pending call takes memory.
    fatal: BaseException | None = None
    rendered: tuple[Message, ...] | None = None
    stopping = False
    under_way = 0
    _active = 0
    _begun = False
    _best_rank: tuple[int, int] | None = None
    _delivery: Delivery | None = None
    _ended: Ending | None = None
    _idle: anyio.Event | None = None
    _left: BaseException | None = None
    _scope: anyio.CancelScope | None = None
    _seen = 0
    _timed_out = False
    _too_late: BaseException | None = None
    _undelivered = 0
    _watched = False
    _won = False

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        plan: Plan,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None,
    ) -> None:
        settings = strategy.settings
        self.strategy = strategy
        self.plan = plan
        self.sampling_id = os.urandom(16).hex()
        self.loop_budget = settings.loop_budget
        self.iteration_timeout = settings.iteration_timeout
        self.check_all = (
            strategy.needs_all_reasons if settings.validate_all is None else settings.validate_all
        )
        self.judge_options = settings.judge_options
        handlers = snapshot(settings.handlers)
        self.hooks = HookRun(handlers, self.sampling_id) if handlers else _NO_HOOKS
        self.telemetry = settings.telemetry.start_call(type(strategy).__name__, self.sampling_id)
        self.repairs_observed = HookType.SAMPLING_REPAIR in self.hooks
        self.validation_observed = (
            self.telemetry is not None
            or HookType.VALIDATION_PRE_CHECK in self.hooks
            or HookType.VALIDATION_POST_CHECK in self.hooks
        )
        self.backend = observed(plan.backend, self)
        self.checklist = Checklist(plan.requirements)
        self._judges: dict[int, Backend] = {}
        self._on_slice = on_slice

        self.clock = clock()
        self.started = self.clock()
        self._started_utc = datetime.now(UTC)
        self.deadline = None if settings.timeout is None else self.started + settings.timeout
        self.slices: list[Slice] = []
        self._chain_scopes: dict[int, anyio.CancelScope] = {}
        self.ordered = settings.selection == "ordered"
        self._running: dict[int, Turn] = {}

    # What producers use

    def now(self) -> float:
        """Return the seconds since the call began."""
        return self.clock() - self.started

    def ids(self, iteration: int | None = None, subsample: int | None = None) -> dict[str, Any]:
        """Return the fields that every payload has."""
        return {
            "sampling_id": self.sampling_id,
            "strategy": type(self.strategy).__name__,
            "iteration": iteration,
            "subsample": subsample,
        }

    def render(self, action: Action[Any], context: Context) -> tuple[Message, ...]:
        """Return the messages of an action in a context; the call's own are kept in `rendered`."""
        messages = tuple(action.render(context))
        own = action is self.plan.action and context is self.plan.context
        if own and isinstance(action, Instruction | Message):
            self.rendered = messages
        return messages

    def judge_for(self, requirement: Requirement) -> Backend:
        """Return what decides a requirement without a validator."""
        judge = self.plan.judge if requirement.judge is None else requirement.judge
        if id(judge) not in self._judges:
            self._judges[id(judge)] = observed(judge, self)
        return self._judges[id(judge)]

    def scope_of(self, chain: int) -> AbstractContextManager[object]:
        """Return what cancels one subsample alone; only an ordered selection needs it."""
        if not self.ordered:
            return nullcontext()
        return self._chain_scopes.setdefault(chain, anyio.CancelScope())

    def may_start(self, turn: Turn) -> bool:
        """Tell whether a turn of an ordered call may start; note that its subsample is at it."""
        if self._best_rank is not None and turn.rank > self._best_rank:
            return False
        self._running[turn.subsample] = turn
        return True

    def record(self, slice_: Slice) -> None:
        """Keep a finished slice and tell the consumer: one synchronous step."""
        self.slices.append(slice_)
        passed = slice_.outcome is _PASSED
        if passed:
            rank = (slice_.depth, slice_.subsample)
            if not self.ordered:
                self._won = self.stopping = True
            elif self._best_rank is None or rank < self._best_rank:
                self._best_rank = rank
        if passed or self._watched:
            self._send.send_nowait(slice_)
        if slice_.error is not None:
            warn(
                "iteration %d errored: %s: %s",
                slice_.iteration,
                type(slice_.error).__name__,
                slice_.error,
                sampling_id=self.sampling_id,
                iteration=slice_.iteration,
                subsample=slice_.subsample,
            )

    def subsample_ended(self, chain: int) -> None:
        """Count a producer as ended; the last one closes the queue."""
        self._running.pop(chain, None)
        self._active -= 1
        self.under_way -= 1
        if self._active == 0:
            self._send.close()
        if self.under_way == 0 and self._idle is not None:
            self._idle.set()

    def abort(self, error: BaseException) -> None:
        """End the call with an error, unless it is won already.

        Args:
            error: what the call is to raise.
        """
        if error is self.fatal or error is self._too_late:
            return
        interrupt = not isinstance(error, Exception)
        if (self._won or self.fatal is not None) and not interrupt:
            self._too_late = error
            warn(
                "after the call was decided: %s: %s",
                type(error).__name__,
                error,
                sampling_id=self.sampling_id,
            )
            return
        self.fatal = error
        self.stopping = True
        if self._scope is not None:
            self._scope.cancel()

    # Hooks that producers fire

    async def fire(self, payload: Any, amend: Callable[[Any, Any, str], Any] | None = None) -> Any:
        """Run a hook; its failure ends the call."""
        try:
            return await self.hooks.fire(payload, amend)
        except HookError as exc:
            self.abort(exc)
            raise

    # The call itself

    async def run(self) -> SamplingResult[Any]:
        """Run the call.

        Returns:
            The result.

        Raises:
            BaseException: see `BaseSamplingStrategy.sample`.
        """
        if self.telemetry is None:
            return await self._run()
        with self.telemetry.call() as span:
            try:
                return await self._run()
            finally:
                reason = StopReason.CANCELLED if self._ended is None else self._ended.stop_reason
                span.set({STOP_REASON: reason.value})

    async def _run(self) -> SamplingResult[Any]:
        if self.hooks or self._on_slice is not None:
            await self._run_with_hooks()
        else:
            await self._run_turns()
        # A caller who left while the call was ending is told so, and handed no result.
        await checkpoint_if_cancelled()
        ending = self._conclude()
        if self.hooks.interrupt is not None:
            raise self.hooks.interrupt
        if ending.error is not None:
            # An error that comes from a call inside this one has a record already.
            if isinstance(ending.error, HookError | SamplingFailed) and ending.error.result is None:
                ending.error.result = self._result(ending)
            raise ending.error
        return self._result(ending)

    async def _run_with_hooks(self) -> None:
        """Run the turns inside a task group for hooks, which outlives them.

        Its tasks are shielded: neither a cancellation of the caller, however often repeated, nor
        our own cancelling of the producers, cuts a hook short. Only the clock does.
        """
        async with anyio.create_task_group() as tasks:
            if self.hooks:  # Without any, it is an object that all calls share.
                self.hooks.open(tasks)
            if self._on_slice is not None or HookType.SAMPLING_ITERATION in self.hooks:
                self._delivery = Delivery(self, self._on_slice)
                tasks.start_soon(self._delivery.run)
            cancelled = True
            try:
                self._begun = True
                if HookType.SAMPLING_LOOP_START in self.hooks:
                    self.loop_budget = await events.loop_start(self)
                await self._run_turns()
                cancelled = False
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as exc:  # noqa: BLE001 (raised when the tasks have ended)
                self.abort(exc)
                cancelled = False
            finally:
                tasks.start_soon(self._close, cancelled)

    async def _run_turns(self) -> None:
        """Run the producers, and be their consumer."""
        concurrency = self.strategy.settings.concurrency_budget
        self._active = concurrency
        # A failed slice that nobody else waits for is no reason to wake the consumer.
        self._watched = self.ordered or self._delivery is not None
        self._send, receive = anyio.create_memory_object_stream[Slice](
            concurrency * self.loop_budget
        )
        late, at_work, decided = False, 0, 0
        try:
            with self._send, receive:
                async with anyio.create_task_group() as producers:
                    if self.deadline is not None:
                        producers.cancel_scope.deadline = self.deadline
                    self._scope = producers.cancel_scope
                    for chain in range(concurrency):
                        name = task_name(self.sampling_id, chain)
                        producers.start_soon(produce, self, chain, name=name)
                    try:
                        await self._consume(receive)
                    except anyio.get_cancelled_exc_class() as exc:
                        if not scope_cancelled():
                            self._left = type(exc)(*exc.args)
                        raise
                    except BaseException as exc:  # noqa: BLE001 (an interrupt; raised again later)
                        self.abort(exc)
                    finally:
                        late = not self.stopping and producers.cancel_scope.cancel_called
                        at_work = self._active
                        self.stopping = True
                        decided = len(self.slices)
                        if self._active:
                            producers.cancel_scope.cancel()
                        self._deliver()
                        if self.under_way:
                            await self._await_producers()
        finally:
            # The slices of a call whose caller left are delivered, too.
            self._won = self._won or self._best_rank is not None
            # Cancelled siblings end in whatever order the event loop keeps its tasks in; those
            # that ended at the same instant stand in the order of their ids, so that runs can be
            # compared.
            self.slices[decided:] = sorted(
                self.slices[decided:], key=lambda slice_: (slice_.ended_at, slice_.iteration)
            )
            # The time may run out in the very moment in which the last turn ends.
            turns_left = at_work > 0 and len(self.slices) < concurrency * self.loop_budget
            self._timed_out = late and (
                turns_left or any(s.outcome is Outcome.CANCELLED for s in self.slices)
            )
            self._deliver()
        if self._left is not None:
            # Where a producer's time limit ran out as well, anyio (4.16) counts its cancellation as
            # one of this task's, and takes the native one for its own.
            raise self._left

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
            if self.stopping:
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
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self.strategy.settings.cancel_grace):
                self._idle = anyio.Event()
                try:
                    await self._idle.wait()
                except anyio.get_cancelled_exc_class() as exc:
                    if not scope_cancelled():
                        self._left = type(exc)(*exc.args)
                    raise
            if self.under_way:
                log_stuck_tasks(self.sampling_id, self.strategy.settings.cancel_grace)

    # The end

    def _conclude(self, cancelled: bool = False) -> Ending:  # noqa: FBT001, FBT002
        """Decide how the call ended, once."""
        if self._ended is None:
            self._ended = conclude(
                self.slices,
                selection=self.strategy.settings.selection,
                select_from_failure=self.strategy.select_from_failure,
                strategy=type(self.strategy).__name__,
                fatal=self.fatal,
                timed_out=self._timed_out,
                cancelled=cancelled,
                sampling_id=self.sampling_id,
            )
        return self._ended

    def _result(self, ending: Ending) -> SamplingResult[Any]:
        return SamplingResult(
            slices=tuple(self.slices),
            best_index=ending.best_index,
            stop_reason=ending.stop_reason,
            sampling_id=self.sampling_id,
            started=self._started_utc,
            elapsed=self.now(),
            undelivered=self._undelivered,
        )

    async def _close(self, cancelled: bool) -> None:  # noqa: FBT001
        """Deliver what is left, fire the last hook, and stop the hooks' tasks; bounded in time."""
        unfinished = 0
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(DRAIN_SECONDS) as drain:
                if self._delivery is not None:
                    await self._delivery.drain()
            if self._delivery is not None:
                self._undelivered = self._delivery.stop()
            if self._begun and HookType.SAMPLING_LOOP_END in self.hooks:
                try:
                    await events.loop_end(self, self._conclude(cancelled), self._started_utc)
                except Exception as exc:  # noqa: BLE001 (logged; the outcome stands)
                    warn("%s: %s", type(exc).__name__, exc, sampling_id=self.sampling_id)
                except BaseException as exc:
                    if split_cancellation(exc)[0] is not None:
                        raise
                    self.hooks.interrupt = exc
            with anyio.CancelScope(deadline=drain.deadline):
                await self.hooks.drain()
            unfinished = self.hooks.stop()
        if self._undelivered or unfinished:
            warn(
                "gave up after %g s: %d slices not handed to hooks, %d background hooks cut short",
                DRAIN_SECONDS,
                self._undelivered,
                unfinished,
                sampling_id=self.sampling_id,
            )
