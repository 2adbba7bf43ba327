"""`RerunGate`: react once to many requests, never twice at a time."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from mellea_like.coalescing.component import Component
from mellea_like.coalescing.rerun.queue import (
    Asked,
    Batch,
    OnBusy,
    Submissions,
    check,
    check_submission,
    expired,
    when_busy,
)
from mellea_like.coalescing.rerun.status import (
    Numbers,
    RerunStatistics,
    RerunStatus,
    Tick,
    load,
    log_unseen,
)
from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.callables import takes
from mellea_like.core.shown import error_text
from mellea_like.errors import CoalescingError, Expired, Refused, ShutdownError
from mellea_like.runtime.logs import warn
from mellea_like.runtime.native import cancel_requested
from mellea_like.telemetry.shared import caller_span, shared_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from mellea_like.coalescing.rerun.gate_state import GateState

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
        max_pending: how many requests one tick answers at most. Pokes need no room.
        full: what becomes of a request that finds no room: it waits for the tick after with
            ``"wait"``, and raises `QueueFull` with ``"raise"``.
        state: numbers of an earlier process: a `GateState`, or the name of the file that keeps it,
            which is read when the gate is entered, and written before and after each tick.
        on_status: a plain function that is told the `RerunStatus` when something was submitted,
            when a tick begins, and when it has ended. What it raises is logged.
        name: the gate's name in logs and spans.

    Raises:
        TypeError: the tick can't be called, the state is none, or ``on_status`` no plain function.
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
        check(
            tick,
            min_interval=min_interval,
            on_busy=on_busy,
            max_wait=max_wait,
            max_pending=max_pending,
            full=full,
            state=state,
            on_status=on_status,
        )
        self._tick = cast("Callable[..., Awaitable[T]]", tick)
        self._wants_tick = not takes(tick, 0)
        self._min_interval = min_interval
        self._on_busy: OnBusy = on_busy
        self._max_wait = max_wait
        self._on_status = on_status
        self._name = name
        self._file = Path(state) if isinstance(state, str | Path) else None
        self._unsaved = False
        self._submissions: Submissions[T] = Submissions(max_pending, full)
        self._batch: Batch[T] | None = None
        self._scope: anyio.CancelScope | None = None
        self._not_before = -math.inf
        self._running = False
        self._idle: anyio.Event | None = None
        self._changed: anyio.Event | None = None
        self._numbers = Numbers()
        if state is not None and self._file is None:
            self._numbers.remember(cast("GateState", state))

    @property
    def in_flight(self) -> bool:
        """Whether a tick is under way."""
        return self._batch is not None

    async def __aenter__(self) -> Self:
        if self._file is not None and self._tasks is None:
            self._numbers.remember(await anyio.to_thread.run_sync(load, self._file))
        await super().__aenter__()
        last = self._numbers.last_tick
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
            TypeError: the reason is no text, or the deadline no number.
            ValueError: the deadline is not a number (``nan``).
            Exception: what the tick raised.
        """
        self._check_open()
        check_submission(reason, deadline)
        now, until = anyio.current_time(), math.inf if deadline is None else deadline
        if self._at_work():
            msg = f"the tick of {self._name} can't wait for the one after it: use poke()"
            raise RuntimeError(msg)
        if until <= now:
            self._numbers.expired += 1
            raise expired()
        self._submissions.check_room()
        if not self._admit(now):
            msg = f"a tick of {self._name} is under way, and on_busy='ignore' takes nothing then"
            raise Refused(msg)
        ticket: Ticket[T] = Ticket(self._abandoned)
        asked = Asked(reason, now, ticket, until, caller_span())
        self._submissions.add(ticket, asked)
        self._numbers.requests += 1
        self._submitted()
        try:
            return await self._result(asked, ticket)
        finally:
            del asked, ticket  # A frame that holds its own exception waits for the collector.

    def poke(self, reason: str = "") -> bool:
        """Have a tick begin after this call, without waiting for it.

        Args:
            reason: why, for `Tick.reasons`, logs and the state.

        Returns:
            Whether one will; False during a tick with ``on_busy="ignore"``.

        Raises:
            ShutdownError: the gate is closing or closed.
            TypeError: the reason is no text.
        """
        self._check_open()
        check_submission(reason)
        now = anyio.current_time()
        accepted = self._admit(now)
        if accepted:
            self._submissions.poke(Asked(reason, now, span=caller_span()))
            self._numbers.pokes += 1
            self._submitted()
        return accepted

    def status(self) -> RerunStatus:
        """Return what the gate is doing.

        Returns:
            The coalescing state of this moment; to be asked within an event loop.
        """
        pending, numbers, now = self._submissions.count, self._numbers, anyio.current_time()
        restarted = self._batch if self._on_busy == "restart" else None
        return RerunStatus(
            self.in_flight,
            pending,
            max(0.0, self._not_before - now) if pending else 0.0,
            numbers.coalesced,
            numbers.ticks,
            numbers.last_trigger,
            numbers.last_event,
            0.0 if restarted is None else max(0.0, restarted.first + self._max_wait - now),
        )

    def statistics(self) -> RerunStatistics:
        """Return numbers to look at.

        Returns:
            The numbers of this moment.
        """
        return self._numbers.statistics(self._submissions.waiting)

    def state(self) -> GateState:
        """Return what a later process may go on from.

        Returns:
            The state of this moment.
        """
        return self._numbers.state(in_flight=self.in_flight, pending=self._submissions.count)

    # --- submissions --------------------------------------------------------------------------

    def _admit(self, now: float) -> bool:
        if self._batch is None:
            return True
        what = when_busy(self._on_busy, now, self._batch.first, self._max_wait)
        if what == "ignore":
            self._numbers.refused += 1
            return False
        if what == "restart" and self._scope is not None:
            self._scope.cancel("a newer submission restarts the tick")
        return True

    async def _result(self, asked: Asked[T], ticket: Ticket[T]) -> T:
        try:
            with anyio.CancelScope(deadline=asked.deadline):
                return await ticket.wait()
            if not ticket.done:
                ticket.fail(expired())
            return await ticket.wait()
        except BaseException as error:
            failed, asked.failed = asked.failed, None
            if failed is not None:
                if failed.left(seen=ticket.seen):
                    log_unseen(self._name, failed)
            elif isinstance(error, Expired):
                self._numbers.expired += 1
            raise
        finally:
            del asked, ticket

    def _abandoned(self, ticket: Ticket[T]) -> None:
        self._submissions.drop(ticket)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    # --- ticks --------------------------------------------------------------------------------

    def _submitted(self) -> None:
        self._numbers.last_event = datetime.now(UTC)
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
                batch = self._submissions.take(anyio.current_time())
                if batch is not None:
                    await self._answer(batch)
        except BaseException:
            self._shut()
            raise
        finally:
            self._running = False
            if self._idle is not None:
                self._idle.set()

    async def _hold(self) -> None:
        while self._submissions and anyio.current_time() < self._not_before:
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=self._not_before):
                await self._changed.wait()

    async def _answer(self, batch: Batch[T]) -> None:
        numbers = self._numbers
        batch.number = numbers.begin(batch)
        self._not_before = anyio.current_time() + self._min_interval
        attributes: dict[str, str | int] = {
            "mellea_like.gate": self._name,
            "mellea_like.tick": batch.number,
        }
        members = [asked.span for asked in batch.asked]
        try:
            with self._flight(batch) as scope:
                self._tell()
                await self._save()  # A tick that ends its process has begun all the same.
                await checkpoint_if_cancelled()
                with shared_span("rerun_tick", attributes, members):
                    batch.settle(await self._call(batch))
        except Exception as error:  # noqa: BLE001 (it goes to who requested the tick, or is logged)
            numbers.failed += 1
            if not batch.fail(error):
                log_unseen(self._name, batch)
        except BaseException:  # Cancelled from outside; whoever waits may not be.
            batch.refuse(ShutdownError(f"{self._name} was cancelled before it answered"))
            raise
        else:
            if scope.cancelled_caught and not batch.refused:  # Restarted, not closed.
                numbers.restart(batch)
                self._submissions.put_back(batch)
        finally:
            with anyio.CancelScope(shield=True):
                await self._save()
            self._tell()

    async def _call(self, batch: Batch[T]) -> T:
        tick = Tick(batch.number, batch.reasons, batch.count)
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
    def _flight(self, batch: Batch[T]) -> Generator[anyio.CancelScope]:
        """Mark a tick as under way, and yield the scope that cancels it."""
        self._batch = batch
        try:
            with anyio.CancelScope() as self._scope:
                yield self._scope
        finally:
            self._batch = self._scope = None

    async def _save(self) -> None:
        if self._file is not None:
            error = await anyio.to_thread.run_sync(replace(self._numbers).save, self._file)
            if error is not None and not self._unsaved:
                what = f"{type(error).__name__}: {error_text(error)}"
                warn("%s could not write its state: %s", self._name, what, gate=self._name)
            self._unsaved = error is not None

    # --- the end ------------------------------------------------------------------------------

    async def _serve_the_rest(self) -> None:
        await self._until_idle()

    async def _until_idle(self) -> None:
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _settle_all(self, error: ShutdownError) -> None:
        self._submissions.settle_all(error)
        if self._batch is not None:
            self._batch.refuse(error)
        if self._scope is not None:
            self._scope.cancel("the gate was closed")
        self._wake()
