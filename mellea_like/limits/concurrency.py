"""Caps on the requests in flight: fixed, shared between processes, or adapted to the server."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import whole_number
from mellea_like.errors import BackendError, BackendUnavailable, RateLimited
from mellea_like.limits.budget_accounts import Amounts
from mellea_like.limits.fair_queue import QueuedLimit
from mellea_like.limits.store import check_store

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.base import RequestEnd
    from mellea_like.limits.fair_queue import QueuedPermit
    from mellea_like.limits.store import Reservation, Store

__all__ = ["AdaptiveLimiter", "ConcurrencyLimiter", "StoreConcurrency", "Window"]

DECREASE = 0.7
"""After a 429, the window (see `Window`) is multiplied by this factor."""

CUT_INTERVAL = 0.2
"""For this many seconds after it shrank, a window ignores 429s, which answer older requests."""

GROWTH_PAUSE = 1.0
"""After a 5xx, the window stops growing for this many seconds, but does not shrink."""


class ConcurrencyLimiter(QueuedLimit):
    """Caps the number of requests in flight, over all backends and calls that share this limiter.

    Waiting requests are admitted in the order of a `FairQueue`. ``limiter.concurrency`` can be set
    at any time. If it is lowered, requests in flight may still finish.

    Args:
        concurrency: the largest number of requests in flight, at least 1.

    Raises:
        TypeError: the concurrency is not an int.
        ValueError: the concurrency is less than 1.
    """

    def __init__(self, concurrency: int) -> None:
        super().__init__()
        self._concurrency = whole_number("ConcurrencyLimiter: concurrency", concurrency)

    @property
    def concurrency(self) -> int:
        """The largest number of requests in flight. Setting it takes effect immediately."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._concurrency = whole_number("ConcurrencyLimiter: concurrency", concurrency)
        self._changed()

    def _delay(self, now: float, permit: QueuedPermit) -> float:  # noqa: ARG002
        return 0.0 if self._queue.in_flight < self._concurrency else math.inf


class StoreConcurrency:
    """Caps the number of requests in flight, over all processes that use the same name in a store.

    Waiting requests are admitted in the order of arrival. When a process dies, its requests no
    longer count.

    Args:
        concurrency: the largest number of requests in flight, at least 1.
        store: the store that counts the requests, such as an `SQLiteStore`.
        name: the name of the limit in the store.

    Raises:
        TypeError: the concurrency is not an int, or ``store`` isn't a store.
        ValueError: the concurrency is less than 1, or there is no name.
    """

    def __init__(self, concurrency: int, *, store: Store, name: str) -> None:
        most = whole_number("StoreConcurrency: concurrency", concurrency)
        check_store("a StoreConcurrency", store, name)
        self._store = store
        self._account = store.account(name, (most, math.inf, math.inf, math.inf))

    async def acquire(self, request: Request, backend: Backend) -> _Place:  # noqa: ARG002
        """Wait until a request may be sent; see `Limit`."""
        return _Place(await self._store.reserve([(self._account, Amounts(requests=1))]))


class _Place(NamedTuple):
    held: Reservation

    def release(self, end: RequestEnd) -> None:  # noqa: ARG002
        self.held.settle([Amounts()])


class Window:
    """The number of requests that may be in flight: additive increase, multiplicative decrease.

    The rule is from D.-M. Chiu and R. Jain ("Analysis of the increase and decrease algorithms for
    congestion avoidance in computer networks", 1989): users who grow by a constant and shrink by a
    factor end up sharing a resource fairly. Before the first 429, the window grows as in TCP's slow
    start (RFC 5681): by 1 with each success, so it doubles in the time that a request takes.

    The window grows only while it is full, as RFC 7661 requires of TCP. Otherwise, the successes of
    a few requests at a time would let it grow until it limits nothing. A window reads no clock:
    callers pass the time in.
    """

    __slots__ = ("_cut_at", "_grows_from", "maximum", "size", "slow_start")

    def __init__(self, size: float, maximum: float) -> None:
        self.size = float(size)
        self.maximum = float(maximum)
        self.slow_start = True
        self._cut_at = -math.inf
        self._grows_from = -math.inf

    @property
    def whole(self) -> int:
        """The size, rounded down to whole requests."""
        return int(self.size)

    def succeeded(self, now: float, in_flight: int) -> None:
        """Grow after a successful request, if the window was full."""
        if in_flight >= self.whole and now >= self._grows_from:
            self.size = min(self.size + (1.0 if self.slow_start else 1 / self.size), self.maximum)

    def refused(self, now: float) -> None:
        """Shrink after a 429, unless it has just shrunk."""
        self.slow_start = False
        if now - self._cut_at >= CUT_INTERVAL:
            self._cut_at = now
            self.size = max(1.0, self.size * DECREASE)

    def failed(self, now: float) -> None:
        """Stop growing for a while after a 5xx."""
        self._grows_from = now + GROWTH_PAUSE


class AdaptiveLimiter(QueuedLimit):
    """Adapts the number of requests in flight to a server whose rate limit is unknown.

    The window is the number of requests that may be in flight. It grows with successes. It shrinks
    by 30 % when the server answers with a 429, at most once in 0.2 s and never below 1; see
    `Window`. After a 429, no request is sent until the time that the 429 names (at most 120 s), or
    for 0.2 s if it names none. A 5xx stops growth for a second. Other errors and cancellations
    change nothing.

    Share one limiter among all calls on the same server and key. Put it inside the retries, so
    that it sees each answer: ``LimitedBackend(backend, limiter)`` is the backend to retry. Waiting
    requests are admitted in the order of a `FairQueue`.

    Args:
        initial: the initial window, at least 1.
        maximum: the largest window, at least ``initial``.

    Raises:
        TypeError: an argument isn't an int.
        ValueError: an argument is less than 1, or ``initial`` is more than ``maximum``.
    """

    def __init__(self, initial: int = 8, *, maximum: int = 1000) -> None:
        super().__init__()
        most = whole_number("AdaptiveLimiter: maximum", maximum)
        self._window = Window(whole_number("AdaptiveLimiter: initial", initial, most=most), most)

    @property
    def concurrency(self) -> int:
        """The current limit on requests in flight. After it is set, it continues to adapt."""
        return self._window.whole

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        most = self._window.maximum
        self._window.size = float(
            whole_number("AdaptiveLimiter: concurrency", concurrency, most=most)
        )
        self._changed()

    def _delay(self, now: float, permit: QueuedPermit) -> float:  # noqa: ARG002
        return self._pause_left(now) if self._queue.in_flight < self._window.whole else math.inf

    def _ended(self, now: float, permit: QueuedPermit, end: RequestEnd) -> None:  # noqa: ARG002
        error = end.error
        if isinstance(error, RateLimited):
            self._window.refused(now)
        elif isinstance(error, BackendUnavailable) or (
            isinstance(error, BackendError) and (error.status or 0) >= 500  # noqa: PLR2004
        ):
            self._window.failed(now)
        elif end.generation is not None and error is None:
            self._window.succeeded(now, self._queue.in_flight)
