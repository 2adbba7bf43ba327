"""How requests wait for a shared limit: the one shell around the rules of all limiters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled, current_token

from mellea_like.core.generation import Usage
from mellea_like.limits.backoff_gate import told_to_wait
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.fair_queue import Entry, FairQueue
from mellea_like.runtime.native import call_soon, loop_runs
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.lowlevel import EventLoopToken

    from mellea_like.core.backend import Backend, Request
    from mellea_like.errors import RateLimited

__all__ = ["QueuedLimit", "QueuedPermit"]

CHECKING = 2.0
"""Seconds for which a reply is thought to be checked, unless its subsample asks again before."""

STEPS_TO_CANCEL = 2
"""Steps of the event loop from a reply that passes its checks to the end of its siblings' waits."""

LONGEST_PAUSE = 120.0
"""Seconds that nobody goes after a 429, whatever it asks for."""

UNNAMED_PAUSE = 0.2
"""Seconds where it asks for none: about a round trip, so that what is under way can answer."""

TICK = 1e-6
"""Seconds that don't count as a wait: a timer's rounding must not make a request wait again."""


class QueuedPermit(Entry):
    """One request's entry in a limit's queue, and its permit once it is granted."""

    __slots__ = ("_alarm", "_event", "_give_back", "queue", "request", "reserved_tokens")

    def __init__(
        self,
        request: Request,
        queue: FairQueue[QueuedPermit],
        give_back: Callable[[QueuedPermit, RequestEnd], None],
    ) -> None:
        super().__init__(request.meta)
        self.request = request
        self.queue = queue
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
        """Give the permit back; a second time does nothing."""
        self._give_back(self, end)


class QueuedLimit(ABC):
    """A limit that lets requests wait in one `FairQueue`, and everybody pause after a 429.

    Everything is decided in synchronous steps: when a request comes, ends or leaves, and when the
    limit changes, the head of the queue is granted for as long as the rule allows it. No task runs
    in the background: where the rule names a time, the head of the queue waits for it.

    An object serves one event loop at a time. What a finished event loop left behind, waiting or in
    flight, is forgotten when another one comes.
    """

    def __init__(self) -> None:
        self._timeline = Timeline()
        self._queue: FairQueue[QueuedPermit] = FairQueue()
        self._loop: EventLoopToken | None = None
        self._keeper: QueuedPermit | None = None  # The head when it was last looked at.
        self._seen_at = 0.0
        self._paused_until = -math.inf
        self._admitted = 0
        self._refused = 0
        self._max_in_flight = 0

    @abstractmethod
    def _delay(self, now: float, permit: QueuedPermit) -> float:
        """Return in how many seconds the head of the queue may go: 0 for now.

        ``math.inf`` means: not before a request ends or the limit changes.
        """

    def _granted(self, now: float, permit: QueuedPermit) -> None:  # noqa: B027 (need not be overridden)
        """Note that a request goes; its queue has counted it already."""

    def _ended(  # noqa: B027 (need not be overridden)
        self, now: float, permit: QueuedPermit, end: RequestEnd
    ) -> None:
        """Note how a request ended, before its queue stops counting it."""

    async def acquire(self, request: Request, backend: Backend) -> QueuedPermit:  # noqa: ARG002
        """Wait until a request may be sent; see `Limit.acquire`."""
        await checkpoint_if_cancelled()
        self._enter_loop()
        permit = QueuedPermit(request, self._queue, self._release)
        started = request.meta.call_started
        self._queue.join(permit, anyio.current_time() if started is None else started)
        self._pump_for_new_head()
        if permit.waiting:
            await self._wait(permit)
        return permit

    async def _wait(self, permit: QueuedPermit) -> None:
        try:
            while permit.waiting:
                await permit.wait()
                if permit.waiting:
                    self._pump()
            # Granted and cancelled in one moment: nothing has been sent, and nothing shall be. The
            # reply that made room may be the very one that makes this request superfluous; its
            # call takes so many steps to say so.
            for _ in range(STEPS_TO_CANCEL):
                await checkpoint()
        except BaseException as exc:
            self._admitted -= permit.in_flight
            self._release(permit, RequestEnd(Usage(), None, exc))
            raise

    def _pause_left(self, now: float) -> float:
        """Return for how many seconds nobody goes, since the server refused a request."""
        return max(0.0, self._paused_until - now)

    def _pause_after(self, now: float, refusal: RateLimited) -> None:
        """Let nobody go for as long as a 429 asks for."""
        self._refused += 1
        seconds = min(told_to_wait(refusal) or UNNAMED_PAUSE, LONGEST_PAUSE)
        self._paused_until = max(self._paused_until, now + seconds)

    def _pump_for_new_head(self) -> None:
        """Do what `_pump` does after a change that only matters if there is a new head."""
        if self._queue.head() is not self._keeper:
            self._pump()

    def _pump(self) -> None:
        """Let everybody go who may, and have the next one wait for the right moment."""
        queue, delay = self._queue, math.inf
        now = self._seen_at = self._timeline.now()
        queue.expire(now)
        while (head := queue.head()) is not None:
            delay = self._delay(now, head)
            if delay > TICK:
                break
            queue.admit(head)
            self._admitted += 1
            self._max_in_flight = max(self._max_in_flight, queue.in_flight)
            self._granted(now, head)
            head.wake()
        if self._keeper is not None and self._keeper is not head:
            self._keeper.set_alarm(math.inf)
        self._keeper = head
        if head is not None:
            head.set_alarm(self._timeline.on_loop(now + delay) if delay < math.inf else delay)

    def _release(self, permit: QueuedPermit, end: RequestEnd) -> None:
        if self._in_loop():
            was_in_flight = permit.in_flight
            undecided_until = None
            if was_in_flight:
                now = self._timeline.now()
                self._ended(now, permit, end)
                if end.generation is not None and permit.meta.purpose == "generate":
                    undecided_until = now + CHECKING
            permit.queue.leave(permit, undecided_until)
            if was_in_flight:
                self._pump()
            else:
                self._pump_for_new_head()
        else:
            # Left behind by an event loop that is over, or an abandoned coroutine is collected.
            permit.queue.leave(permit)
            self._changed()

    def _changed(self) -> None:
        """Look again who may go, from wherever this is called."""
        if not self._queue.waiting or self._loop is None:
            return
        if self._in_loop():
            self._pump()
        else:
            with suppress(RuntimeError):  # The event loop has ended, and with it all who waited.
                call_soon(self._loop, self._nudge)

    def _nudge(self) -> None:
        """Have the head of the queue look again; in a callback, anyio may not know where it is."""
        head = self._queue.head()
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
        return {**vars(self), "_loop": None, "_queue": FairQueue(), "_keeper": None}

    def _enter_loop(self) -> None:
        token = current_token()
        if token == self._loop:
            return
        queue = self._queue
        if self._loop is not None and (queue.waiting or queue.in_flight) and loop_runs(self._loop):
            msg = (
                f"this {type(self).__name__} serves another event loop, where {queue.waiting}"
                f" requests wait and {queue.in_flight} are in flight: use one limiter in each"
                " event loop, or one SyncSampler for all threads"
            )
            raise RuntimeError(msg)
        self._loop = token
        self._queue = FairQueue()
        self._keeper = None
