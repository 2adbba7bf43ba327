"""One backoff gate for each backend and key: what one request learns of a server, all others obey.

When one is told to wait, all wait; when many in a row fail, a circuit breaker lets none through.
The breaker's pattern is Michael T. Nygard's ("Release It!", second edition, chapter 5).
"""

from __future__ import annotations

import math
import random
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakValueDictionary, finalize

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.core.backend import BackendWrapper, innermost
from mellea_like.errors import BackendUnavailable, CircuitOpen, MalformedResponse, RateLimited
from mellea_like.runtime.logs import inform, warn
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.errors import BackendError
    from mellea_like.limits.retry import Retry

__all__ = [
    "JITTER",
    "PATIENT",
    "BackoffGate",
    "BackoffGateStatistics",
    "CircuitBreaker",
    "come_back_in",
    "gate_before",
    "gate_of",
    "is_answer",
    "spread_after",
    "told_to_wait",
    "too_long",
]

SPREAD = 0.1
"""Those who waited arrive spread over this share of the time that the gate was closed."""

MAX_SPREAD = 1.0
"""... and over this many seconds at most."""

TOO_MANY_REQUESTS = 429

TRIP_AFTER = 8
"""Requests in a row that may fail before a backend is left alone."""

FIRST_PAUSE = 1.0
"""Seconds that the circuit stays open the first time; each failed probe doubles them."""

LONGEST_PAUSE = 30.0

FLAKY_SECONDS = 10.0
"""After an answer that ended a row of failures, the server counts as flaky for so long."""

FLAKY_FACTOR = 3
"""How many times longer the row has to be with a flaky server."""

TICK = 1e-9
"""Seconds that count as none: what may be left when a timer has run."""

A_DAY = 86_400.0
"""A server that asks for more is taken to ask for a day."""

EXACT = 100.0
"""Seconds; of longer times, nobody reads a fraction of a second."""

LOOK_AGAIN = 1.0
"""Seconds after which a probe is looked for that another thread's event loop sends."""

PATIENT: ContextVar[bool] = ContextVar("mellea_like_patient", default=False)
"""Whether requests wait for a backend that is not reachable, as those of a batch do."""

JITTER = random.Random()
"""Chooses the moments of retries. A call's seed has no say in it: it is about replies, and calls
with the same one are not to retry at the same time. A virtual clock seeds it."""

T = TypeVar("T")


class BackoffGateStatistics(NamedTuple):
    """A snapshot of a backoff gate.

    Attributes:
        waiting: requests that wait for it now.
        failures: requests in a row that did not reach the backend, or got a 5xx.
        unsent: requests that failed unsent since too many in a row had failed.
    """

    waiting: int
    failures: int
    unsent: int


class BackoffGate:
    """Stands before a backend, and is closed while its server wants to be left alone or is down.

    A gate outlives event loops. Requests that waited for it do not arrive all at once: each adds a
    random part of a tenth of the time that the gate was closed, at most of a second.

    Args:
        where: the backend's name, for errors.
    """

    def __init__(self, where: str = "this backend") -> None:
        self._where = where
        self._breaker = CircuitBreaker()
        self._probe_awaited: list[tuple[EventLoopToken, anyio.Event]] = []
        self._timeline = Timeline()
        self._opens: float | None = None
        self._server_back = 0.0
        self._spread = 0.0
        self._waiting = 0
        self._reached = False

    @property
    def closed(self) -> bool:
        """Whether a request has to wait now. Cheap while it is open: ask before each request."""
        opens = self._opens  # Another thread's event loop may open it meanwhile.
        return (opens is not None and self._still_closed(opens)) or (
            self._breaker.next_probe is not None
        )

    @property
    def failing(self) -> bool:
        """Whether `answered` wants to know of an answer: requests failed, or this is the first."""
        return self._breaker.failures > 0 or not self._reached

    @property
    def down(self) -> bool:
        """Whether the circuit breaker lets no request through now, not even as a probe."""
        return self._breaker.stands_open(self._timeline.now())

    @property
    def reached(self) -> bool:
        """Whether the server has ever answered, if only with an error."""
        return self._reached

    @property
    def outage(self) -> str | None:
        """What the last request failed with, while the circuit breaker isn't closed; else None."""
        return None if self._breaker.next_probe is None else self._breaker.last_error

    def statistics(self) -> BackoffGateStatistics:
        """Return a snapshot of the gate."""
        return BackoffGateStatistics(self._waiting, self._breaker.failures, self._breaker.unsent)

    async def send(
        self, send: Callable[[Request], Awaitable[T]], request: Request, policy: Retry | None
    ) -> T:
        """Send a request once, as soon as it may be sent; what it raises is for `heard`.

        Args:
            send: sends it.
            request: what is sent.
            policy: how long it may wait; None for as long as it takes.

        Returns:
            What ``send`` returned.
        """
        if self.closed:
            await self.wait(request, policy)
        try:
            reply = await send(request)
            if self.failing:
                self.answered()
            return reply
        finally:
            if self._breaker.ended(request):
                self._probe_has_ended()

    def answered(self) -> None:
        """Hear that the backend has answered a request."""
        self._reached = True
        self._breaker.answered(self._timeline.now())
        self._probe_has_ended()

    def heard(self, error: BackendError, policy: Retry | None) -> None:
        """Hear what a request failed with: too many failures in a row open the circuit breaker."""
        most = TRIP_AFTER if policy is None else policy.trip_after
        answer = is_answer(error)
        now = self._timeline.now()
        self._reached = self._reached or error.status is not None
        if answer and self.failing:
            self.answered()
        elif answer is False and most is not None and self._breaker.failed(now, error, most):
            tell = warn if self._breaker.first_time else inform  # A mistyped address is noticed.
            tell("%s", self._breaker.description(now, self._where))

    def close(self, seconds: float, *, told: float | None = None) -> None:
        """Close the gate for some seconds from now; never for less than it is already closed.

        ``told`` is how long the server wants to be left alone, where that is longer: requests that
        come meanwhile obey it, or fail if they may not wait so long. When the gate opens, the
        server is asked again.
        """
        now = self._timeline.now()
        opens, back = now + seconds, now + (seconds if told is None else max(told, seconds))
        before = self._opens
        if before is not None and now < before:
            opens, back = max(opens, before), max(back, self._server_back)
        self._opens, self._server_back = opens, back
        self._spread = spread_after(back - now)

    async def wait(self, request: Request, policy: Retry | None) -> None:
        """Wait until the gate is open if a request may wait so long; else fail now, unsent.

        Without a policy it does not obey what the server told others.
        """
        self._waiting += 1
        try:
            began = self._timeline.now()
            while True:
                opens = self._opens
                if policy is not None and opens is not None and self._still_closed(opens):
                    await self._wait_once(request, policy)
                elif await self._passes_breaker(request, policy, began):
                    return
        except BaseException:
            request.meter.sent_nothing()
            raise
        finally:
            self._waiting -= 1

    async def _wait_once(self, request: Request, policy: Retry) -> None:
        left = self._server_back - self._timeline.now()
        until = self._server_back + self._spread * JITTER.random()
        time_left, why = _time_left(request), ""
        if left > policy.max_retry_after:
            why = too_long(policy.max_retry_after)
        elif until - self._timeline.now() > time_left:
            why = f"the call's time is up in {max(time_left, 0.0):.3g} s"
        if why:
            msg = f"this backend's server asked to be left alone: {come_back_in(left)}; {why}"
            raise RateLimited(
                msg, status=TOO_MANY_REQUESTS, retryable=False, retry_after=max(left, 0.0)
            )
        await anyio.sleep_until(self._timeline.on_loop(until))

    async def _passes_breaker(self, request: Request, policy: Retry | None, began: float) -> bool:
        """Tell whether a request may be sent now; if not, wait until that may have changed."""
        if policy is not None and policy.trip_after is None:
            return True
        now = self._timeline.now()
        wait = self._breaker.ask(now, request)
        if not wait:
            return True
        if wait < math.inf:
            time_left = _time_left(request)
            patience = 0.0
            if policy is not None and PATIENT.get():
                patience = began + policy.max_retry_after - now
            if wait > min(patience, time_left):
                late = f"; the call's time is up in {time_left:.3g} s" if wait > time_left else ""
                raise self._breaker.refusal(now, self._where, late)
        mine = current_token(), anyio.Event()
        self._probe_awaited.append(mine)
        try:
            with anyio.move_on_after(min(wait, LOOK_AGAIN)):
                await mine[1].wait()
        finally:
            self._probe_awaited.remove(mine)
        return False

    def _probe_has_ended(self) -> None:
        here = current_token()
        for loop, event in self._probe_awaited:
            if loop == here:
                event.set()

    def _still_closed(self, opens: float) -> bool:
        if self._timeline.now() < opens:
            return True
        if self._opens == opens:
            self._opens = None
        return False


class CircuitBreaker:
    """Counts a backend's failures in a row, and says whether another request may be sent.

    - Closed, it lets everything through. Any answer closes it.
    - Open, it lets nothing through for a pause.
    - Half-open, it lets one request through at a time, the probe: after half of the failures that
      open it, and after each pause.

    Pure: the time is passed in.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.unsent = 0
        self.next_probe: float | None = None
        """When the next probe may be sent; None while it is closed."""
        self._pause = 0.0
        self._probe: object = None
        self._answered_at = -math.inf
        self.last_error = ""
        self._status: int | None = None

    @property
    def first_time(self) -> bool:
        """Whether it has opened once since the last answer."""
        return self._pause == FIRST_PAUSE

    def ask(self, now: float, request: object) -> float:
        """Return 0 if a request may be sent, perhaps as the probe; else when to ask again.

        That is in so many seconds, infinitely many while another probe is under way.
        """
        if self.next_probe is None:
            return 0.0
        if self.stands_open(now):
            return self.next_probe - now if now < self.next_probe - TICK else math.inf
        self._probe = request
        return 0.0

    def stands_open(self, now: float) -> bool:
        """Tell whether no request may be sent: it isn't time yet, or a probe is under way."""
        return self.next_probe is not None and (
            now < self.next_probe - TICK or self._probe is not None
        )

    def failed(self, now: float, error: BackendError, most: int) -> bool:
        """Count a request that failed; tell whether that opened the breaker."""
        self.failures += 1
        self.last_error, self._status = str(error), error.status
        if now < self._answered_at + FLAKY_SECONDS:
            most *= FLAKY_FACTOR
        if self.failures >= most:
            if self.next_probe is not None and now < self.next_probe - TICK:
                return False  # It was sent before.
            self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
            self.next_probe = now + self._pause
            return True
        if self.failures >= most // 2:
            self.next_probe = now
        return False

    def answered(self, now: float) -> None:
        """Hear that the backend has answered."""
        if self.failures:
            self._answered_at = now
        self.failures, self.next_probe, self._pause = 0, None, 0.0

    def ended(self, request: object) -> bool:
        """Hear that a request has ended, however it did; tell whether it was the probe."""
        if self._probe is not request:
            return False
        self._probe = None
        return True

    def refusal(self, now: float, where: str, late: str = "") -> CircuitOpen:
        """Count a request as not sent, and return its error."""
        self.unsent += 1
        return CircuitOpen(
            self.description(now, where, late),
            status=self._status,
            retry_after=self._left(now),
        )

    def description(self, now: float, where: str, late: str = "") -> str:
        """Describe a backend that is not reachable."""
        return (
            f"{where}: not reachable, {self.failures} requests failed in a row;"
            f" the next try is in {self._left(now):.3g} s{late};"
            f" the last failure: {self.last_error}"
        )

    def _left(self, now: float) -> float:
        return 0.0 if self.next_probe is None else max(0.0, self.next_probe - now)


def is_answer(error: BackendError) -> bool | None:
    """Tell whether an error shows that a backend is up, such as a 429; None if it says neither.

    False where the backend can't be reached or answers with a 5xx. Neither: a reply that takes too
    long may only be a long one, a gate's refusal was never sent, and a backend that has given up by
    itself isn't waited for.
    """
    if isinstance(error, BackendUnavailable | RateLimited) and not error.retryable:
        return None
    if isinstance(error, BackendUnavailable):
        return False
    return True if isinstance(error, RateLimited | MalformedResponse) or error.status else None


def spread_after(seconds: float) -> float:
    """Return over how many seconds those who waited are spread when a gate opens."""
    return min(SPREAD * seconds, MAX_SPREAD)


def too_long(cap: float) -> str:
    """Say why a request does not wait, for a message."""
    return f"that is longer than this request may wait (max_retry_after={cap:g})"


def come_back_in(seconds: float) -> str:
    """Say when to come back, for a message."""
    return f"come back in {seconds:.0f} s" if seconds >= EXACT else f"come back in {seconds:.3g} s"


def told_to_wait(error: BackendError) -> float | None:
    """Return for how many seconds the server wants to be left alone, a day at most.

    None where it did not say, or said something that makes no sense.
    """
    seconds: object = error.retry_after
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return float(min(seconds, A_DAY)) if 0 < seconds < math.inf else None


def _time_left(request: Request) -> float:
    deadline = request.meta.deadline
    return math.inf if deadline is None else deadline - anyio.current_time()


_by_key: WeakValueDictionary[Hashable, BackoffGate] = WeakValueDictionary()
_by_backend: dict[int, BackoffGate] = {}
"""By the backend's ``id``: backends need not be hashable, and two that are equal stay two."""


def gate_of(backend: Backend) -> BackoffGate:
    """Return the gate before a backend.

    Backends whose ``limit_key`` is equal share one: an `OpenAIBackend`'s is its server and key. A
    backend without it has its own.

    Args:
        backend: the backend, wrapped or not.

    Returns:
        The gate of what is inside all wrappers; the same as long as that lives. A backend that
        can't be weakly referenced and has no key gets a new one each time.
    """
    backend = innermost(backend)
    number = id(backend)
    gate = _by_backend.get(number)
    if gate is None:
        gate = BackoffGate(_where(backend))
        key = getattr(backend, "limit_key", None)
        with suppress(TypeError):  # A key that can't be hashed counts as none.
            gate = gate if key is None else _by_key.setdefault(key, gate)
        with suppress(TypeError):
            finalize(backend, _by_backend.pop, number, None).atexit = False
            _by_backend[number] = gate
    return gate


def _where(backend: Backend) -> str:
    name = getattr(backend, "provider", type(backend).__name__)
    try:
        url = getattr(backend, "base_url", None)
    except ValueError:  # The URL is invalid; the first request will say so.
        url = None
    return str(name) if url is None else f"{name} at {url}"


def gate_before(backend: Backend) -> BackoffGate | None:
    """Return the gate before a backend; None where the backend retries by itself."""
    outermost = backend
    while not getattr(backend, "retries", False):
        if not isinstance(backend, BackendWrapper):
            return gate_of(outermost)
        backend = backend.inner
    return None
