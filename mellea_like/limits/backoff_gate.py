"""Backoff gates, which hold requests back while a server asks for a pause or is down.

All requests with the same server and API key share one gate. When the server tells one request to
wait, all requests wait. When many requests in a row fail, a circuit breaker in the gate blocks all
requests. The breaker is Michael T. Nygard's pattern ("Release It!", second edition, chapter 5).
"""

from __future__ import annotations

import math
import random
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakValueDictionary, finalize

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.core.backend import PATIENT, BackendWrapper, innermost
from mellea_like.errors import BackendError, RateLimited
from mellea_like.limits.circuit_breaker import (
    LAST_FAILURE,
    UNREACHABLE,
    CircuitBreaker,
    is_answer,
)
from mellea_like.runtime.logs import inform, warn
from mellea_like.runtime.timeline import TICK, Timeline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.retry import Retry

__all__ = ["BackoffGate", "BackoffGateStatistics", "gate_of"]

SPREAD = 0.1
"""When a gate opens, waiting requests are spread over this share of the time it was closed."""

MAX_SPREAD = 1.0
"""The longest time over which waiting requests are spread, in seconds."""

TOO_MANY_REQUESTS = 429

TRIP_AFTER = 4
"""By default, the circuit breaker opens after this number of failed requests in a row."""

FLAKY_SECONDS = 10.0
"""If the server has answered within this many seconds, failures don't open the circuit breaker."""

A_DAY = 86_400.0
"""If a server asks for a wait of more than this many seconds, the wait is cut to this length."""

EXACT = 100.0
"""Messages show waits of this many seconds or more without fractions."""

LOOK_AGAIN = 1.0
"""The seconds after which a waiting request checks whether another thread has opened the gate."""

JITTER = random.Random()
"""The random number generator for the delays of retries.

A call's seed doesn't seed this generator, because two calls with the same seed must not retry at
the same time. `VirtualClock` seeds it, so that tests are repeatable.
"""

T = TypeVar("T")


class BackoffGateStatistics(NamedTuple):
    """A snapshot of a backoff gate.

    Attributes:
        waiting: the number of requests waiting at the gate now.
        failures: the number of failures in a row up to now (requests that did not reach the
            backend, or got a 5xx); 0 after any other answer.
        unsent: the number of requests that failed without being sent, because the circuit stayed
            open for longer than they were allowed to wait.
    """

    waiting: int
    failures: int
    unsent: int


class BackoffGate:
    """A gate in front of a backend, closed while the server asks clients to wait or is down.

    A gate may be used in several event loops. When the gate opens, the waiting requests are not all
    sent at the same moment: each waits for a further random time, up to a tenth of the time that
    the gate was closed and at most a second.

    Args:
        where: the backend's name, for messages.
    """

    def __init__(self, where: str = "this backend") -> None:
        self._where = where
        self.breaker = CircuitBreaker()
        self._waiting_for_news: dict[anyio.Event, EventLoopToken] = {}
        self._timeline = Timeline()
        self.opens: float | None = None
        """The time at which the gate opens; None if it was open when last checked."""
        self._server_back = 0.0
        self._spread = 0.0
        self._waiting = 0
        self._reached = False
        # Each answer reads this clock, so it is the event loop's own: a `Timeline` takes five
        # times as long. The clock of another loop shows the same time, or one that is far away.
        self.answered_at = -math.inf

    @property
    def closed(self) -> bool:
        """Whether to call `wait` before sending a request. This is cheap while the gate is open."""
        opens = self.opens  # Another thread may open it.
        return (opens is not None and self._still_closed(opens)) or (
            self.breaker.next_probe is not None
        )

    @property
    def down(self) -> bool:
        """Whether the circuit breaker lets no request through now, not even to test the server."""
        return self.breaker.seconds_left(self._timeline.now()) > 0

    @property
    def reached(self) -> bool:
        """Whether the server has ever answered, even with an error."""
        return self._reached or self.answered_at > -math.inf

    @property
    def outage(self) -> str | None:
        """The message of the last failure if the circuit breaker is open, else None."""
        return None if self.breaker.next_probe is None else self.breaker.last_error

    def statistics(self) -> BackoffGateStatistics:
        """Return a snapshot of the gate."""
        return BackoffGateStatistics(self._waiting, self.breaker.failures, self.breaker.unsent)

    async def send(
        self,
        send: Callable[[Request], Awaitable[T]],
        request: Request,
        policy: Retry | None,
    ) -> T:
        """Send a request once, as soon as the gate allows it.

        If ``send`` raises an error, the caller must pass the error to `heard`.

        Args:
            send: the function that sends the request.
            request: the request to send.
            policy: determines how long the request may wait. With None, the request ignores the
                pauses that the server asked for, and may not wait for a backend that is down.

        Returns:
            The result of ``send``.
        """
        probe = self.closed and await self.wait(request, policy)
        try:
            reply = await send(request)
            self.answered(anyio.current_time())
            return reply
        finally:
            if probe:
                self.probe_ended()

    def answered(self, now: float) -> None:
        """Record that the backend has answered a request at ``now`` on the event loop's clock."""
        self.answered_at = now
        breaker = self.breaker
        if breaker.failures:
            if breaker.next_probe is not None:
                seconds = self._timeline.now() - breaker.opened_at
                inform("%s: reachable again, after %.3g s", self._where, seconds)
            breaker.answered()
            self._tell_the_waiting()

    def heard(self, error: BaseException, policy: Retry | None) -> None:
        """Record a request's error.

        A transient error with a ``Retry-After`` closes the gate. Too many failures in a row open
        the circuit breaker.
        """
        if not isinstance(error, BackendError):
            return  # It doesn't tell which server failed.
        if policy is not None and policy.transient(error) and (asked := told_to_wait(error)):
            self.close(min(asked, policy.max_retry_after), told=asked)
        most = TRIP_AFTER if policy is None else policy.trip_after
        answer = is_answer(error)
        if answer:
            self.answered(anyio.current_time())
            return
        self._reached = self._reached or error.status is not None
        if answer is None or most is None or error.copied:
            return
        now = self._timeline.now()
        flaky = 0 <= anyio.current_time() - self.answered_at < FLAKY_SECONDS
        if self.breaker.failed(now, error, most, flaky=flaky):
            # The gateway hides the arguments of log records that are texts, but not the numbers.
            state = self.breaker.state(now, self._where)
            warn(UNREACHABLE + LAST_FAILURE, *state, self.breaker.last_error)

    def close(self, seconds: float, *, told: float | None = None) -> None:
        """Close the gate for ``seconds`` from now, unless it is already closed for longer.

        ``told`` is how many seconds the server asked clients to wait, by default ``seconds``. It
        may be longer than the gate is closed. A request that arrives while the gate is closed waits
        for all of ``told``, or fails if it may not wait so long. A request that arrives later is
        sent immediately, even within ``told``, to try the server again.
        """
        now = self._timeline.now()
        opens, back = now + seconds, now + (seconds if told is None else max(told, seconds))
        before = self.opens
        if before is not None and now < before:
            opens, back = max(opens, before), max(back, self._server_back)
        self.opens, self._server_back = opens, back
        self._spread = spread_after(back - now)

    async def wait(
        self, request: Request, policy: Retry | None, patience: Patience | None = None
    ) -> bool:
        """Wait until a request may be sent; return whether it is sent as a probe.

        A request that isn't allowed to wait long enough fails immediately, without being sent.

        Args:
            request: the request to send.
            policy: determines how long the request may wait; None means the same as in `send`.
            patience: how long the request may still wait for a backend that is down. The default
                depends on the policy.

        Returns:
            Whether the request is sent as a probe of a backend that was down. If so, call
            `probe_ended` when the request has ended.
        """
        patience = Patience(policy) if patience is None else patience
        obeys_breaker = policy is None or policy.trip_after is not None
        self._waiting += 1
        waited = 0.0
        try:
            while True:
                opens = self.opens
                if policy is not None and opens is not None and self._still_closed(opens):
                    await self._wait_once(request, policy)
                elif not obeys_breaker or self.breaker.next_probe is None:
                    if not waited:
                        return False
                    # This keeps the waiting requests from being sent all at once.
                    spread, waited = JITTER.random() * spread_after(waited), 0.0
                    await anyio.sleep(spread)
                elif self.breaker.begin_probe(self._timeline.now()):
                    return True
                else:
                    waited += await self._wait_for_news(request, patience)
        except BaseException:
            request.meter.sent_nothing()
            raise
        finally:
            self._waiting -= 1

    def probe_ended(self) -> None:
        """Record that a probe has ended, so that another request may take its place."""
        self.breaker.ended(self._timeline.now())
        self._tell_the_waiting()

    async def _wait_once(self, request: Request, policy: Retry) -> None:
        left = self._server_back - self._timeline.now()
        until = self._server_back + self._spread * JITTER.random()
        time_left, why = _time_left(request), ""
        if left > policy.max_retry_after:
            why = too_long(policy.max_retry_after)
        elif until - self._timeline.now() > time_left:
            why = f"the call's time is up in {max(time_left, 0.0):.3g} s"
        if why:
            msg = f"{self._where} asked for a pause: {come_back_in(left)}; {why}"
            raise RateLimited(
                msg, status=TOO_MANY_REQUESTS, retryable=False, retry_after=max(left, 0.0)
            )
        await anyio.sleep_until(self._timeline.on_loop(until))

    async def _wait_for_news(self, request: Request, patience: Patience) -> float:
        """Wait until a probe is due or has ended, at most a second; return the seconds waited."""
        now, breaker = self._timeline.now(), self.breaker
        wait, time_left, left = breaker.seconds_left(now), _time_left(request), patience.left
        # During a probe, the server may be healthy and just writing a long reply.
        probing = breaker.probes > 0
        if time_left <= 0 or left < 0 or (not probing and wait > min(time_left, left) + TICK):
            why = f"; this request can wait {left:.3g} s, as long as its retries"
            if wait > time_left:
                why = f"; the call's time is up in {time_left:.3g} s"
            raise breaker.refusal(now, self._where, why if left >= 0 else "")
        news = anyio.Event()
        self._waiting_for_news[news] = current_token()
        try:
            with anyio.move_on_after(min(wait, time_left, LOOK_AGAIN)):
                await news.wait()
        finally:
            del self._waiting_for_news[news]
        waited = self._timeline.now() - now
        if not probing:
            patience.spend(waited)
        return waited

    def _tell_the_waiting(self) -> None:
        here = current_token()
        for news, loop in list(self._waiting_for_news.items()):
            if loop == here:
                news.set()

    def _still_closed(self, opens: float) -> bool:
        if self._timeline.now() < opens:
            return True
        if self.opens == opens:
            self.opens = None
        return False


class Patience:
    """How much longer a request, with all its tries, may wait for a backend that is down."""

    def __init__(self, policy: Retry | None) -> None:
        patient = PATIENT.get()
        self.left = 0.0 if policy is None else policy.longest_wait
        if patient and policy is not None:
            self.left = max(self.left, policy.max_retry_after)
        elif patient is False:
            self.left = -1.0  # Not even a probe is awaited.

    def spend(self, seconds: float) -> None:
        if self.left > 0:
            self.left = max(0.0, self.left - seconds)


def spread_after(seconds: float) -> float:
    """Return the seconds over which to spread requests after a wait of ``seconds``."""
    return min(SPREAD * seconds, MAX_SPREAD)


def too_long(cap: float) -> str:
    return f"that is longer than this request can wait (max_retry_after={cap:g})"


def come_back_in(seconds: float) -> str:
    return f"come back in {seconds:.0f} s" if seconds >= EXACT else f"come back in {seconds:.3g} s"


def told_to_wait(error: Exception) -> float | None:
    """Return the seconds that the server asked the client to wait, at most a day, or else None."""
    seconds: object = getattr(error, "retry_after", None)  # Perhaps of another library's error.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return float(min(seconds, A_DAY)) if 0 < seconds < math.inf else None


def _time_left(request: Request) -> float:
    deadline = request.meta.deadline
    return math.inf if deadline is None else deadline - anyio.current_time()


_by_key: WeakValueDictionary[Hashable, BackoffGate] = WeakValueDictionary()
_by_backend: dict[int, BackoffGate] = {}
"""The gates by the ``id`` of their backends, because backends may be unhashable or equal."""


def gate_of(backend: Backend) -> BackoffGate:
    """Return the gate in front of a backend.

    Backends with equal ``limit_key`` share a gate; the key of an `OpenAIBackend` consists of its
    server and API key. A backend without a ``limit_key`` has its own gate.

    Args:
        backend: the backend, wrapped or not.

    Returns:
        The gate of the innermost backend; it stays the same while that backend is alive. A backend
        that has no key and can't be weakly referenced gets a new gate each time.
    """
    backend = innermost(backend)
    number = id(backend)
    gate = _by_backend.get(number)
    if gate is None:
        gate = BackoffGate(_where(backend))
        key = getattr(backend, "limit_key", None)
        with suppress(TypeError):  # An unhashable key is ignored.
            gate = gate if key is None else _by_key.setdefault(key, gate)
        with suppress(TypeError):  # Not every backend can be referenced weakly.
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
    """Return the gate in front of a backend; None if that backend, or one inside, retries."""
    while not getattr(backend, "retries", False):
        if not isinstance(backend, BackendWrapper):
            return gate_of(backend)
        backend = backend.inner
    return None
