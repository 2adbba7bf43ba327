"""The race of a call's lanes. Each lane asks a plan what to do next: run a `Body`, wait, or end.

A body is a draw, and leaves a record (a slice). `Race.record` keeps the slice, reports it to the
plan, to ``hear`` until the call is won, and to ``tell``, and carries out the rulings. This is one
synchronous step, so a cancellation can't interrupt it. Only after this step do waiting lanes wake
up.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.kernel.ports import Ask, Ruling, Stop, Wait
from mellea_like.runtime.event_loops import (
    WatchedEvent,
    cancellation_lost,
    first_in,
    native_cancel_requests,
    scope_cancelled,
    split_cancellation,
)
from mellea_like.runtime.logs import warn
from mellea_like.runtime.task_stack import see_the_end
from mellea_like.runtime.waiting_lanes import WaitingLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.slice import Outcome
    from mellea_like.kernel.ports import Body, Next, Plan

__all__ = ["Race"]


@dataclass(slots=True, eq=False, repr=False)
class Race:
    """Runs lanes that ask a plan for draws, until a ruling ends the race or no attempt is left.

    Times are on the event loop's clock. These flags tell how far the race is:

    - ``stopped``: no draw starts any more; the running ones may continue.
    - ``over``: a ruling has also cancelled the running draws. ``won`` says that it decided the
      call; otherwise ``why`` or ``fatal`` says what ended it.
    - ``_leaving``: the call's task has cancelled the running draws, or found them ended: because
      the race was over, the time was up (``time_up``), or the caller was cancelled.
    """

    plan: Plan
    body: Callable[[Ask, float], Body]
    _: KW_ONLY
    clock: Callable[[], float]
    started: float
    hear: Sequence[tuple[Outcome | None, Callable[[Any], Ruling | None]]] = ()
    """Pairs of an outcome (None for any) and a function, which gets each slice (a draw's record)
    with this outcome until the call is won."""
    tell: Sequence[Callable[[Any], None]] = ()
    """Functions that get every slice, in the order of ``slices``."""
    stops: Sequence[Callable[[], None]] = ()
    """Functions that are called when no further draw may start."""
    ends: Sequence[Callable[[], None]] = ()
    """Functions that are called when all lanes have ended."""
    deadline: float = math.inf
    grace: float = 5.0
    """A draw that ignores its cancellation for this many seconds is logged."""
    name: str = ""
    slices: list[Any] = field(default_factory=list[Any])
    next: Callable[[int, float], Next] = field(init=False)
    # By lane: dicts would take three times the memory, and a thousand calls may wait.
    running: list[Body | None] = field(init=False)
    _scopes: list[anyio.CancelScope | None] = field(init=False)
    over: bool = False
    """Whether a ruling has ended the race and cancelled the running draws."""
    won: bool = False
    """Whether enough draws have passed, so that draws that end later don't matter."""
    stopped: bool = False
    """Whether no draw may start any more."""
    time_up: bool = False
    """Whether the time was up before the call was decided."""
    fatal: BaseException | None = None
    """The error that the call must raise; None if there is none."""
    why: Stop | None = None
    """Why the call was stopped before its attempts were spent; None if it wasn't."""
    _too_late: BaseException | None = None
    _hold: float = 0.0  # A ruling sets it while a slice is recorded; that slice's lane reads it.
    _waiting: WaitingLanes | None = None  # Most calls have no lane that waits.
    _alone: bool = False  # Whether the only lane runs in the caller's task.
    _leaving: bool = False  # Whether the lanes have ended, or were told to end.
    _told: int = 0  # How many slices ``tell`` has got.
    _decided: int = 0  # How many slices there were when the race ended; later ones get sorted.
    _native: int = 0  # How many `native_cancel_requests` were older than the race.
    _alive: int = field(init=False)  # How many lanes have not ended, begun or not.
    _under_way: int = 0  # How many lanes have begun and not ended.
    _wakes_call: WatchedEvent | anyio.Event | None = None  # None if the only lane runs alone.
    _dropped: tuple[Callable[[Ask], bool], ...] = ()
    _scope_type: type[anyio.CancelScope] = field(init=False)

    def __post_init__(self) -> None:
        self.next = self.plan.next
        self.running = [None] * self.plan.lanes
        self._scopes = [None] * self.plan.lanes
        self._alive = self.plan.lanes

    # One step without an await: the record, and what follows from it

    def record(self, slice_: Any) -> None:
        """Keep the slice of a draw that has ended, and report it to the plan and the listeners."""
        # Read before the slice is heard, because the slice that decides the call is told at once.
        undecided, telling = not self.won, self.tell and not (self.over or self._leaving)
        self.slices.append(slice_)
        try:
            self.plan.hear(slice_)
            if undecided:  # Slices that end after the decision can't change it.
                outcome = slice_.outcome
                for hears, hear in self.hear:
                    if hears is outcome or hears is None:
                        ruling = hear(slice_)
                        if isinstance(ruling, Ruling):
                            self.rule(ruling)
                        elif ruling is not None:
                            msg = f"{hear!r} must return a Ruling or None, not {ruling!r}"
                            raise TypeError(msg)
        except Exception as exc:  # noqa: BLE001 (a bug in a plan or an option: the call raises it)
            self.rule(Ruling(fatal=exc))
        # The siblings' cancellation is requested by now, so a listener can't delay it. Slices that
        # end after the decision are told later, in an order that doesn't depend on the event loop.
        if telling:
            self._tell_all()
        if self._waiting is not None:
            self._waiting.wake()

    def replay(self, slice_: Any) -> None:
        """Keep a slice of an earlier round of the call, and report it to the plan and listeners."""
        self._told += 1
        self.record(slice_)

    def rule(self, ruling: Ruling) -> None:
        """Carry out a ruling: stop or end the race, drop draws, or keep an error for the call."""
        over, stop, drop, fatal, why, hold = ruling
        self._hold = hold or self._hold
        if fatal is not None:
            over = self._accept(fatal)
        elif over and why is None:
            self.won = True  # Even after the race has ended: the draw was paid for, and it passed.
        if self.over:
            return
        # The first reason counts, and none that comes after the last draw could start.
        if why is not None and self.why is None and not self.stopped:
            self.why = why
        if drop is not None:
            self._dropped += (drop,)
            for body, scope in zip(self.running, self._scopes, strict=True):
                if body is not None and scope is not None and drop(body.ask):
                    scope.cancel()
        if over or stop:
            self._stop()
        if over:
            self._end()

    def _end(self) -> None:
        """Cancel the running draws."""
        self.over = True
        if not self._leaving:
            self._decided = len(self.slices)
        self._cancel_lanes()
        if self._wakes_call is not None:
            self._wakes_call.set()  # The call's task wakes, and logs lanes that don't end soon.

    def _cancel_lanes(self) -> None:
        for scope in self._scopes:
            if scope is not None:
                scope.cancel()

    def _stop(self) -> None:
        """Prevent further draws from starting."""
        if not self.stopped:
            self.stopped = True
            for stops in self.stops:
                stops()
        if self._waiting is not None:
            self._waiting.wake_all()

    def _leave(self, deadline: anyio.CancelScope) -> None:
        """Cancel the running draws and let no other start, because the call's task leaves."""
        if not self._leaving:
            self._leaving = True
            self.time_up = not self.over and deadline.cancel_called
            self._stop()
            if not self.over:
                self._decided = len(self.slices)
            self._cancel_lanes()

    @property
    def ended(self) -> bool:
        """Whether all lanes have ended."""
        return not self._alive

    def _accept(self, fatal: BaseException) -> bool:
        """Keep an error for the call to raise, and return True; if it is too late, only log it."""
        cancellation, rest = split_cancellation(fatal)
        if cancellation is not None:
            # Nobody asked for it, so it must not leave the call as a cancellation.
            stray = RuntimeError("the strategy raised a cancellation that no one asked for")
            stray.__cause__ = fatal
            fatal = stray if rest is None else rest
        if fatal in (self.fatal, self._too_late):
            return False
        if isinstance(fatal, Exception) and (self.won or self.fatal is not None):
            self._too_late = fatal
            message = "after the call was decided: %s: %s"
            warn(message, type(fatal).__name__, fatal, sampling_id=self.name)
            return False
        self.fatal = fatal
        return True

    def _tell_all(self) -> None:
        for slice_ in self.slices[self._told :]:
            self._told += 1
            for tell in self.tell:
                try:
                    tell(slice_)
                except Exception as exc:  # noqa: BLE001 (a bug in it: the call raises it)
                    self.rule(Ruling(fatal=exc))

    # The lanes

    async def run(self) -> None:
        """Run the lanes until all have ended. The caller must then raise ``fatal``, if it is set.

        If the caller is cancelled, the cancellation is raised after all lanes have ended.
        """
        # A caller may clean up after a cancellation: only a newer one counts.
        self._native = native_cancel_requests()
        try:
            if self.plan.lanes == 1:  # It needs no task of its own, and so no event and no shield.
                await self._run_alone()
            else:
                await self._run_lanes()
        finally:
            self._finish()
        # A backend may have swallowed a cancellation. A native one (`task.cancel()`) comes only
        # once, so a new one takes its place. That of a scope around us comes at each checkpoint.
        if cancellation_lost(self._native):
            raise anyio.get_cancelled_exc_class()
        await checkpoint_if_cancelled()

    def _finish(self) -> None:
        """Tell listeners about the slices not yet reported, and then that all lanes have ended."""
        self.stopped = self._leaving = True
        self._wakes_call = None  # It refers to this race, and a cycle would keep both in memory.
        # Cancelled siblings end in whatever order the event loop keeps its tasks in. Sorted by
        # time and id, two runs can be compared.
        rest = sorted(self.slices[self._decided :], key=lambda s: (s.ended_at, s.iteration))
        self.slices[self._decided :] = rest
        if self.tell:
            self._tell_all()
        for ended in self.ends:
            ended()

    async def _run_alone(self) -> None:
        """Run the only lane in the caller's task."""
        self._alone = True
        deadline = self._scopes[0] = anyio.CancelScope(deadline=self.deadline)
        try:
            with deadline:
                try:
                    try:
                        # In the deadline's scope, since nothing drops a draw of it.
                        await self._draws(0, deadline)
                    except BaseException as exc:  # noqa: BLE001 (raised, unless the call raises it)
                        if (cancelled := self._left(exc)) is not None:
                            raise cancelled from None
                    finally:
                        self._scopes[0] = None  # Later rulings find nothing to cancel.
                        self._alive = 0
                except anyio.get_cancelled_exc_class() as exc:
                    # anyio keeps the exception in a cycle, and its frames hold the records.
                    exc.__traceback__ = None
                    raise
                finally:
                    self._leave(deadline)
        except anyio.get_cancelled_exc_class():
            # A backend may raise a cancellation other than its own, which no scope absorbs. The
            # cancellation of a scope around us is raised again by a checkpoint, in `run`.
            native = native_cancel_requests() > self._native
            if native or not (scope_cancelled() or deadline.cancel_called):
                raise

    async def _run_lanes(self) -> None:
        """Run each lane in its own task."""
        deadline = anyio.CancelScope(deadline=self.deadline)
        self._wakes_call = woken = WatchedEvent(on_cancel=partial(self._leave, deadline))
        self._scope_type = type(deadline)  # Anyio looks it up for each scope, which takes 1 µs.
        async with anyio.create_task_group() as tasks:
            for lane in range(self.plan.lanes):
                name = f"mellea_like {self.name} lane {lane + 1}"
                tasks.start_soon(self._lane, lane, name=name)
            # The lanes are shielded: a cancellation from outside, and the deadline, reach only this
            # task's wait. In that same step, the event sets the flag and then cancels the lanes. So
            # none of them starts a turn afterwards, even if it runs before this task does, or its
            # backend swallows the cancellation.
            with deadline:
                try:
                    await woken.wait()
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as exc:  # noqa: BLE001 (an interrupt; the call raises it)
                    self.rule(Ruling(fatal=exc))
                finally:
                    self._leave(deadline)
                    # A lane that has not begun is left to the task group: when an event loop shuts
                    # down, it may never begin.
                    if self._under_way:
                        # The task group waits for the lanes anyhow; this logs those that don't end.
                        # A ruling may have set the first event.
                        self._wakes_call = still = anyio.Event()
                        lanes = f"mellea_like {self.name} lane "
                        await see_the_end(still, lanes, self.grace, self.name)

    def resume(self, started: float, deadline: float | None) -> None:
        """Let draws start again after the lanes have ended."""
        self.started = started
        self.deadline = math.inf if deadline is None else deadline
        self.stopped = self._leaving = False
        self._alive = self.plan.lanes

    def forget(self) -> None:
        """Drop what refers to the call, so that its records can be freed."""
        del self.plan, self.next, self.body
        self.hear = self.tell = self.stops = self.ends = ()
        self._dropped = ()
        self.slices = []

    async def _lane(self, lane: int) -> None:
        """Run one lane in a cancel scope; if a draw is dropped, continue in a new scope."""
        self._under_way += 1
        try:
            more = True
            while more and not self.stopped:
                scope = self._scopes[lane] = self._scope_type(shield=True)
                try:
                    with scope:
                        try:
                            more = await self._draws(lane, scope)
                        except anyio.get_cancelled_exc_class() as exc:
                            # anyio keeps it in a cycle, and its frames hold the records.
                            exc.__traceback__ = None
                            raise
                except BaseException as exc:
                    # A backend may raise a cancellation of its own in place of the scope's, which
                    # then lets it pass.
                    if not self._absorbs(scope, exc):
                        raise
        except BaseException as exc:  # noqa: BLE001 (the call raises what isn't a cancellation)
            if (left := self._left(exc)) is not None:
                raise left from None
        finally:
            self._end_lane(lane)

    def _absorbs(self, scope: anyio.CancelScope, exc: BaseException) -> bool:
        """Return whether an exception is only the cancellation of the lane's scope by a ruling."""
        cancellation, rest = split_cancellation(exc)
        ours = scope.cancel_called and not self.asked_to_stop()
        return cancellation is not None and rest is None and ours

    def _left(self, exc: BaseException) -> BaseException | None:
        """Return the cancellation that a lane must raise. Make any other error the call's error."""
        cancellation, _ = split_cancellation(exc)
        if cancellation is None or not self.asked_to_stop():
            self.rule(Ruling(fatal=exc))
            return None
        return first_in(cancellation)  # trio's may be a group; callers expect a plain one.

    def _end_lane(self, lane: int) -> None:
        self._scopes[lane] = None
        self._alive -= 1
        self._under_way -= 1
        if self._waiting is not None:
            self._waiting.promote()
            self._check_standstill()
        # Once the call leaves, a lane that has not begun may never begin.
        done = not self._under_way if self._leaving else not self._alive
        if done and self._wakes_call is not None:
            self._wakes_call.set()

    async def _draws(self, lane: int, scope: anyio.CancelScope) -> bool:
        """Draw until the plan ends the lane; return whether the lane continues in a new scope."""
        clock, started = self.clock, self.started
        now = clock() - started
        while not self.stopped:
            ask = self.next(lane, now)
            if ask is None:
                return False
            if isinstance(ask, Wait):
                await self._park(lane, ask.seconds)
                now = clock() - started
                continue
            if self._dropped and any(dropped(ask) for dropped in self._dropped):
                self.plan.unused(ask)
                continue
            draw = self.running[lane] = self.body(ask, now)
            if self._waiting is not None:
                self._waiting.wake()  # A draw that starts is news to a plan that hedges.
                self._waiting.promote()
            try:
                await draw.run()
            finally:
                # A cancellation passes here, too: each draw that has started leaves one record. The
                # lane is empty by then, so that dropping this very slice's kind doesn't cancel its
                # scope. And a hold that was ruled meanwhile isn't this slice's.
                self.running[lane] = None
                now = clock() - started
                self._hold = 0.0
                # If racing lanes are cancelled, the call's task notices. A lone one must do so
                # before the record, even if a backend has swallowed its cancellation.
                if self._alone and (scope.cancel_called or self.asked_to_stop()):
                    self._leave(scope)
                self.record(draw.record(now))
            if self._hold and not self.stopped:
                await self._park(lane, self._hold, alone=True)
                now = clock() - started
            if self._dropped and scope.cancel_called:
                return True
        return False

    def asked_to_stop(self) -> bool:
        """Return whether someone has asked the running task to stop since the race began."""
        # A lone lane runs in the caller's task, which may have older cancellations; the other lanes
        # have tasks of their own.
        return scope_cancelled() or native_cancel_requests() > (self._native if self._alone else 0)

    async def _park(self, lane: int, seconds: float, *, alone: bool = False) -> None:
        """Let a lane wait until the plan may have another answer."""
        if self._waiting is None:
            self._waiting = WaitingLanes()
        await self._waiting.wait(lane, seconds, alone=alone, before=self._check_standstill)

    def _check_standstill(self) -> None:
        """Stop the race if every lane waits for other lanes, because none would ever continue."""
        waiting, alive = self._waiting, self._alive
        if waiting and alive and not self.stopped and waiting.all_wait_for_good(alive):
            warn(
                "every lane is waiting and no draw is running: %r, or what wraps it, has a bug",
                self.plan,
                sampling_id=self.name,
            )
            self.rule(Ruling(stop=True))
