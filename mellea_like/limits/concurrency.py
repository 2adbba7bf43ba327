"""Caps on the requests in flight: fixed, shared by processes, or adapted to the server."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import whole_number
from mellea_like.errors import BackendError, BackendUnavailable, RateLimited
from mellea_like.limits.budget_accounts import Amounts
from mellea_like.limits.fair_queue import QueuedLimit

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.base import RequestEnd
    from mellea_like.limits.fair_queue import QueuedPermit
    from mellea_like.limits.store import Reservation, Store

__all__ = ["AdaptiveLimiter", "ConcurrencyLimiter", "StoreConcurrency", "Window"]

DECREASE = 0.7
"""The share of the window that remains after a 429."""

CUT_INTERVAL = 0.2
"""Seconds in which 429s count as one: they answer requests that were all sent before the cut."""

GROWTH_PAUSE = 1.0
"""Seconds without growth after a 5xx: the server is in trouble, but did not say it was our doing.
Then it resumes by itself, so that a server that recovers is used again at once."""


class ConcurrencyLimiter(QueuedLimit):
    """At most so many requests in flight, over all backends and calls that share it.

    Waiting requests go in the order of a `FairQueue`. Change ``limiter.concurrency`` at any time: a
    lower one lets requests in flight end.

    Args:
        concurrency: requests in flight at most, at least 1.

    Raises:
        TypeError: the concurrency is not an int.
        ValueError: the concurrency is less than 1.
    """

    def __init__(self, concurrency: int) -> None:
        super().__init__()
        self._concurrency = whole_number("ConcurrencyLimiter: concurrency", concurrency)

    @property
    def concurrency(self) -> int:
        """Requests in flight at most; setting it takes effect at once."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._concurrency = whole_number("ConcurrencyLimiter: concurrency", concurrency)
        self._changed()

    def _delay(self, now: float, permit: QueuedPermit) -> float:  # noqa: ARG002
        return 0.0 if self._queue.in_flight < self._concurrency else math.inf


class StoreConcurrency:
    """At most so many requests in flight, over all processes that use a name of a store.

    Those that wait go in the order in which they came. A process's requests in flight end with it.

    Args:
        concurrency: requests in flight at most, at least 1.
        store: the store.
        name: the name.
    """

    def __init__(self, concurrency: int, *, store: Store, name: str) -> None:
        most = whole_number("StoreConcurrency: concurrency", concurrency)
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
    """How many requests may be in flight: additive increase, multiplicative decrease.

    Pure: the time is passed in. The rule is that of D.-M. Chiu and R. Jain ("Analysis of the
    increase and decrease algorithms for congestion avoidance in computer networks", 1989): users
    who add a constant and take off a share come to share a resource fairly. Before the first 429 it
    grows as TCP does in slow start (RFC 5681): by 1 with each success, so it doubles in the time
    that a request takes.

    Only a window that was full grows, as RFC 7661 asks of TCP: successes of a few requests say
    nothing about many, and an idle limiter would drift up until it restrains nobody.
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
        """The size in whole requests."""
        return int(self.size)

    def succeeded(self, now: float, in_flight: int) -> None:
        """Grow, if the window was full."""
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
    """Keeps as many requests in flight as the server takes; for a rate limit that nobody knows.

    The window grows with successes and shrinks by 0.3 of itself when the server answers with a 429,
    at most once in 0.2 s and never under 1; see `Window`. After a 429 nobody goes until the time
    that it names, 120 s at most, or for 0.2 s where it names none. A 5xx stops growth for a second.
    Other errors and cancellations change nothing.

    Share one among all calls on one server and key, and put it inside the retries, so that it sees
    each answer: ``LimitedBackend(backend, limiter)`` is what is tried again. Waiting requests go in
    the order of a `FairQueue`.

    Args:
        initial: the window to begin with, at least 1.
        maximum: the largest window.

    Raises:
        TypeError: a number isn't an int.
        ValueError: a number is less than 1, or ``initial`` is more than ``maximum``.
    """

    def __init__(self, initial: int = 8, *, maximum: int = 1000) -> None:
        super().__init__()
        most = whole_number("AdaptiveLimiter: maximum", maximum)
        self._window = Window(whole_number("AdaptiveLimiter: initial", initial, most=most), most)

    @property
    def concurrency(self) -> int:
        """Requests in flight at most, for now. Setting it moves the window, which still adapts."""
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
            self._pause_after(now, error)
        elif _server_failed(error):
            self._window.failed(now)
        elif end.generation is not None and error is None:
            self._window.succeeded(now, self._queue.in_flight)


def _server_failed(error: BaseException | None) -> bool:
    if isinstance(error, BackendUnavailable):
        return True
    return isinstance(error, BackendError) and error.status is not None and error.status >= 500  # noqa: PLR2004
