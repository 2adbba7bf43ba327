"""One call of `sample`: what it knows, and how it begins and ends.

The subsamples' work is in `race`, what plugins are told of it in `events` and `delivery`, and what
comes of it in `ending`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.action import Instruction
from mellea_like.core.current import SPENDS_ON
from mellea_like.core.generation import why_incomplete
from mellea_like.core.message import Message
from mellea_like.core.options import Options
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.wrapping import innermost
from mellea_like.errors import BackendError, HookError, LimitExceeded, SamplingFailed
from mellea_like.hooks.dispatch import HookRun
from mellea_like.hooks.registry import snapshot
from mellea_like.hooks.types import HookType
from mellea_like.limits.retry import gate_before
from mellea_like.requirements.validate import Checklist
from mellea_like.runtime.logs import warn
from mellea_like.runtime.native import clock, scope_cancelled, split_cancellation
from mellea_like.sampling import events
from mellea_like.sampling.asking import surrounded
from mellea_like.sampling.delivery import Delivery
from mellea_like.sampling.ending import Ending, Stop, conclude
from mellea_like.sampling.race import Race
from mellea_like.telemetry.names import STOP_REASON

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.action import Action
    from mellea_like.core.backend import Backend
    from mellea_like.core.context import Context
    from mellea_like.core.generation import Generation
    from mellea_like.core.slice import Slice
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.giving_up import Tally
    from mellea_like.sampling.prepare import Plan
    from mellea_like.sampling.scheduler import Conductor
    from mellea_like.sampling.schedules.base import Schedule

__all__ = ["Call"]

DRAIN_SECONDS = 2.0
"""How long deliveries and background hooks may go on after the last iteration, in all."""


_NO_HOOKS = HookRun((), "")
_TEXT = (Instruction.parse, Message.parse)
"""Parsers that take any text."""


class Call:
    """The state of one call; made, run once, and forgotten.

    Args:
        strategy: whose call it is.
        plan: what it does.
        on_slice: the user's progress callback.
    """

    # What most calls never change stands here, for a pending call takes memory.
    fatal: BaseException | None = None
    gate: BackoffGate | None = None
    tally: Tally | None = None
    rendered: tuple[Message, ...] | None = None
    _begun = False
    _delivery: Delivery | None = None
    _due: Stop | None = None
    _ended: Ending | None = None
    _too_late: BaseException | None = None
    _undelivered = 0

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
        self.watched = any(r.streams for r in plan.requirements) and hasattr(plan.backend, "stream")
        self.backend = surrounded(plan.backend, self, watched=self.watched)
        self.gate = gate_before(plan.backend)
        if settings.give_up is not None:
            self.tally = settings.give_up.begin(plan.requirements)
        self.checklist = Checklist(plan.requirements)
        # Only by its backend, or by being cut off: no verdict and no parser can fail it.
        self.can_fail = bool(
            plan.requirements
            or plan.format is not None
            or self.hooks.decides(HookType.VALIDATION_PRE_CHECK)
            or self.hooks.decides(HookType.VALIDATION_POST_CHECK)
            or getattr(type(plan.action), "parse", None) not in _TEXT
        )
        self._judges: dict[int, Backend] = {}
        self._on_slice = on_slice

        self.clock = clock()
        self.started = self.clock()
        self._started_utc = datetime.now(UTC)
        self.race = Race(self.sampling_id, settings)
        self._inside = SPENDS_ON.get()
        if self._inside is not None:
            self._inside.add(self.race)
        self.deadline = None if settings.timeout is None else self.started + settings.timeout
        if settings.schedule is not None or plan.budgets:
            self._bring_deadline_forward(settings.schedule)

    def _bring_deadline_forward(self, schedule: Schedule | None) -> None:
        """Let the call's time be up when the schedule or a budget says so, if that is sooner."""
        if schedule is not None and schedule.seconds is not None:
            due = self.started + schedule.seconds
            self.deadline = due if self.deadline is None else min(self.deadline, due)
        for budget in self.plan.budgets:
            left = budget.seconds_left()
            if left is not None and (self.deadline is None or self.started + left < self.deadline):
                self.deadline = self.started + left
                spent = (
                    f"sampling {self.sampling_id}: the time of budget {budget.name!r} is up"
                    f" ({left:.6g} s were left when the call began)"
                )
                self._due = Stop(StopReason.BUDGET, spent, LimitExceeded(spent))

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

    def why_incomplete(self, reply: Generation) -> str:
        """Say why a reply is no whole answer; empty for one that is, or that is accepted."""
        if self.strategy.settings.accept_incomplete:
            return ""
        asked = (self.plan.options, getattr(innermost(self.plan.backend), "defaults", None))
        extras = [options.extra for options in asked if isinstance(options, Options)]
        tools = any(extra.get("tools") or extra.get("functions") for extra in extras)
        return why_incomplete(reply, tools=tools)

    def surrounded_judge(self, judge: Backend) -> Backend:
        """Return a judge as the call's producers use it."""
        if id(judge) not in self._judges:
            self._judges[id(judge)] = surrounded(judge, self)
        return self._judges[id(judge)]

    def conductor(self) -> Conductor | None:
        """Return what starts the iterations; None where all subsamples start at once."""
        settings = self.strategy.settings
        schedule = settings.schedule
        if schedule is None:
            return None
        # Most programs have no schedule, and are not to load what it needs.
        from mellea_like.sampling.pool import TurnPool  # noqa: PLC0415
        from mellea_like.sampling.scheduler import Conductor  # noqa: PLC0415
        from mellea_like.sampling.schedules.base import CallFacts  # noqa: PLC0415

        width, model = settings.concurrency_budget, self.plan.model
        facts = CallFacts(self.plan.action, self.plan.requirements, width, self.loop_budget, model)
        course = schedule.begin(facts)
        if course is None:
            return None
        pool = TurnPool(width, self.loop_budget, pooled=schedule.pooled)
        return Conductor(
            course, pool, most=width + schedule.extra, clock=self.now, abort=self.abort
        )

    def abort(self, error: BaseException, source: str = "the strategy") -> None:
        """End the call with an error, unless it is won already.

        Args:
            error: what the call is to raise.
            source: what raised it, for a cancellation that no one asked for.
        """
        cancellation, rest = split_cancellation(error)
        if cancellation is not None:
            # Nobody asked for it: it must not leave the call as if someone had.
            stray = RuntimeError(f"{source} raised a cancellation that no one asked for")
            stray.__cause__ = error
            error = stray if rest is None else rest
        if error is self.fatal or error is self._too_late:
            return
        interrupt = not isinstance(error, Exception)
        if (self.race.won or self.fatal is not None) and not interrupt:
            self._too_late = error
            warn(
                "after the call was decided: %s: %s",
                type(error).__name__,
                error,
                sampling_id=self.sampling_id,
            )
            return
        self.fatal = error
        self.race.stop()

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
            await self.race.run(self, self._delivery)
        # A caller who left while the call was ending is told so, and handed no result.
        await checkpoint_if_cancelled()
        ending = self._conclude()
        if self.hooks.interrupt is not None:
            raise self.hooks.interrupt
        if ending.error is not None:
            # An error that comes from a call inside this one has a record already.
            error = ending.error
            if (
                isinstance(error, HookError | LimitExceeded | SamplingFailed)
                and error.result is None
            ):
                error.result = self._result(ending)
            if self._inside is not None and isinstance(error, BackendError):
                error.retried = self.strategy.settings.retry is not None
            raise error
        return self._result(ending)

    async def _run_with_hooks(self) -> None:
        """Run the turns inside a task group for hooks, which outlives them.

        Its tasks are shielded: neither a cancellation of the caller, however often repeated, nor
        our own cancelling of the producers, cuts a hook short. Only the clock does.
        """
        left: BaseException | None = None
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
                await self.race.run(self, self._delivery)
                cancelled = False
            except anyio.get_cancelled_exc_class() as exc:
                if not scope_cancelled():
                    left = type(exc)(*exc.args)
                raise
            except BaseException as exc:  # noqa: BLE001 (raised when the tasks have ended)
                self.abort(exc)
                cancelled = False
            finally:
                tasks.start_soon(self._close, cancelled)
        if left is not None:
            # Nothing of ours cancels this task group. Where a time limit ran out as well, anyio
            # (4.16) takes a native cancellation for its own.
            try:
                raise left
            finally:
                del left  # A frame that holds its own exception waits for the collector.

    # The end

    def _conclude(self, cancelled: bool = False) -> Ending:  # noqa: FBT001, FBT002
        """Decide how the call ended, once."""
        if self._ended is None:
            stopped = self.race.stopped
            if stopped is None and self.race.timed_out:
                stopped = self._due
            self._ended = conclude(
                self.race.slices,
                selection=self.strategy.settings.selection,
                select_from_failure=self.strategy.select_from_failure,
                strategy=type(self.strategy).__name__,
                fatal=self.fatal,
                timed_out=self.race.timed_out,
                stopped=stopped,
                cancelled=cancelled,
                sampling_id=self.sampling_id,
            )
        return self._ended

    def _result(self, ending: Ending) -> SamplingResult[Any]:
        return SamplingResult(
            slices=tuple(self.race.slices),
            best_index=ending.best_index,
            stop_reason=ending.stop_reason,
            sampling_id=self.sampling_id,
            started=self._started_utc,
            elapsed=self.now(),
            undelivered=self._undelivered,
            stop_detail=ending.stop_detail,
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
