"""`RerunGate`: react once to many requests, never twice at a time."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, cast, get_args

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from mellea_like.coalescing.component import Component
from mellea_like.coalescing.rerun.status import GateState, RerunStatistics, RerunStatus, Tick
from mellea_like.coalescing.rerun.submissions import (
    OnBusy,
    Submission,
    Submissions,
    TickRun,
    expired,
    when_busy,
)
from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.argument_checks import check_plain, real_number, takes, whole_number
from mellea_like.core.display import error_text
from mellea_like.errors import CoalescingError, QueueFull, Refused, ShutdownError
from mellea_like.runtime.event_loops import cancel_requested
from mellea_like.runtime.logs import warn
from mellea_like.telemetry.spans import caller_span, shared_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = ["RerunGate"]

T = TypeVar("T")


class RerunGate(Component, Generic[T]):
    """Runs a function, the tick, when asked to: once for all who ask, and one at a time.

    ```python
    async with RerunGate(rebuild) as gate:
        await gate.request("prompts changed")  # A rebuild that began after this line has ended.
    ```

    Submissions during a tick share exactly one more, which begins when it has ended; those that
    come during that one share the next. What a tick raises goes to those who requested it, and is
    logged where nobody sees it; the gate goes on.

    Args:
        tick: an async function. One that needs an argument gets a `Tick`.
        min_interval: seconds from the beginning of one tick to that of the next, at least. With a
            state, a tick of an earlier process counts.
        on_busy: what becomes of a submission during a tick. ``"queue"``: it shares the next one.
            ``"ignore"``: it is refused. ``"restart"``: the tick is cancelled, and the next one
            answers its submissions too.
        max_wait: for how many seconds after its oldest submission a tick may be restarted; then it
            is left to end, so that a steady stream of submissions can't starve it. ``math.inf``
            suits a tick that never ends by itself.
        max_pending: how many requests may wait for a tick, with ``full="raise"``.
        full: what becomes of further ones: ``"wait"``, as all do, or ``"raise"`` for a `QueueFull`.
        state: numbers of an earlier process: a `GateState`, or the name of the file that keeps it,
            which is read when the gate is entered, and written before and after each tick.
        on_status: a plain function that is told the `RerunStatus` when something was submitted,
            when a tick begins, and when it has ended. What it raises is logged.
        name: the gate's name in logs and spans.

    Raises:
        TypeError: the tick can't be called, or the state or ``on_status`` has the wrong type.
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        tick: Callable[[], Awaitable[T]] | Callable[[Tick], Awaitable[T]],
        *,
        min_interval: float = 0.0,
        on_busy: OnBusy = "queue",
        max_wait: float = 60.0,
        max_pending: int = 1000,
        full: Literal["wait", "raise"] = "wait",
        state: GateState | str | Path | None = None,
        on_status: Callable[[RerunStatus], object] | None = None,
        name: str = "rerun",
    ) -> None:
        super().__init__()
        if not callable(tick):
            msg = f"RerunGate: a tick is an async function, not {tick!r}"
            raise TypeError(msg)
        if on_busy not in get_args(OnBusy):
            msg = f"RerunGate: on_busy is one of {', '.join(get_args(OnBusy))}, not {on_busy!r}"
            raise ValueError(msg)
        if full not in {"wait", "raise"}:
            msg = f"RerunGate: full is 'wait' or 'raise', not {full!r}"
            raise ValueError(msg)
        if not (state is None or isinstance(state, str | Path | GateState)):
            msg = f"state is a GateState or the name of a file, not {state!r}"
            raise TypeError(msg)
        check_plain("RerunGate: on_status", on_status)
        whole_number("RerunGate: max_pending", max_pending)
        real_number("RerunGate: min_interval", min_interval, least=0, unit="seconds")
        real_number("RerunGate: max_wait", max_wait, least=0, most=math.inf, unit="seconds")
        self._tick = cast("Callable[..., Awaitable[T]]", tick)
        self._wants_tick = not takes(tick, 0)
        self._min_interval = min_interval
        self._on_busy: OnBusy = on_busy
        self._max_wait = max_wait
        self._on_status = on_status
        self._name = name
        self._file = Path(state) if isinstance(state, str | Path) else None
        self._unsaved = False
        self._submissions: Submissions[T] = Submissions()
        self._max_pending = math.inf if full == "wait" else max_pending
        self._current: TickRun[T] | None = None
        self._scope: anyio.CancelScope | None = None
        self._not_before = -math.inf
        self._running = False
        self._changed: anyio.Event | None = None
        self._counts: Counter[str] = Counter()
        self._state = GateState()
        if isinstance(state, GateState):
            self._state = state.model_copy(update={"in_flight": False, "pending": 0})

    @property
    def in_flight(self) -> bool:
        """Whether a tick is under way."""
        return self._current is not None

    async def __aenter__(self) -> Self:
        if self._file is not None and self._tasks is None:
            self._state = await anyio.to_thread.run_sync(_load, self._file)
        await super().__aenter__()
        last = self._state.last_tick
        since = math.inf if last is None else max(0.0, time.time() - last.timestamp())
        self._not_before = anyio.current_time() + self._min_interval - since
        return self

    async def request(self, reason: str = "", *, deadline: float | None = None) -> T:
        """Wait for a tick that begins after this call.

        A caller that is cancelled before that tick begins takes the request back; later it only
        leaves.

        Args:
            reason: why, for `Tick.reasons`, logs and the state.
            deadline: until when to wait, on ``anyio.current_time``'s clock. A request that has
                expired begins no tick; one under way goes on.

        Returns:
            What the tick returned.

        Raises:
            Expired: the deadline passed.
            QueueFull: there is no room, with ``full="raise"``.
            Refused: a tick is under way, with ``on_busy="ignore"``.
            RuntimeError: the tick requests another and would wait for its own end.
            ShutdownError: the gate is closing or closed.
            TypeError: the reason isn't a string, or the deadline isn't a number.
            ValueError: the deadline is not a number (``nan``).
            Exception: what the tick raised.
        """
        self._check_open()
        _check_reason(reason)
        if deadline is not None:
            real_number("a request's deadline", deadline, least=-math.inf, most=math.inf)
        now, until = anyio.current_time(), math.inf if deadline is None else deadline
        if self._at_work():
            msg = f"the tick of {self._name} can't wait for the one after it: use poke()"
            raise RuntimeError(msg)
        if until <= now:
            self._counts["expired"] += 1
            raise expired()
        if self._submissions.requests >= self._max_pending:
            msg = (
                f"{self._max_pending} requests wait for the next tick already, the most that"
                " max_pending allows; try again later, or pass full='wait'"
            )
            raise QueueFull(msg)
        if not self._admit(now):
            msg = f"a tick of {self._name} is under way, and on_busy='ignore' takes nothing then"
            raise Refused(msg)
        ticket: Ticket[T] = Ticket(self._abandoned)
        self._submissions.add(ticket, Submission(reason, now, ticket, until, caller_span()))
        self._counts["requests"] += 1
        self._submitted()
        try:
            return await self._result(ticket, until)
        finally:
            del ticket  # Break the cycle between frame and exception.

    def poke(self, reason: str = "") -> bool:
        """Have a tick begin after this call, without waiting for it.

        Args:
            reason: why, for `Tick.reasons`, logs and the state.

        Returns:
            Whether one will; False during a tick with ``on_busy="ignore"``.

        Raises:
            ShutdownError: the gate is closing or closed.
            TypeError: the reason isn't a string.
        """
        self._check_open()
        _check_reason(reason)
        now = anyio.current_time()
        accepted = self._admit(now)
        if accepted:
            self._submissions.poke(Submission(reason, now, span=caller_span()))
            self._counts["pokes"] += 1
            self._submitted()
        return accepted

    def status(self) -> RerunStatus:
        """Return what the gate is doing.

        Returns:
            The coalescing state of this moment; to be asked within an event loop.
        """
        pending, state, now = self._submissions.count, self._state, anyio.current_time()
        restarted = self._current if self._on_busy == "restart" else None
        return RerunStatus(
            self.in_flight,
            pending,
            max(0.0, self._not_before - now) if pending else 0.0,
            state.coalesced,
            state.ticks,
            state.last_trigger,
            state.last_event,
            0.0 if restarted is None else max(0.0, restarted.first + self._max_wait - now),
        )

    def statistics(self) -> RerunStatistics:
        """Return what was counted.

        Returns:
            The numbers of this moment.
        """
        counts, state = self._counts, self._state
        return RerunStatistics(
            requests=counts["requests"],
            pokes=counts["pokes"],
            refused=counts["refused"],
            expired=counts["expired"],
            waiting=self._submissions.requests,
            ticks=state.ticks,
            failed=state.failed,
            restarted=counts["restarted"],
            coalesced=state.coalesced,
        )

    def state(self) -> GateState:
        """Return what a later process may go on from.

        Returns:
            The state of this moment.
        """
        now = {"in_flight": self.in_flight, "pending": self._submissions.count}
        return self._state.model_copy(update=now)

    # --- submissions --------------------------------------------------------------------------

    def _admit(self, now: float) -> bool:
        if self._current is None:
            return True
        what = when_busy(self._on_busy, now, self._current.first, self._max_wait)
        if what == "ignore":
            self._counts["refused"] += 1
            return False
        if what == "restart" and self._scope is not None:
            self._scope.cancel("a newer submission restarts the tick")
        return True

    async def _result(self, ticket: Ticket[T], deadline: float) -> T:
        try:
            with anyio.CancelScope(deadline=deadline):
                return await ticket.wait()
            self._counts["expired"] += ticket.fail(expired())
            return await ticket.wait()
        finally:
            del ticket

    def _abandoned(self, ticket: Ticket[T]) -> None:
        self._submissions.drop(ticket)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    # --- ticks --------------------------------------------------------------------------------

    def _submitted(self) -> None:
        self._state.last_event = datetime.now(UTC)
        self._tell()
        if not self._running:
            self._running = True
            self._start(self._run, name=f"ticks of {self._name}")

    def _tell(self) -> None:
        if self._on_status is not None:
            try:
                self._on_status(self.status())
            except Exception as error:  # noqa: BLE001 (the user's)
                what = f"{type(error).__name__}: {error_text(error)}"
                warn("on_status of %s failed: %s", self._name, what, gate=self._name)

    async def _run(self) -> None:
        """Run ticks until nothing is pending."""
        try:
            while self._submissions:
                await checkpoint()  # What comes at the same time shares the tick.
                await self._hold()
                run = self._submissions.take(anyio.current_time())
                if run is not None:
                    await self._answer(run)
        except BaseException:
            self._shut()
            raise
        finally:
            self._running = False
            self._progressed()

    async def _hold(self) -> None:
        while self._submissions and anyio.current_time() < self._not_before:
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=self._not_before):
                await self._changed.wait()

    async def _answer(self, run: TickRun[T]) -> None:
        state = self._state
        state.last_tick = datetime.now(UTC)
        reason = next(iter(run.reasons), "")  # A file's name need not be Unicode.
        state.last_trigger = reason.encode(errors="backslashreplace").decode()
        state.ticks = run.number = state.ticks + 1
        self._count(run, 1)
        self._not_before = anyio.current_time() + self._min_interval
        attributes: dict[str, str | int] = {
            "mellea_like.gate": self._name,
            "mellea_like.tick": run.number,
        }
        members = [each.span for each in run.submissions]
        try:
            with self._flight(run) as scope:
                self._tell()
                await self._save()  # A tick that ends its process has begun all the same.
                await checkpoint_if_cancelled()
                with shared_span("rerun_tick", attributes, members):
                    run.settle(await self._call(run))
        except Exception as error:  # noqa: BLE001 (it goes to those who requested the tick)
            state.failed += 1
            if not run.fail(error):
                self._log_unseen(run, error)
        except BaseException:  # Cancelled from outside; those who wait need not be.
            run.refuse(ShutdownError(f"{self._name} was cancelled before it answered"))
            raise
        else:
            if scope.cancelled_caught and not run.refused:  # Restarted, not closed.
                self._counts["restarted"] += 1
                self._count(run, -1)  # The next tick answers it all.
                self._submissions.put_back(run)
        finally:
            with anyio.CancelScope(shield=True):
                await self._save()
            self._tell()

    def _count(self, run: TickRun[T], sign: int) -> None:
        self._state.submissions += sign * run.count
        self._state.coalesced += sign * (run.count - 1)

    async def _call(self, run: TickRun[T]) -> T:
        tick = Tick(run.number, run.reasons, run.count)
        try:
            given = self._tick(tick) if self._wants_tick else self._tick()
            if not isawaitable(given):
                msg = f"the tick of {self._name} must be an async function; it returned {given!r}"
                raise TypeError(msg)
            return await given
        except anyio.get_cancelled_exc_class() as error:
            if cancel_requested():
                raise
            msg = f"the tick of {self._name} was cancelled, though nobody asked for that"
            raise CoalescingError(msg) from error

    @contextmanager
    def _flight(self, run: TickRun[T]) -> Generator[anyio.CancelScope]:
        """Mark a tick as under way, and yield the scope that cancels it."""
        self._current = run
        try:
            with anyio.CancelScope() as self._scope:
                yield self._scope
        finally:
            self._current = self._scope = None

    async def _save(self) -> None:
        if self._file is None:
            return
        try:
            await anyio.to_thread.run_sync(self._state.model_copy().save, self._file)
        except Exception as error:  # noqa: BLE001 (a full disk doesn't stop the gate)
            if not self._unsaved:
                what = f"{type(error).__name__}: {error_text(error)}"
                warn("%s could not write its state: %s", self._name, what, gate=self._name)
            self._unsaved = True
        else:
            self._unsaved = False

    def _log_unseen(self, run: TickRun[T], error: Exception) -> None:
        warn(
            "tick %d of %s (%s) failed: %s",
            run.number,
            self._name,
            ", ".join(run.reasons) or "no reason given",
            f"{type(error).__name__}: {error_text(error)}",
            gate=self._name,
            tick=run.number,
        )

    # --- the end ------------------------------------------------------------------------------

    async def _serve_the_rest(self) -> None:
        await self._until_idle()

    async def _until_idle(self) -> None:
        await self._until(lambda: not self._running)

    def _settle_all(self, error: ShutdownError) -> None:
        self._submissions.settle_all(error)
        if self._current is not None:
            self._current.refuse(error)
        if self._scope is not None:
            self._scope.cancel("the gate was closed")
        self._wake()


def _check_reason(reason: str) -> None:
    if not isinstance(reason, str):
        msg = f"a reason is a string, not {reason!r}"
        raise TypeError(msg)


def _load(file: Path) -> GateState:
    try:
        state = GateState.load(file)
        state.save(file)
    except OSError as error:
        msg = f"a gate's state can't be kept in {file}: {error.strerror or error}"
        raise CoalescingError(msg) from error
    return state
