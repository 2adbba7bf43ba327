"""One call of `sample`: how it begins and ends.

The chains' work is in `race`, what plugins are told of it in `events`, and what comes of it in
`ending`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.backend import SPENDS_ON
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.conversation import Instruction, Message
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.errors import HookError, LimitExceeded, SamplingFailed
from mellea_like.hooks.dispatch import HookRun
from mellea_like.hooks.plugins import snapshot
from mellea_like.hooks.types import HookType
from mellea_like.requirements.staged_validation import StagedValidation
from mellea_like.runtime.event_loops import (
    clock,
    new_cancellations,
    scope_cancelled,
    split_cancellation,
)
from mellea_like.runtime.logs import warn
from mellea_like.sampling.call_state import CallContext, Recorder, SliceListener
from mellea_like.sampling.ending import Ending, Stop, conclude
from mellea_like.sampling.events import Delivery, Events
from mellea_like.sampling.race import Race
from mellea_like.sampling.sender import Sender
from mellea_like.telemetry.names import DECISION_KIND, DECISION_REASON, STOP_REASON, SUCCESS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.escalate import StageAtWork
    from mellea_like.sampling.prepare import CallInputs, Settings
    from mellea_like.sampling.scheduler import Scheduler
    from mellea_like.telemetry.call import CallTelemetry

__all__ = ["Call"]

DRAIN_SECONDS = 2.0
"""How long deliveries and background hooks may go on after the last iteration, in all."""

_NO_HOOKS = HookRun((), "")
_PAUSED = Ending(None, StopReason.EXHAUSTED, None)
_TEXT = (Instruction.parse, Message.parse)
"""Parsers that take any text."""


class Call:
    """One call; made, run once, and forgotten.

    One that goes on has the slices of its ``earlier`` turns. With ``draws``, it is paused after so
    many more: then its result is what there is so far, and `again` has it go on. Both are for a
    call of one subsample that has no schedule or stages, and no selection object but one that
    counts.
    """

    # Class-level defaults: most calls never change these, so pending calls use less memory.
    _begun = False
    _delivery: Delivery | None = None
    _due: Stop | None = None
    _ended: Ending | None = None
    _undelivered = 0

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        inputs: CallInputs,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None,
        earlier: Sequence[Slice] = (),
        draws: int | None = None,
    ) -> None:
        self._strategy = strategy
        self._settings = strategy.settings
        self._inputs = inputs
        self._on_slice = None if isinstance(on_slice, SliceListener) else on_slice
        self._begin(earlier[-1].ended_at if earlier else 0.0)
        self.context = self._context(self._settings, inputs)
        self._recorder = self.context.recorder
        self._recorder.draws_left = draws
        if isinstance(on_slice, SliceListener):
            self._recorder.listener = on_slice
        if earlier:
            self._recorder.earlier = {slice_.iteration: slice_ for slice_ in earlier}
        self._hooks = self.context.events.hooks
        self._inside = SPENDS_ON.get()
        if self._inside is not None:
            self._inside.add(self._recorder)

    def _begin(self, before: float) -> None:
        """Set the call's clock, which has run for some seconds."""
        self._before = before
        self._started_utc = datetime.now(UTC) - timedelta(seconds=before)

    def _context(self, settings: Settings, inputs: CallInputs) -> CallContext:
        """Build the state that all iterations share."""
        sampling_id = os.urandom(16).hex()
        name = type(self._strategy).__name__
        handlers = snapshot(settings.handlers)
        hooks = HookRun(handlers, sampling_id) if handlers else _NO_HOOKS
        telemetry = settings.telemetry.start_call(name, sampling_id)
        recorder = Recorder(sampling_id, ordered=settings.selection == "ordered")
        events = Events(hooks, telemetry, name, recorder)
        every = settings.validate_all
        every = self._strategy.needs_all_reasons if every is None else every
        sender, validation, watched, messages = _asking(inputs, settings, events, every=every)
        now = clock()
        started = now() - self._before
        call = CallContext(
            sampling_id,
            inputs,
            settings,
            self._strategy.repair,
            recorder,
            events,
            telemetry,
            sender,
            validation,
            every,
            watched,
            telemetry is not None
            or HookType.VALIDATION_PRE_CHECK in hooks.types
            or HookType.VALIDATION_POST_CHECK in hooks.types,
            HookType.SAMPLING_REPAIR in hooks.types,
            None if settings.give_up is None else settings.give_up.begin(),
            None if isinstance(settings.selection, str) else settings.selection.mark,
            messages,
            now,
            started,
            self._deadline(started, sampling_id),
            inputs.model,
        )
        return call._replace(stages=self._stages(call)) if inputs.stages else call

    def _stages(self, call: CallContext) -> tuple[CallContext, ...]:
        """Return what the turns of each depth go by."""
        escalate: Any = self._strategy  # No other has stages.
        inputs = self._inputs
        by_depth: list[CallContext] = []
        for stage, its, at_work in zip(
            call.settings.stages, inputs.stages, escalate.begin(inputs), strict=True
        ):
            sender, validation, watched, messages = _asking(
                its, call.settings, call.events, at_work, every=call.check_all
            )
            context = call._replace(
                inputs=its,
                repair=partial(stage.repair, its),
                sender=sender,
                validation=validation,
                watched=watched,
                messages=messages,
                model=its.model,
                stage=at_work,
            )
            by_depth += [context] * stage.turns
        return tuple(by_depth)

    def _deadline(self, started: float, sampling_id: str) -> float | None:
        """Return when the call's time is up: by its timeout, its schedule or a budget."""
        settings = self._settings
        deadline = None if settings.timeout is None else started + settings.timeout
        schedule = settings.schedule
        if schedule is not None and schedule.seconds is not None:
            due = started + schedule.seconds
            deadline = due if deadline is None else min(deadline, due)
        for budget in self._inputs.budgets:
            left = budget.seconds_left()
            up = None if left is None else started + self._before + left
            if up is not None and (deadline is None or up < deadline):
                deadline = up
                spent = (
                    f"sampling {sampling_id}: the time of budget {budget.name!r} is up"
                    f" ({left:.6g} s were left when the call began)"
                )
                self._due = Stop(StopReason.BUDGET, spent, LimitExceeded(spent))
        return deadline

    @property
    def paused(self) -> bool:
        """Whether the call made the draws that it was to make, and would go on."""
        return self._recorder.paused and self._recorder.fatal is None

    @property
    def keeps(self) -> bool:
        """Whether it can go on where it is, once it is paused: nothing hears of its rounds."""
        return self.context.telemetry is None and not self._hooks.types and self._on_slice is None

    def again(self, listener: SliceListener | None, draws: int) -> None:
        """Have a paused call make so many more draws when it is run; the pause takes no time."""
        recorder = self._recorder
        recorder.listener, recorder.draws_left, recorder.paused = listener, draws, False
        self._begin(recorder.slices[-1].ended_at)
        started = self.context.clock() - self._before
        deadline = self._deadline(started, recorder.sampling_id)
        self.context = self.context._replace(started=started, deadline=deadline)

    @property
    def budget_spent(self) -> str:
        """Say which budget was spent, if that stopped the call."""
        stopped = self._recorder.stopped
        return stopped.detail if stopped is not None and stopped.reason is StopReason.BUDGET else ""

    async def run(self) -> SamplingResult[Any]:
        """Run the call; see `BaseSamplingStrategy.sample` for what it raises."""
        telemetry = self.context.telemetry
        return await (self._run() if telemetry is None else self._run_traced(telemetry))

    async def _run_traced(self, telemetry: CallTelemetry) -> SamplingResult[Any]:
        with telemetry.call() as span:
            try:
                return await self._run()
            finally:
                ended = self._ended
                reason = StopReason.CANCELLED if ended is None else ended.stop_reason
                span.set({STOP_REASON: reason.value, SUCCESS: bool(ended and ended.success)})
                if ended is not None and (decided := ended.decision) is not None:
                    span.set({DECISION_KIND: decided.kind, DECISION_REASON: decided.reason})

    async def _run(self) -> SamplingResult[Any]:
        if self._hooks.types or self._on_slice is not None:
            await self._run_with_hooks()
        else:
            await self._race(self._settings.loop_budget)
        if self.paused and self.keeps:
            return self._result(_PAUSED)
        # A caller who left while the call was ending is told so, and handed no result.
        await checkpoint_if_cancelled()
        ending = self._conclude()
        if self._hooks.interrupt is not None:
            raise self._hooks.interrupt
        if ending.error is not None and not self.paused:
            # An error that comes from a call inside this one has a record already.
            error = ending.error
            if (
                isinstance(error, HookError | LimitExceeded | SamplingFailed)
                and error.result is None
            ):
                error.result = self._result(ending)
            if self._inside is not None and is_of_backend(error):
                error.retried = self._settings.retry is not None  # type: ignore[attr-defined]
            raise error
        return self._result(ending)

    async def _run_with_hooks(self) -> None:
        """Run the turns inside a task group for hooks, which outlives them.

        Its tasks are shielded: neither a cancellation of the caller, however often repeated, nor
        our own cancelling of the producers, cuts a hook short. Only the clock does.
        """
        events, recorder = self.context.events, self._recorder
        left: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            if self._hooks.types:  # Without any, it is an object that all calls share.
                self._hooks.open(tasks)
            if self._on_slice is not None or HookType.SAMPLING_ITERATION in self._hooks.types:
                self._delivery = Delivery(events, self._on_slice)
                tasks.start_soon(self._delivery.run)
            cancelled = True
            try:
                self._begun = True
                loop_budget = self._settings.loop_budget
                if HookType.SAMPLING_LOOP_START in self._hooks.types:
                    loop_budget = await events.loop_start(self._inputs, self._settings)
                await self._race(loop_budget)
                cancelled = False
            except anyio.get_cancelled_exc_class() as exc:
                if not scope_cancelled():
                    left = type(exc)(*exc.args)
                raise
            except BaseException as exc:  # noqa: BLE001 (raised when the tasks have ended)
                recorder.abort(exc)
                cancelled = False
            finally:
                tasks.start_soon(self._close, cancelled)
        if left is not None:
            # Nothing of ours cancels this task group. Where a time limit ran out as well, anyio
            # (4.16) takes a native cancellation for its own.
            try:
                raise left
            finally:
                del left  # Break the cycle between frame and exception.

    async def _race(self, loop_budget: int) -> None:
        race = Race(self.context, loop_budget, self._delivery)
        selection = self._settings.selection
        comparisons: Callable[[], Awaitable[None]] | None = None
        if not isinstance(selection, str):
            # Imported lazily: most programs don't need it.
            from mellea_like.sampling.selection_runner import begin_selection, compare  # noqa: PLC0415

            state = self._recorder.selection
            if state is None:
                turns = loop_budget * self._settings.concurrency_budget
                state = begin_selection(selection, self._inputs, self._settings, turns)
                self._recorder.selection = state
            comparisons = partial(compare, self.context, state)
        scheduler = self._scheduler(loop_budget)
        # Where a draw can't fail, there is nothing to race.
        if scheduler is None and (
            self._settings.concurrency_budget == 1
            or not (self._recorder.selection is not None or self._can_fail())
        ):
            with new_cancellations():
                await race.run_alone()
        else:
            await race.run(scheduler)
        if comparisons is not None and not self._recorder.paused:
            await comparisons()

    def _can_fail(self) -> bool:
        """Tell whether a draw may fail otherwise than by its backend, or by being incomplete."""
        return bool(
            self._inputs.requirements
            or self._inputs.format is not None
            or self._inputs.tools is not None
            or self._hooks.decides(HookType.VALIDATION_PRE_CHECK)
            or self._hooks.decides(HookType.VALIDATION_POST_CHECK)
            or getattr(type(self._inputs.action), "parse", None) not in _TEXT
        )

    def _scheduler(self, loop_budget: int) -> Scheduler | None:
        """Return what starts the iterations; None where all chains start at once."""
        schedule, width = self._settings.schedule, self._settings.concurrency_budget
        selection = self._recorder.selection
        # In rounds, one chain draws once after another: it is never ahead of what is wanted.
        in_rounds = self._recorder.draws_left is not None or self._recorder.earlier is not None
        enough = selection is None or in_rounds or selection.wanted() >= width * loop_budget
        if schedule is None and enough:
            return None
        # Imported lazily: most programs don't need it.
        from mellea_like.sampling.scheduler import Scheduler, TurnPool  # noqa: PLC0415
        from mellea_like.schedules import CallFacts, Eager  # noqa: PLC0415

        if schedule is None or (selection is not None and isinstance(schedule, Eager)):
            schedule = Eager(pool=True)

        inputs = self._inputs
        facts = CallFacts(inputs.action, inputs.requirements, width, loop_budget, inputs.model)
        planned = schedule.begin(facts)
        if planned is None:
            return None
        # Where several are to pass, any chain may take the turns that another does not come to.
        pool = TurnPool(width, loop_budget, pooled=schedule.pooled or selection is not None)
        return Scheduler(
            planned,
            pool,
            most=width,
            extra=schedule.extra,
            wanted=None if selection is None else selection.wanted,
            clock=self._now,
            abort=self._recorder.abort,
        )

    def _now(self) -> float:
        """Return the seconds since the call began."""
        return self.context.clock() - self.context.started

    # The end

    def _conclude(self, cancelled: bool = False) -> Ending:  # noqa: FBT001, FBT002
        """Decide how the call ended, once."""
        if self._ended is None:
            recorder = self._recorder
            stopped = recorder.stopped
            if stopped is None and recorder.timed_out:
                stopped = self._due
            self._ended = conclude(
                recorder.slices,
                selection=self._settings.selection,
                selected=recorder.selection,
                select_from_failure=self._strategy.select_from_failure,
                strategy=type(self._strategy).__name__,
                won=recorder.won,
                fatal=recorder.fatal,
                late=recorder.late,
                timed_out=recorder.timed_out,
                stopped=stopped,
                broken=recorder.broken,
                cancelled=cancelled,
                sampling_id=recorder.sampling_id,
            )
            if recorder.late is not None:
                if self._ended.success:
                    recorder.too_late(recorder.late)
                else:
                    recorder.fatal = recorder.late
        return self._ended

    def _result(self, ending: Ending) -> SamplingResult[Any]:
        return SamplingResult(
            slices=tuple(self._recorder.slices),
            best_index=ending.best_index,
            stop_reason=ending.stop_reason,
            sampling_id=self._recorder.sampling_id,
            started=self._started_utc,
            elapsed=self._now(),
            undelivered=self._undelivered,
            stop_detail=ending.stop_detail,
            decision=ending.decision,
            toolbox=self._inputs.tools,
        )

    async def _close(self, cancelled: bool) -> None:  # noqa: FBT001
        """Deliver what is left, fire the last hook, and stop the hooks' tasks; bounded in time."""
        unfinished = 0
        hooks = self._hooks
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(DRAIN_SECONDS) as drain:
                if self._delivery is not None:
                    await self._delivery.drain()
            if self._delivery is not None:
                self._undelivered = self._delivery.stop()
            if self._begun and HookType.SAMPLING_LOOP_END in hooks.types:
                events, slices = self.context.events, self._recorder.slices
                try:
                    ending = self._conclude(cancelled)
                    await events.loop_end(slices, ending, self._started_utc, self._now())
                except Exception as exc:  # noqa: BLE001 (logged; the outcome stands)
                    self._warn("%s: %s", type(exc).__name__, exc)
                except BaseException as exc:
                    if split_cancellation(exc)[0] is not None:
                        raise
                    hooks.interrupt = exc
            with anyio.CancelScope(deadline=drain.deadline):
                await hooks.drain()
            unfinished = hooks.stop()
        if self._undelivered or unfinished:
            self._warn(
                "gave up after %g s: %d draws not handed to hooks, %d background hooks cut short",
                DRAIN_SECONDS,
                self._undelivered,
                unfinished,
            )

    def _warn(self, message: str, *what: object) -> None:
        warn(message, *what, sampling_id=self._recorder.sampling_id)


def _asking(
    inputs: CallInputs,
    settings: Settings,
    events: Events,
    stage: StageAtWork | None = None,
    *,
    every: bool,
) -> tuple[Sender, StagedValidation, bool, tuple[Message, ...] | None]:
    """Return what sends a call's requests and checks the replies; see `CallContext`."""
    streams = hasattr(inputs.backend, "stream")
    # With tools, a reply may begin with words and go on with a call: nothing can be said of its
    # value then, nor of its text where the draw itself goes on after that.
    tools = inputs.tools
    checked = (tools is None or not tools.run_in_draws) and any(
        r.streams for r in inputs.requirements
    )
    checked_early = inputs.requirements if checked else ()
    # Where all reasons are wanted, the first wrong field isn't enough.
    by_format = (
        inputs.format is not None and not every and (tools is None or tools.choice == "none")
    )
    calls = tools.watches(every=every) if streams and tools is not None else None
    watched = streams and bool(checked_early or by_format or calls)
    # A user's `render` may depend on anything; for these two classes it can run once, now.
    known = type(inputs.action) in (Instruction, Message)
    return (
        Sender(
            inputs.backend,
            settings.retry,
            inputs.budgets,
            events,
            checked_early if streams else (),
            stage,
            by_format=by_format and streams,
            calls=calls,
        ),
        StagedValidation(inputs.requirements),
        watched,
        tuple(inputs.action.render(inputs.context)) if known else None,
    )
