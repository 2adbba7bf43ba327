"""The race of a call's chains: their tasks, who wins, and how the others are stopped.

A chain runs iterations one after another, most of them repairing the one before. It has the turns
of the subsample of its number; only where turns are pooled may it run another's. A producer is the
task that runs a chain, or all of them in turn. A slice that wins wakes the call's own task, which
cancels what is no longer needed. Producers don't raise through their task group: what must end the
call goes to `Recorder.abort`, and is raised when all have ended.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio

from mellea_like.core.backend import ITERATION, SPENDS_ON
from mellea_like.core.conversation import Context, Instruction, Message, is_action
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.validation import Candidate
from mellea_like.hooks.types import HookType
from mellea_like.runtime.event_loops import (
    cancel_requested,
    cancellation_lost,
    scope_cancelled,
    split_cancellation,
)
from mellea_like.runtime.logs import warn
from mellea_like.runtime.task_stack import stack_of
from mellea_like.sampling.call_state import ChainState
from mellea_like.sampling.iteration import Iteration, turn_of
from mellea_like.schedules.giving_up import FEWEST, bug_of, may_go_on, times_seen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anyio.abc import TaskGroup

    from mellea_like.core.conversation import Action
    from mellea_like.sampling.call_state import CallContext
    from mellea_like.sampling.events import Delivery
    from mellea_like.sampling.scheduler import Scheduler

__all__ = ["Race", "first_in"]

_FAILED = Outcome.FAILED

PATIENCE = 0.05
"""Seconds for which a chain whose validator has a bug waits for its siblings at least."""


class Race:
    """The chains of one call at work."""

    def __init__(self, call: CallContext, loop_budget: int, delivery: Delivery | None) -> None:
        self._call = call
        self._recorder = call.recorder
        self._loop_budget = loop_budget
        self._delivery = delivery
        self._left: BaseException | None = None
        if delivery is not None:
            call.recorder.deliver = delivery.put

    async def run_alone(self) -> None:
        """Run the chains one after another in the caller's own task: nothing races them."""
        call, recorder = self._call, self._recorder
        # What the iterations set is not to stay in the caller's context.
        iteration, spends_on = ITERATION.get(), SPENDS_ON.get()
        late = False
        recorder.active = 1
        recorder.scope = scope = anyio.CancelScope()
        if call.deadline is not None:
            scope.deadline = call.deadline
        try:
            with scope:
                try:
                    last = call.settings.concurrency_budget - 1
                    await produce(call, self._loop_budget, 0, last)
                except anyio.get_cancelled_exc_class() as exc:
                    self._note_native(exc)
                    raise
                except BaseExceptionGroup as group:
                    # trio's task groups raise cancellations as a group; callers expect one.
                    cancellation, _ = split_cancellation(group)
                    raise first_in(cancellation or group) from None
                finally:
                    late = not recorder.stopping and scope.cancel_called
        except anyio.get_cancelled_exc_class():
            # A backend may answer its cancellation with another, which no scope takes for its own.
            if self._left is None and scope_cancelled():
                await anyio.lowlevel.checkpoint()  # It raises that of the scope around this one.
            if cancel_requested() or not scope.cancel_called:
                raise
        finally:
            ITERATION.set(iteration)
            SPENDS_ON.set(spends_on)
            recorder.scope = None  # A paused call is kept, its scopes aren't.
            self._end(late=late, at_work=0)
            if self._left is None and cancellation_lost():
                # A backend has swallowed the cancellation, or made an error of it.
                self._left = anyio.get_cancelled_exc_class()()
        if self._left is not None:
            raise self._left

    async def run(self, scheduler: Scheduler | None) -> None:
        """Run all chains at once, or as a scheduler says, until one wins or all have ended."""
        call, recorder = self._call, self._recorder
        recorder.scheduler = scheduler
        recorder.over = anyio.Event()
        late, at_work, decided = False, 0, 0
        try:
            async with anyio.create_task_group() as producers:
                if call.deadline is not None:
                    producers.cancel_scope.deadline = call.deadline
                recorder.scope = producers.cancel_scope
                if scheduler is None:
                    for chain in range(call.settings.concurrency_budget):
                        self._open(producers, chain)
                else:
                    recorder.active = 1
                    producers.start_soon(self._keep_time, scheduler)
                    scheduler.start(partial(self._open, producers))
                try:
                    await recorder.over.wait()
                except anyio.get_cancelled_exc_class() as exc:
                    self._note_native(exc)
                    raise
                except BaseException as exc:  # noqa: BLE001 (an interrupt; raised again later)
                    recorder.abort(exc)
                finally:
                    late = not recorder.stopping and producers.cancel_scope.cancel_called
                    at_work, decided = recorder.active, len(recorder.slices)
                    recorder.deliver = None
                    recorder.start_no_more()
                    if recorder.active:
                        producers.cancel_scope.cancel()
                    self._deliver()
                    if recorder.under_way:
                        await self._await_producers()
        finally:
            recorder.scheduler = None  # It refers to the call.
            # Cancelled siblings end in whatever order the event loop keeps its tasks in; those that
            # ended at the same instant are sorted by their ids, so that runs can be compared.
            recorder.slices[decided:] = sorted(
                recorder.slices[decided:], key=lambda slice_: (slice_.ended_at, slice_.iteration)
            )
            self._end(late=late, at_work=at_work)
            # The slices of a call whose caller left are delivered, too.
            self._deliver()
        if self._left is not None:
            # Where a producer's time limit ran out as well, anyio (4.16) counts its cancellation as
            # one of this task's, and takes the native one for its own.
            raise self._left

    @property
    def _turns(self) -> int:
        return self._call.settings.concurrency_budget * self._loop_budget

    def _end(self, *, late: bool, at_work: int) -> None:
        """Note what came of the race; it was late if its time was up before it was decided."""
        recorder = self._recorder
        recorder.deliver = None  # It refers to the recorder.
        recorder.won = recorder.won or recorder.best_rank is not None
        recorder.log_errors()
        # The time may run out in the very moment in which the last turn ends.
        turns_left = (at_work > 0 or recorder.cut_short) and len(recorder.slices) < self._turns
        recorder.timed_out = late and (
            turns_left or any(s.outcome is Outcome.CANCELLED for s in recorder.slices)
        )

    def _open(self, producers: TaskGroup, chain: int) -> None:
        """Start the producer of a chain."""
        self._recorder.active += 1
        name = _task_name(self._recorder.sampling_id, chain + 1)
        producers.start_soon(produce, self._call, self._loop_budget, chain, chain, name=name)

    async def _keep_time(self, scheduler: Scheduler) -> None:
        """Run the scheduler's clock; it counts as a producer, for it may still open chains."""
        self._recorder.under_way += 1
        try:
            await scheduler.keep_time()
        finally:
            self._recorder.ended(-1)

    def _deliver(self) -> None:
        """Queue the slices recorded since the last time for hooks and the progress callback."""
        if self._delivery is not None:
            for slice_ in self._recorder.slices[self._delivery.taken :]:
                self._delivery.put(slice_)

    async def _await_producers(self) -> None:
        """Wait for cancelled producers; say which don't end when the grace period is over.

        One that has not begun is the task group's to wait for: when an event loop shuts down, it
        may never begin.
        """
        recorder, grace = self._recorder, self._call.settings.cancel_grace
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(grace):
                recorder.all_ended = anyio.Event()
                try:
                    await recorder.all_ended.wait()
                except anyio.get_cancelled_exc_class() as exc:
                    self._note_native(exc)
                    raise
            if recorder.under_way:
                _log_stuck_tasks(recorder.sampling_id, grace)

    def _note_native(self, cancellation: BaseException) -> None:
        """Keep a native cancellation: it leaves the call, whatever the task group makes of it."""
        if not scope_cancelled():
            self._left = type(cancellation)(*cancellation.args)


def first_in(error: BaseException) -> BaseException:
    """Return the first exception inside a group; any other as it is."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return first_in(inside[0]) if inside else error


def _task_name(sampling_id: str, lane: int | str) -> str:
    """Name the producer of a chain: for people, a chain is the lane that runs a draw."""
    return f"mellea_like {sampling_id} lane {lane}"


def _log_stuck_tasks(sampling_id: str, grace: float) -> None:
    """Log where each producer of a call stands that is still running."""
    for task in anyio.get_running_tasks():
        if task.name is not None and task.name.startswith(_task_name(sampling_id, "")):
            warn(
                "%s was cancelled %g s ago and still runs; the call waits for it. It is at:\n%s",
                task.name,
                grace,
                "\n".join(stack_of(task.coro)),
                sampling_id=sampling_id,
            )


# --- one producer


async def produce(call: CallContext, loop_budget: int, chain: int, last: int) -> None:
    """Run one chain, and those up to the last one after the other while nothing has passed.

    What must end the whole call is handed to its recorder, never raised.
    """
    recorder = call.recorder
    recorder.under_way += 1
    broken = False
    try:
        with recorder.scope_of(chain):
            broken = await _run_chain(call, loop_budget, chain)
        while chain < last and not (recorder.stopping or recorder.passed or recorder.cut_short):
            chain += 1
            with recorder.scope_of(chain):
                await _run_chain(call, loop_budget, chain)
    except BaseException as exc:
        cancellation, rest = split_cancellation(exc)
        if cancellation is not None and cancel_requested():
            recorder.cut_short = True
            # anyio leaves the exception in a cycle; drop the traceback to free the record at once.
            exc.__traceback__ = None
            raise
        # A backend may answer its cancellation with another, which no scope takes for its own.
        if cancellation is None or rest is not None or not recorder.was_cancelled(chain):
            recorder.abort(exc)  # It is raised again by the call, outside its task group.
    finally:
        recorder.ended(chain, broken=broken)
        del call, recorder


async def _run_chain(  # noqa: C901, PLR0912, PLR0915 (one loop, the hot one)
    call: CallContext, loop_budget: int, chain: int
) -> bool:
    """Run the iterations of a chain; tell whether a permanent error ended it."""
    recorder, scheduler = call.recorder, call.recorder.scheduler
    stages: tuple[CallContext, ...] = call.stages
    broken: CallContext | None = None
    action, context = call.inputs.action, call.inputs.context
    failures: list[Slice] = []
    to_repair: Slice | None = None
    begin = 0
    if recorder.at_pause is not None:
        begin, action, context, failures, to_repair = recorder.at_pause
    elif recorder.earlier is not None:
        begin, action, context, failures, to_repair = _replay(call, recorder.earlier, loop_budget)
    for depth in range(begin, loop_budget):
        if scheduler is None:
            turn = turn_of(chain, depth, loop_budget)
        elif (granted := await scheduler.turn_for(chain)) is not None:
            turn = granted
        else:
            return False
        if stages:
            at: CallContext = stages[min(turn.depth, len(stages) - 1)]
            changed, call = at is not call, at
            if call is broken or (call.stage is not None and call.stage.over):
                # A permanent error would come again; the next stage's turns are left.
                if scheduler is not None:
                    scheduler.unused(chain)
                continue
            if changed and to_repair is None:
                # The turn before has errored, or there was none; what failed earlier is carried on.
                action, context = call.inputs.action, call.inputs.context
                to_repair = _last(failures)
        if recorder.draws_left == 0:
            recorder.paused = not recorder.stopping
            recorder.at_pause = ChainState(depth, action, context, failures, to_repair)
            break
        if to_repair is not None and not recorder.stopping:
            # The backend ignored its cancellation, and no task waits that would notice.
            if recorder.over is None and cancel_requested():
                recorder.cut_short = True
                return False
            failures.append(to_repair)
            action, context = _repaired(call, failures)
            if call.repair_observed:
                await call.events.fire(
                    HookType.SAMPLING_REPAIR,
                    to_repair,
                    failed=to_repair,
                    action=action,
                    context=context,
                )
            to_repair = None
        if recorder.stopping or (recorder.ordered and not recorder.may_start(chain, turn)):
            return False
        if recorder.draws_left is not None:
            recorder.draws_left -= 1
        if recorder.selection is not None:
            recorder.selection.start(turn.iteration)
        iteration = Iteration(call, turn, chain, action, context)
        try:
            await iteration.attempt()
        except BaseException as exc:  # noqa: BLE001 (it raises again what must leave)
            iteration.take_exception(exc)
        finally:
            slice_ = iteration.finish()
            if scheduler is not None:
                scheduler.recorded(slice_)
            if call.stage is not None:
                call.stage.recorded(slice_)
        if slice_.outcome is _FAILED:
            to_repair = slice_
            if call.tally is not None and (why := call.tally.add(slice_)):
                recorder.hopeless(why)
        elif slice_.passed:
            if recorder.selection is None:
                return False
            if call.tally is not None:
                call.tally.add(slice_)
            # More are wanted: the next one is a draw of its own.
            action, context, failures = call.inputs.action, call.inputs.context, []
        elif cancel_requested():  # A backend may turn a cancellation into an error.
            recorder.cut_short = True
            recorder.broken = recorder.broken or not may_go_on(slice_)
            return False
        elif not may_go_on(slice_):
            recorder.broken = True
            if not stages or call is stages[-1]:
                return True
            broken = call
        elif slice_.verdicts and await _stop_at_repeated_bug(
            call, slice_, more=depth + 1 < loop_budget
        ):
            return False
    return False


def _repaired(call: CallContext, failures: list[Slice]) -> tuple[Action[Any], Context]:
    """Ask the strategy what to try next."""
    answer: object = call.repair(tuple(failures))
    if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
        action, context = pair
        if isinstance(context, Context):
            first = failures[0].action
            if action is first:
                return first, context
            if is_action(action):
                return action, context
    msg = f"{call.events.strategy}.repair returned {answer!r}, not (Action, Context)"
    raise TypeError(msg)


def _replayed(slice_: Slice, call: CallContext, action: Action[Any], context: Context) -> Slice:
    """Return a slice as it was when it was drawn.

    A record only describes what was asked and required. But `repair` is pure: so the action and the
    conversation that it gives now are those that it gave then. Where it words the action otherwise
    now, the words are those of the record.
    """
    # Imported lazily: most programs don't need it.
    from mellea_like.core.serialization import RecordedAction  # noqa: PLC0415

    if not isinstance(slice_.action, RecordedAction):
        return slice_  # It was never out of memory.
    reply = slice_.generation
    if reply is not None and reply.tool_calls and call.inputs.tools is not None:
        with suppress(ValueError):  # A call that didn't fit: it has failed for that.
            reply = call.inputs.tools.checked(reply, 1)
    elif reply is not None and reply.parsed and call.inputs.format is None:
        with suppress(Exception):  # It read the reply once: this is not the same text.
            reply = replace(reply, value=action.parse(reply.text))
    asked = slice_.action.text
    if (
        action is not call.inputs.action and asked
    ):  # Journals may keep no words of what has errored.
        if type(action) is Instruction and action.description != asked:
            action = replace(action, description=asked)
        elif (
            type(action) is Message
            and isinstance(action.content, str)  # Parts can't be made from a description.
            and action.content != asked
        ):
            action = replace(action, content=asked)
    known = {(r.name, r.description): r for r in call.validation.requirements}
    return replace(
        slice_,
        action=action,
        context=context,
        messages=tuple(action.render(context)),
        generation=reply,
        requirements=tuple(known.get((r.name, r.description), r) for r in slice_.requirements),
    )


def _last(failures: list[Slice]) -> Slice | None:
    """Take the last failure out again, if there is one."""
    return failures.pop() if failures else None


def _replay(call: CallContext, earlier: Mapping[int, Slice], loop_budget: int) -> ChainState:
    """Keep the slices of the earlier part of a call; return how far its one chain has come."""
    recorder, tally, inputs = call.recorder, call.tally, call.inputs
    action, context = inputs.action, inputs.context
    failures: list[Slice] = []
    to_repair: Slice | None = None
    for depth in range(loop_budget):
        found = earlier.get(turn_of(0, depth, loop_budget).iteration)
        if found is None:
            return ChainState(depth, action, context, failures, to_repair)
        if to_repair is not None:
            failures.append(to_repair)
            action, context = _repaired(call, failures)
            to_repair = None
        slice_ = _replayed(found, call, action, context)
        recorder.replay(slice_, _mark_of(slice_, call))
        if tally is not None and (slice_.outcome is _FAILED or slice_.passed):
            tally.add(slice_)
        if slice_.outcome is _FAILED:
            to_repair = slice_
        elif slice_.passed:
            action, context, failures = inputs.action, inputs.context, []
    return ChainState(loop_budget, action, context, failures, to_repair)


def _mark_of(slice_: Slice, call: CallContext) -> Any:
    """Return once more what the selection made of a slice that passed: a key, no score."""
    if call.mark is None or not slice_.passed or slice_.generation is None:
        return None
    seen = call.inputs.validation_context
    return call.mark(
        Candidate(
            slice_.generation.text,
            slice_.value,
            slice_.generation,
            slice_.context if seen is None else seen,
            slice_.action,
        )
    )


async def _stop_at_repeated_bug(call: CallContext, slice_: Slice, *, more: bool) -> bool:
    """Stop where a validator has the same bug with every reply; tell whether it has.

    Before its next draw, a chain gives its siblings as long again as its last one took: if
    theirs have the same bug, that draw is not paid for. An ordered call's chain looks at its
    own slices only, and does not stop its siblings: what comes of them must not depend on timing.
    """
    bug = bug_of(slice_)
    if bug is None:
        return False
    recorder = call.recorder
    if recorder.ordered:
        own = [other for other in recorder.slices if other.chain == slice_.chain]
        hopeless = times_seen(bug, own) >= FEWEST
        recorder.broken = recorder.broken or hopeless
        return hopeless
    times = times_seen(bug, recorder.slices)
    if times >= max(call.settings.concurrency_budget, FEWEST):
        recorder.hopeless(f"{bug}, with every reply ({times} so far)")
        return True
    # Without a next draw, the wait would only delay the call's end.
    if more and times and recorder.active > 1 and recorder.scheduler is None:
        await anyio.sleep(max(slice_.duration, PATIENCE))
    return False
