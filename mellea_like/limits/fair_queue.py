"""The queue in which requests wait for a shared limit, and the base class of such limits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled, current_token

from mellea_like.core.generation import Usage
from mellea_like.errors import RateLimited
from mellea_like.limits.backoff_gate import told_to_wait
from mellea_like.limits.base import RequestEnd
from mellea_like.runtime.event_loops import call_soon, loop_runs
from mellea_like.runtime.timeline import TICK, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.lowlevel import EventLoopToken

    from mellea_like.core.backend import Backend, Request

__all__ = ["FairQueue", "LimiterStatistics"]

SLACK = 32
"""Outdated entries are removed when a heap exceeds twice the waiting requests by this many."""


@dataclass(slots=True, eq=False)
class QueuedPermit:
    """One request in a limit's queue, which becomes its permit when the limit grants it."""

    request: Request
    queue: FairQueue
    give_back: Callable[[QueuedPermit, RequestEnd], None]
    wanted: Sequence[tuple[Any, float]] = ()  # The buckets of a rate, and the amounts to take.
    call: _Call | None = None
    waiting: bool = False
    _alarm: float = math.inf
    _event: anyio.Event | None = None

    @property
    def in_flight(self) -> bool:
        return self.call is not None and not self.waiting

    async def wait(self) -> None:
        """Wait until the permit is granted, or its alarm goes off or is moved up (`set_alarm`)."""
        self._event = event = anyio.Event()
        # Without a scope, a coroutine can be thrown away after its event loop has ended.
        if self._alarm == math.inf:
            await event.wait()
        else:
            with anyio.CancelScope(deadline=self._alarm):
                await event.wait()
        self._alarm = math.inf

    def wake(self) -> None:
        if self._event is not None:
            self._event.set()

    def set_alarm(self, at: float) -> None:
        """Set the time, on the event loop's clock, at which the wait ends even without a grant."""
        earlier = at < self._alarm - TICK
        self._alarm = at  # If that is later, it may go off once too early.
        if earlier:
            self.wake()

    def release(self, end: RequestEnd) -> None:
        """Give the permit back. Calling it again does nothing."""
        self.give_back(self, end)


_Permits: TypeAlias = "OrderedDict[QueuedPermit, None]"


@dataclass(slots=True, eq=False)
class _Call:
    """The requests of one call of ``sample`` that wait or are in flight."""

    name: str
    started: float
    order: int
    waiting: int = 0
    in_flight: int = 0
    undecided: dict[int, float] = field(default_factory=dict[int, float])
    permits: _Permits = field(default_factory=OrderedDict[QueuedPermit, None])  # Without judges'.
    stamp: int = 0  # Marks its live entry in the heap; 0 matches none.


class FairQueue:
    """Requests that wait for a limit or are in flight, in an order that is fair to calls.

    Judges' requests come first, because they finish a draw. Then come requests of the call with
    the fewest requests in flight. So the first attempt of each call precedes the second attempt of
    any call, and further lanes get only the capacity that is left over. Among equal calls, the one
    that started first comes first, and within a call, requests come in the order of arrival.
    Without this order, concurrency under a rate limit would be slower than no concurrency, because
    requests of lanes that are later cancelled would take the place of first attempts that would
    have passed.

    While a reply is being checked, its request still counts as in flight, until its lane sends
    another request or some time has passed. If the reply passes, the other lanes' requests need
    not be sent at all.

    Every operation takes O(log n) amortized time, n being the number of requests in the queue.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        # A heap of the calls with waiting requests: (requests in flight, start, order, stamp,
        # call). When a call moves, its old entry is dead, and is removed only when it reaches the
        # top.
        self._ready: list[tuple[int, float, int, int, _Call]] = []
        self._judges: _Permits = OrderedDict()
        self._undecided: deque[tuple[float, _Call, int]] = deque()
        self._arrivals = 0
        self._stamps = 0
        self.waiting = 0
        self.in_flight = 0

    def join(self, permit: QueuedPermit, now: float) -> None:
        """Add a waiting request. A call without ``meta.call_started`` is taken to start ``now``."""
        self._arrivals += 1
        meta = permit.request.meta
        call = self._calls.get(meta.sampling_id)
        if call is None:
            started = now if meta.call_started is None else meta.call_started
            call = _Call(meta.sampling_id, started, self._arrivals)
            if call.name:  # A request outside a call counts as a call.
                self._calls[call.name] = call
        permit.call = call
        permit.waiting = True
        call.waiting += 1
        self.waiting += 1
        subsample = meta.subsample or 0
        call.undecided.pop(subsample, None)
        if meta.purpose == "judge":
            self._judges[permit] = None
        else:
            call.permits[permit] = None
            self._rank(call)

    def head(self) -> QueuedPermit | None:
        """Return the waiting request that is next, or None if no request waits."""
        if self._judges:
            return next(iter(self._judges))
        ready = self._ready
        while ready and ready[0][4].stamp != ready[0][3]:
            heappop(ready)
        return next(iter(ready[0][4].permits)) if ready else None

    def admit(self, permit: QueuedPermit) -> None:
        """Count a waiting request as in flight from now on."""
        call: Any = permit.call  # A waiting request has a call.
        self._stop_waiting(permit, call)
        call.in_flight += 1
        self.in_flight += 1
        self._rank(call)

    def leave(self, permit: QueuedPermit, undecided_until: float | None = None) -> None:
        """Remove a request that waits or is in flight; ignore any other request.

        Until the time ``undecided_until``, the request's reply counts as being checked, and the
        call is ranked as if the request were in flight. None means that there is no reply to check.
        """
        call = permit.call
        if call is None:
            return
        permit.call = None
        if permit.waiting:
            self._stop_waiting(permit, call)
        else:
            call.in_flight -= 1
            self.in_flight -= 1
        if undecided_until is not None and call.waiting:
            subsample = permit.request.meta.subsample or 0
            call.undecided[subsample] = undecided_until
            self._undecided.append((undecided_until, call, subsample))
        self._rank(call)
        if not call.waiting and not call.in_flight:
            self._calls.pop(call.name, None)
        if not self.waiting:
            self._ready.clear()
        if not self.waiting and not self.in_flight:
            self._undecided.clear()  # No request is left for it to affect.

    def expire(self, now: float) -> None:
        """Stop counting replies as being checked if their ``undecided_until`` has passed."""
        while self._undecided and self._undecided[0][0] <= now:
            until, call, subsample = self._undecided.popleft()
            if call.undecided.get(subsample) == until:
                del call.undecided[subsample]
                self._rank(call)

    def _stop_waiting(self, permit: QueuedPermit, call: _Call) -> None:
        permit.waiting = False
        call.waiting -= 1
        self.waiting -= 1
        del (self._judges if permit.request.meta.purpose == "judge" else call.permits)[permit]

    def _rank(self, call: _Call) -> None:
        if not call.permits:
            call.stamp = 0
            return
        self._stamps += 1
        call.stamp = self._stamps
        busy = call.in_flight + len(call.undecided)
        heappush(self._ready, (busy, call.started, call.order, call.stamp, call))
        if len(self._ready) > 2 * self.waiting + SLACK:
            self._ready = [ranked for ranked in self._ready if ranked[4].stamp == ranked[3]]
            heapify(self._ready)


CHECKING = 2.0
"""The most seconds for which a request counts as in flight while its reply is being checked.

If the lane of the reply sends another request earlier, the check is over.
"""

STEPS_TO_CANCEL = 2
"""The number of event loop steps until the other lanes are cancelled after a reply passes."""

LONGEST_PAUSE = 120.0
"""The longest pause after a 429 in seconds, even if the 429 asks for more."""

UNNAMED_PAUSE = 0.2
"""The pause in seconds after a 429 that doesn't name one: about a round trip."""


class LimiterStatistics(NamedTuple):
    """A snapshot of a limiter.

    Attributes:
        in_flight: the number of admitted requests that have not ended.
        waiting: the number of waiting requests.
        admitted: the number of requests admitted since the limiter was made.
        max_in_flight: the largest number of requests that were in flight at one time.
        refused: the number of admitted requests that were answered with a 429.
    """

    in_flight: int
    waiting: int
    admitted: int
    max_in_flight: int
    refused: int


class QueuedLimit(ABC):
    """A limit whose requests wait in one `FairQueue`; `_pause_left` is the pause after a 429.

    All decisions are made in synchronous steps. Whenever a request arrives, ends or is withdrawn,
    or the limit changes, requests at the head of the queue are granted as long as `_delay` allows.
    No task runs in the background: if `_delay` returns a time, the request at the head of the queue
    itself waits until then.

    A limit serves one event loop at a time. When another event loop uses it, requests that a
    finished event loop left waiting or in flight are forgotten.
    """

    def __init__(self) -> None:
        self._timeline = Timeline()
        self._queue: FairQueue = FairQueue()
        self._loop: EventLoopToken | None = None
        self._keeper: QueuedPermit | None = None  # The head at the last look.
        self._paused_until = -math.inf
        self._admitted = 0
        self._refused = 0
        self._max_in_flight = 0

    @abstractmethod
    def _delay(self, now: float, permit: QueuedPermit) -> float:
        """Return the seconds until the queue's head may be sent; inf if that isn't known yet."""

    async def _ask(self, permit: QueuedPermit) -> bool:  # noqa: ARG002
        """Find out when the queue's head may be sent; return False if it was known already."""
        return False

    def _left(self, permit: QueuedPermit) -> None:  # noqa: B027 (need not be overridden)
        """Handle a request that has left the queue without a grant."""

    def _granted(self, now: float, permit: QueuedPermit) -> None:  # noqa: B027 (need not be overridden)
        """Handle a request that is granted; the queue has already counted it as in flight."""

    def _ended(  # noqa: B027 (need not be overridden)
        self, now: float, permit: QueuedPermit, end: RequestEnd
    ) -> None:
        """Handle the end of a request; the queue still counts it as in flight."""

    def statistics(self) -> LimiterStatistics:
        """Return how many requests wait, are in flight, and were admitted."""
        return LimiterStatistics(
            self._queue.in_flight,
            self._queue.waiting,
            self._admitted,
            self._max_in_flight,
            self._refused,
        )

    async def acquire(self, request: Request, backend: Backend) -> QueuedPermit:  # noqa: ARG002
        """Wait until a request may be sent; see `Limit.acquire`."""
        await checkpoint_if_cancelled()
        self._enter_loop()
        permit = QueuedPermit(request, self._queue, self._release)
        started = request.meta.call_started
        self._queue.join(permit, anyio.current_time() if started is None else started)
        self._pump()
        if permit.waiting:
            await self._wait(permit)
        return permit

    async def _wait(self, permit: QueuedPermit) -> None:
        try:
            while permit.waiting:
                if permit is self._keeper and await self._ask(permit):
                    self._pump()
                    continue
                await permit.wait()
                if permit.waiting:
                    self._pump()
            # If the request was granted and cancelled at the same time, nothing is sent. The reply
            # that made room for it may be the very one that makes it superfluous, and its call
            # needs this many steps to cancel it.
            for _ in range(STEPS_TO_CANCEL):
                await checkpoint()
        except BaseException as exc:
            self._admitted -= permit.in_flight
            self._release(permit, RequestEnd(Usage(), None, exc))
            raise

    def _pause_left(self, now: float) -> float:
        return max(0.0, self._paused_until - now)

    def _pump(self) -> None:
        """Grant all requests that may be sent now, and set the alarm of the next one."""
        queue, delay = self._queue, math.inf
        now = self._timeline.now()
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
                if isinstance(end.error, RateLimited):
                    self._refused += 1
                    seconds = min(told_to_wait(end.error) or UNNAMED_PAUSE, LONGEST_PAUSE)
                    self._paused_until = max(self._paused_until, now + seconds)
                self._ended(now, permit, end)
                if end.generation is not None and permit.request.meta.purpose == "generate":
                    undecided_until = now + CHECKING
            permit.queue.leave(permit, undecided_until)
            if not was_in_flight:
                self._left(permit)
            self._pump()
        else:
            # Its event loop has ended, or its coroutine was garbage-collected.
            permit.queue.leave(permit)
            self._changed()

    def _changed(self) -> None:
        """Check again which requests may be sent. May be called from any thread."""
        if not self._queue.waiting or self._loop is None:
            return
        if self._in_loop():
            self._pump()
        else:
            with suppress(RuntimeError):  # The event loop has ended, and all its requests with it.
                call_soon(self._loop, self._nudge)

    def _nudge(self) -> None:
        """Wake the task at the head of the queue to call `_pump`, as anyio needs a task for it."""
        head = self._queue.head()
        if head is not None:
            head.set_alarm(-math.inf)

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
                f"this {type(self).__name__} is in use in another event loop, where"
                f" {queue.waiting} requests are waiting and {queue.in_flight} are in flight: use"
                " one limiter per event loop, or one SyncSampler for all threads"
            )
            raise RuntimeError(msg)
        self._loop = token
        self._queue = FairQueue()
        self._keeper = None
