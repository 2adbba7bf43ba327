"""How requests wait for a shared limit: the one shell round the rules of all of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled, current_token

from mellea_like.core.generation import Usage
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.fair_queue import Entry, FairQueue
from mellea_like.runtime.native import call_soon, loop_runs
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.lowlevel import EventLoopToken

    from mellea_like.core.backend import Backend, Request

__all__ = ["QueuedLimit", "QueuedPermit"]

CHECKING = 2.0
"""Seconds for which a reply is thought to be checked, unless its subsample asks again before."""

STEPS_TO_CANCEL = 2
"""Steps of the event loop from a reply that passes its checks to the end of its siblings' waits."""

TICK = 1e-6
"""Seconds that are no wait: a timer's rounding must not send a request back to wait for it."""


class QueuedPermit(Entry):
    """One request's place in a limit's line, and its permit once it is granted.

    Args:
        request: the request.
        line: where it waits.
        give_back: is told when it is over, and how the request ended.
    """

    __slots__ = ("_alarm", "_event", "_give_back", "line", "request", "reserved_tokens")

    def __init__(
        self,
        request: Request,
        line: FairQueue[QueuedPermit],
        give_back: Callable[[QueuedPermit, RequestEnd], None],
    ) -> None:
        super().__init__(request.meta)
        self.request = request
        self.line = line
        self.reserved_tokens: float | None = None
        self._give_back = give_back
        self._alarm = math.inf
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Wait until the request is granted or the alarm goes off or is set to an earlier time."""
        self._event = event = anyio.Event()
        # Of thousands who wait only one has an alarm, and needs the scope.
        if self._alarm == math.inf:
            await event.wait()
        else:
            with anyio.CancelScope(deadline=self._alarm):
                await event.wait()
        self._alarm = math.inf

    def wake(self) -> None:
        """End the wait."""
        if self._event is not None:
            self._event.set()

    def set_alarm(self, at: float) -> None:
        """Set when the wait is to end without a grant, in seconds on the event loop's clock."""
        if at < self._alarm - TICK:
            self._alarm = at
            self.wake()
        elif at > self._alarm + TICK:
            self._alarm = at  # It may go off too early, once.

    def release(self, end: RequestEnd) -> None:
        """Give the permit back; a second time does nothing.

        Args:
            end: how the request ended.
        """
        self._give_back(self, end)


class QueuedLimit(ABC):
    """A limit that lets requests wait in one line, in the order that `FairQueue` says.

    Everything is decided in synchronous steps: when a request comes, ends or leaves, and when the
    limit changes, the head of the line is granted for as long as the rule allows it. No task runs
    in the background: where the rule names a time, the head of the line waits for it.

    An object serves one event loop at a time. What a finished event loop left behind, waiting or in
    flight, is forgotten when another one comes.
    """

    def __init__(self) -> None:
        self._timeline = Timeline()
        self._line: FairQueue[QueuedPermit] = FairQueue()
        self._loop: EventLoopToken | None = None
        self._keeper: QueuedPermit | None = None  # The head when it was last looked at.
        self._seen_at = 0.0
        self._admitted = 0
        self._max_in_flight = 0

    @abstractmethod
    def _delay(self, now: float, ticket: QueuedPermit) -> float:
        """Return in how many seconds the head of the line may go: 0 for now.

        ``math.inf`` stands for: not before a request ends or the limit changes.
        """

    def _granted(self, now: float, ticket: QueuedPermit) -> None:  # noqa: B027 (need not be overridden)
        """Note that a request goes; its line has counted it already."""

    def _ended(  # noqa: B027 (need not be overridden)
        self, now: float, ticket: QueuedPermit, end: RequestEnd
    ) -> None:
        """Note how a request ended, before its line stops counting it."""

    async def acquire(self, request: Request, backend: Backend) -> QueuedPermit:  # noqa: ARG002
        """Wait until a request may be sent.

        Args:
            request: the request.
            backend: what will answer it; does not matter here.

        Returns:
            The permit. A caller that is cancelled while it waits holds none.

        Raises:
            RuntimeError: another event loop, in another thread, is using this limiter.
        """
        await checkpoint_if_cancelled()
        self._enter_loop()
        ticket = QueuedPermit(request, self._line, self._release)
        started = request.meta.call_started
        self._line.join(ticket, anyio.current_time() if started is None else started)
        self._pump_for_new_head()
        if ticket.waiting:
            await self._wait(ticket)
        return ticket

    async def _wait(self, ticket: QueuedPermit) -> None:
        try:
            while ticket.waiting:
                await ticket.wait()
                if ticket.waiting:
                    self._pump()
            # Granted and cancelled in one moment: nothing has been sent, and nothing shall be. The
            # reply that made room may be the very one that makes this request superfluous; its
            # call takes so many steps to say so.
            for _ in range(STEPS_TO_CANCEL):
                await checkpoint()
        except BaseException as exc:
            self._admitted -= ticket.in_flight
            self._release(ticket, RequestEnd(Usage(), None, exc))
            raise

    def _pump_for_new_head(self) -> None:
        """Do what `_pump` does after a change that only matters if there is a new head."""
        if self._line.head() is not self._keeper:
            self._pump()

    def _pump(self) -> None:
        """Let everybody go who may, and have the next one wait for the right moment."""
        line, delay = self._line, math.inf
        now = self._seen_at = self._timeline.now()
        line.expire(now)
        while (head := line.head()) is not None:
            delay = self._delay(now, head)
            if delay > TICK:
                break
            line.admit(head)
            self._admitted += 1
            self._max_in_flight = max(self._max_in_flight, line.in_flight)
            self._granted(now, head)
            head.wake()
        if self._keeper is not None and self._keeper is not head:
            self._keeper.set_alarm(math.inf)
        self._keeper = head
        if head is not None:
            head.set_alarm(self._timeline.on_loop(now + delay) if delay < math.inf else delay)

    def _release(self, ticket: QueuedPermit, end: RequestEnd) -> None:
        if self._in_loop():
            was_in_flight = ticket.in_flight
            undecided_until = None
            if was_in_flight:
                now = self._timeline.now()
                self._ended(now, ticket, end)
                if end.generation is not None and ticket.meta.purpose == "generate":
                    undecided_until = now + CHECKING
            ticket.line.leave(ticket, undecided_until)
            if was_in_flight:
                self._pump()
            else:
                self._pump_for_new_head()
        else:
            # Left behind by an event loop that is over, or an abandoned coroutine is collected.
            ticket.line.leave(ticket)
            self._changed()

    def _changed(self) -> None:
        """Look again who may go, from wherever this is called."""
        if not self._line.waiting or self._loop is None:
            return
        if self._in_loop():
            self._pump()
        else:
            with suppress(RuntimeError):  # The event loop has ended, and with it whoever waited.
                call_soon(self._loop, self._nudge)

    def _nudge(self) -> None:
        """Have the head of the line look again; in a callback, anyio may not know where it is."""
        head = self._line.head()
        if head is not None:
            head.set_alarm(-math.inf)

    def _now(self) -> float:
        """Return the time; outside the limiter's event loop, when it was last used."""
        if self._in_loop():
            self._seen_at = self._timeline.now()
        return self._seen_at

    def _in_loop(self) -> bool:
        try:
            return current_token() == self._loop
        except anyio.NoEventLoopError:
            return False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loop": None, "_line": FairQueue(), "_keeper": None}

    def _enter_loop(self) -> None:
        token = current_token()
        if token == self._loop:
            return
        line = self._line
        if self._loop is not None and (line.waiting or line.in_flight) and loop_runs(self._loop):
            msg = (
                f"this {type(self).__name__} serves another event loop, where {line.waiting}"
                f" requests wait and {line.in_flight} are in flight: use one limiter in each"
                " event loop, or one SyncSampler for all threads"
            )
            raise RuntimeError(msg)
        self._loop = token
        self._line = FairQueue()
        self._keeper = None
