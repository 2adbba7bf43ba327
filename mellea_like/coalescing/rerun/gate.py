"""`RerunGate`: run a function once for many requests, and never twice at the same time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Self, TypeVar, cast, get_args

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from mellea_like.coalescing.background_service import BackgroundService
from mellea_like.coalescing.rerun.gate_state import GateState
from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.argument_checks import (
    check_one_of,
    check_plain,
    check_type,
    real_number,
    takes,
)
from mellea_like.errors import CoalescingError, Expired, Refused, ShutdownError
from mellea_like.runtime.event_loops import foreign
from mellea_like.runtime.logs import warn
from mellea_like.telemetry.spans import caller_span, shared_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from opentelemetry.trace import SpanContext

__all__ = ["RerunGate", "RerunStatus", "Tick"]

T = TypeVar("T")

OnBusy = Literal["queue", "ignore", "restart"]

MAX_REASONS = 100
"""The number of different reasons to keep from one tick's `poke` calls; more are only counted."""

LATE = "the request's deadline passed before a tick answered it"


class Tick(NamedTuple):
    """Information about a tick, that is, about one run of a gate's function.

    Attributes:
        number: the number of the tick, from 1. If the gate has a state file, ticks of earlier
            processes count.
        reasons: the different reasons of the submissions, in the order they came.
        submissions: the number of requests and pokes that the tick answers.
    """

    number: int
    reasons: tuple[str, ...]
    submissions: int


class RerunStatus(NamedTuple):
    """A snapshot of a gate. With a state file, the numbers include earlier processes.

    Attributes:
        in_flight: whether a tick is running.
        pending: the number of submissions for the next tick.
        window: the seconds until the next tick may begin, because of ``min_interval``; 0 if nothing
            is pending.
        coalesced: the number of submissions that shared a tick with an earlier submission.
        ticks: the number of ticks that have begun.
        last_trigger: the first reason of the last tick.
        last_event: the time of the last submission; None if there was none.
        restart_window: the seconds left of ``max_wait``, in which a submission restarts the current
            tick; 0 if submissions don't restart it.
        failed: the number of ticks that raised an exception.
    """

    in_flight: bool
    pending: int
    window: float
    coalesced: int
    ticks: int
    last_trigger: str
    last_event: datetime | None
    restart_window: float
    failed: int


@dataclass(slots=True, eq=False)
class Submission(Generic[T]):
    """One `request` call with its ticket, or all `poke` calls with one reason, without a ticket."""

    reason: str
    at: float
    ticket: Ticket[T] | None
    span: SpanContext | None
    count: int = 1


@dataclass(slots=True, eq=False)
class TickRun(Generic[T]):
    """The submissions that one tick answers, in the order they came."""

    submissions: list[Submission[T]]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    refused: bool = False

    @property
    def first(self) -> float:
        return min(each.at for each in self.submissions)

    @property
    def count(self) -> int:
        return _count(self.submissions)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.reason for each in self.submissions if each.reason))

    def settle(self, value: T) -> None:
        for each in self.submissions:
            if each.ticket is not None:
                each.ticket.settle(value)

    def fail(self, error: Exception) -> bool:
        """Give the error to everyone who requested the tick; return whether anyone awaits it."""
        return _fail(self.submissions, error)

    def refuse(self, error: ShutdownError) -> None:
        """Mark the tick as refused, and give everyone who requested it a `ShutdownError`."""
        self.refused = True
        self.fail(error)


class RerunGate(BackgroundService, Generic[T]):
    """Runs a function on request: once for all pending requests, and never twice at the same time.

    ```python
    async with RerunGate(rebuild) as gate:
        await gate.request("prompts changed")  # Waits for a rebuild that begins after this call.
    ```

    A tick is one run of the function. A submission is a request, whose caller waits for the result,
    or a poke, whose caller doesn't. All submissions during a tick share the next tick, which begins
    when the current tick has ended. If a tick raises an exception, the callers of its requests get
    the exception; if no caller is waiting, it is logged. The gate stays open.

    Args:
        tick: the async function. If it takes an argument, it gets a `Tick`.
        min_interval: the shortest time from the beginning of one tick to the beginning of the
            next, in seconds. With a ``state``, ticks of an earlier process count.
        on_busy: what to do with a submission during a tick. ``"queue"`` leaves it to the next
            tick. ``"ignore"`` refuses it. ``"restart"`` cancels the tick, and the next tick answers
            the submissions of both.
        max_wait: how long submissions may restart a tick, in seconds from its oldest submission.
            After that, the tick may finish, so that a steady stream of submissions can't starve
            it. Use ``math.inf`` for a tick that never ends by itself.
        state: the path of a file that keeps the gate's numbers across processes. It is read when
            the gate is entered, and written before and after each tick.
        on_status: a plain function that is called with the `RerunStatus` after each submission,
            when a tick begins, and when it has ended. Its exceptions are logged.
        name: the gate's name in logs and spans.

    Raises:
        TypeError: ``tick`` can't be called, or another argument has the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        tick: Callable[[], Awaitable[T]] | Callable[[Tick], Awaitable[T]],
        *,
        min_interval: float = 0.0,
        on_busy: OnBusy = "queue",
        max_wait: float = 60.0,
        state: str | Path | None = None,
        on_status: Callable[[RerunStatus], object] | None = None,
        name: str = "rerun",
    ) -> None:
        super().__init__()
        check_type("RerunGate: tick", tick, Callable, "an async function")
        check_one_of("RerunGate: on_busy", on_busy, get_args(OnBusy))
        check_type("RerunGate: state", state, str | Path | None, "the name of a file")
        check_plain("RerunGate: on_status", on_status)
        real_number("RerunGate: min_interval", min_interval, least=0, unit="seconds")
        real_number("RerunGate: max_wait", max_wait, least=0, most=math.inf, unit="seconds")
        self._tick = cast("Callable[..., Awaitable[T]]", tick)
        self._wants_tick = not takes(tick, 0)
        self._min_interval = min_interval
        self._on_busy: OnBusy = on_busy
        self._max_wait = max_wait
        self._on_status = on_status
        self._name = name
        self._file = None if state is None else Path(state)
        self._state = GateState()
        self._unsaved = False
        # Requests are kept by their tickets, and pokes by their reasons.
        self._pending: dict[Ticket[T] | str, Submission[T]] = {}
        self._current: TickRun[T] | None = None
        self._not_before = -math.inf
        self._running = False
        self._changed: anyio.Event | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a tick is running."""
        return self._current is not None

    async def __aenter__(self) -> Self:
        if self._file is not None and self._tasks is None:
            self._state = await anyio.to_thread.run_sync(GateState.open, self._file)
        await super().__aenter__()
        last = self._state.last_tick
        since = math.inf if last is None else max(0.0, time.time() - last.timestamp())
        self._not_before = anyio.current_time() + self._min_interval - since
        return self

    async def request(self, reason: str = "", *, deadline: float | None = None) -> T:
        """Wait for a tick that begins after this call.

        If the caller is cancelled before that tick begins, the request is withdrawn. If the caller
        is cancelled later, the tick continues.

        Args:
            reason: the reason for the request, for `Tick.reasons`, logs and the state file.
            deadline: the time until which to wait, on ``anyio.current_time``'s clock. An expired
                request starts no tick, but a running tick continues.

        Returns:
            The result of the tick.

        Raises:
            Expired: the deadline passed.
            Refused: a tick is running, and ``on_busy`` is ``"ignore"``.
            RuntimeError: the tick itself makes the request, and would wait for its own end.
            ShutdownError: the gate is closing or closed.
            TypeError: the reason isn't a string, or the deadline isn't a number.
            ValueError: the deadline is ``nan``.
            Exception: the exception of the tick.
        """
        self._check_open()
        if deadline is not None:
            real_number("a request's deadline", deadline, least=-math.inf, most=math.inf)
        until = math.inf if deadline is None else deadline
        if self._at_work():
            msg = f"the tick of {self._name} can't wait for the next one: use poke()"
            raise RuntimeError(msg)
        if until <= anyio.current_time():
            raise Expired(LATE)
        ticket: Ticket[T] = Ticket(self._left, until, LATE)
        if not self._submit(reason, ticket):
            msg = (
                f"a tick of {self._name} is running, and on_busy='ignore' accepts nothing during"
                " a tick"
            )
            raise Refused(msg)
        try:
            return await ticket.wait()
        finally:
            del ticket  # Break the cycle between frame and exception.

    def poke(self, reason: str = "") -> bool:
        """Request a tick that begins after this call, without waiting for it.

        Args:
            reason: the reason for the poke, for `Tick.reasons`, logs and the state file.

        Returns:
            Whether a tick will begin; False if a tick is running and ``on_busy`` is ``"ignore"``.

        Raises:
            ShutdownError: the gate is closing or closed.
            TypeError: the reason isn't a string.
        """
        self._check_open()
        return self._submit(reason, None)

    def status(self) -> RerunStatus:
        """Return a snapshot of the gate. Call this within an event loop.

        Returns:
            The snapshot.
        """
        pending, state, now = _count(self._pending.values()), self._state, anyio.current_time()
        restarted = self._current if self._on_busy == "restart" else None
        return RerunStatus(
            in_flight=self.in_flight,
            pending=pending,
            window=max(0.0, self._not_before - now) if pending else 0.0,
            coalesced=state.coalesced,
            ticks=state.ticks,
            last_trigger=state.last_trigger,
            last_event=state.last_event,
            restart_window=max(0.0, restarted.first + self._max_wait - now) if restarted else 0.0,
            failed=state.failed,
        )

    # --- submissions --------------------------------------------------------------------------

    def _submit(self, reason: str, ticket: Ticket[T] | None) -> bool:
        """Accept a submission, and return True; return False if the gate ignores it."""
        if not isinstance(reason, str):
            msg = f"a reason must be a string, not {reason!r}"
            raise TypeError(msg)
        now = anyio.current_time()
        if self._current is not None:
            if self._on_busy == "ignore":
                return False
            waited = now - self._current.first
            if self._on_busy == "restart" and waited < self._max_wait:
                self._current.scope.cancel("a newer submission restarts the tick")
        self._add(Submission(reason, now, ticket, caller_span()))
        self._state.last_event = datetime.now(UTC)
        self._tell()
        if not self._running:
            self._running = True
            self._start(self._run, name=f"ticks of {self._name}")
        return True

    def _add(self, new: Submission[T]) -> None:
        """Add a submission to the next tick; more pokes with the same reason are only counted."""
        if new.ticket is not None:
            self._pending[new.ticket] = new
            return
        pokes = [each for each in self._pending.values() if each.ticket is None]
        same = self._pending.get(new.reason)
        if same is None and len(pokes) >= MAX_REASONS:
            same = pokes[0]
        if same is None:
            self._pending[new.reason] = new
        else:
            same.count += new.count

    def _take(self) -> list[Submission[T]]:
        """Return the submissions for the tick that begins now, skipping expired requests."""
        taken, self._pending = self._pending, {}
        now = anyio.current_time()
        # A requester's own timer reports that its deadline has passed.
        return [e for e in taken.values() if e.ticket is None or e.ticket.deadline > now]

    def _put_back(self, run: TickRun[T]) -> None:
        """Move a cancelled tick's submissions to the next tick, except requests no one awaits."""
        later, self._pending = self._pending, {}
        for each in [*run.submissions, *later.values()]:
            if each.ticket is None or each.ticket.waiters:
                self._add(each)

    def _left(self, ticket: Ticket[T], error: CoalescingError) -> None:
        self._pending.pop(ticket, None)
        ticket.fail(error)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    # --- ticks --------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self._on_status is not None:
            try:
                self._on_status(self.status())
            except Exception as error:  # noqa: BLE001 (the user's)
                kind = type(error).__name__
                warn("on_status of %s failed: %s: %s", self._name, kind, error, gate=self._name)

    async def _run(self) -> None:
        """Run ticks until nothing is pending."""
        try:
            while self._pending:
                await checkpoint()  # Simultaneous submissions share it.
                await self._hold()
                if taken := self._take():
                    await self._answer(TickRun(taken))
        except BaseException:
            self._shut()
            raise
        finally:
            self._running = False
            self._progressed()

    async def _hold(self) -> None:
        while self._pending and anyio.current_time() < self._not_before:
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=self._not_before):
                await self._changed.wait()

    async def _answer(self, run: TickRun[T]) -> None:
        state = self._state
        state.last_tick = datetime.now(UTC)
        reason = next(iter(run.reasons), "")  # A file's name need not be Unicode.
        state.last_trigger = reason.encode(errors="backslashreplace").decode()
        state.ticks = number = state.ticks + 1
        state.submissions += run.count
        state.coalesced += run.count - 1
        self._not_before = anyio.current_time() + self._min_interval
        attributes: dict[str, str | int] = {
            "mellea_like.gate": self._name,
            "mellea_like.tick": number,
        }
        members = [each.span for each in run.submissions]
        self._current = run
        try:
            with run.scope:
                self._tell()
                await self._save()  # The tick may end the process.
                await checkpoint_if_cancelled()
                with shared_span("rerun_tick", attributes, members):
                    run.settle(await self._call(Tick(number, run.reasons, run.count)))
        except Exception as error:  # noqa: BLE001 (it goes to those who requested the tick)
            state.failed += 1
            if not run.fail(error):
                self._log_unseen(number, run.reasons, error)
        except BaseException:  # This was cancelled from outside, but the requesters may not be.
            run.refuse(ShutdownError(f"{self._name} was cancelled before it answered"))
            raise
        else:
            if run.scope.cancelled_caught and not run.refused:  # Restarted, not closed.
                state.submissions -= run.count  # The next tick counts them again.
                state.coalesced -= run.count - 1
                self._put_back(run)
        finally:
            self._current = None
            with anyio.CancelScope(shield=True):
                await self._save()
            self._tell()

    async def _call(self, tick: Tick) -> T:
        with foreign(f"the tick of {self._name}", CoalescingError):
            given = self._tick(tick) if self._wants_tick else self._tick()
            if not isawaitable(given):
                msg = f"the tick of {self._name} must be an async function; it returned {given!r}"
                raise TypeError(msg)
            return await given

    async def _save(self) -> None:
        if self._file is None:
            return
        try:
            await anyio.to_thread.run_sync(self._state.model_copy().save, self._file)
        except Exception as error:  # noqa: BLE001 (a full disk doesn't stop the gate)
            if not self._unsaved:
                message = "%s could not write its state: %s: %s"
                warn(message, self._name, type(error).__name__, error, gate=self._name)
            self._unsaved = True
        else:
            self._unsaved = False

    def _log_unseen(self, number: int, reasons: tuple[str, ...], error: Exception) -> None:
        warn(
            "tick %d of %s (%s) failed: %s: %s",
            number,
            self._name,
            ", ".join(reasons) or "no reason given",
            type(error).__name__,
            error,
            gate=self._name,
            tick=number,
        )

    # --- the end ------------------------------------------------------------------------------

    def _idle(self) -> bool:
        return not self._running

    def _settle_all(self, error: ShutdownError) -> None:
        _fail(self._pending.values(), error)
        self._pending = {}
        if self._current is not None:
            self._current.refuse(error)
            self._current.scope.cancel("the gate was closed")
        self._wake()


def _fail(submissions: Iterable[Submission[T]], error: Exception) -> bool:
    """Give the error to all requesters; return whether any of them is waiting."""
    seen = False
    for each in submissions:
        ticket, each.ticket = each.ticket, None  # Break a reference cycle.
        if ticket is not None:
            waiting = ticket.waiters > 0
            seen |= ticket.fail(error) and waiting
    return seen


def _count(submissions: Iterable[Submission[T]]) -> int:
    return sum(each.count for each in submissions)
