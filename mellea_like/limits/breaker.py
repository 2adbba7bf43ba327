"""When a backend is worth no request: a circuit breaker, decided without an event loop.

The pattern is Michael T. Nygard's ("Release It!", second edition, chapter 5).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mellea_like.errors import BackendUnavailable, CircuitOpen, MalformedResponse, RateLimited

if TYPE_CHECKING:
    from mellea_like.errors import BackendError

__all__ = ["Breaker", "answers"]

FIRST_PAUSE = 1.0
"""Seconds that it stays open the first time; each failed probe doubles them."""

LONGEST_PAUSE = 30.0

FLAKY_SECONDS = 10.0
"""After an answer that ended a row of failures, the server counts as flaky for so long."""

FLAKY_FACTOR = 3
"""How many times longer the row has to be with a flaky server."""

TICK = 1e-9
"""Seconds that count as none: what may be left when a timer has run."""


class Breaker:
    """Counts the failures in a row of a backend, and says whether another request may be sent.

    - Closed, it lets everything through. Any answer closes it.
    - Open, it lets nothing through for a pause.
    - Half-open, it lets one request through at a time, the probe: after half of the failures that
      open it, and after each pause.

    Attributes:
        failures: how many requests in a row have failed.
        unsent: how many requests it has failed unsent.
    """

    __slots__ = (
        "_answered_at",
        "_next",
        "_pause",
        "_probe",
        "_said",
        "_status",
        "failures",
        "unsent",
    )

    def __init__(self) -> None:
        self.failures = 0
        self.unsent = 0
        self._next: float | None = None
        self._pause = 0.0
        self._probe: object = None
        self._answered_at = -math.inf
        self._said = ""
        self._status: int | None = None

    @property
    def closed(self) -> bool:
        """Whether everything may be sent."""
        return self._next is None

    def ask(self, now: float, request: object) -> float:
        """Ask whether a request may be sent; where only a probe may, it is the probe.

        Args:
            now: the time in seconds.
            request: the request.

        Returns:
            0 if it may; else after how many seconds to ask again, infinite while a probe is sent.
        """
        if self._next is None:
            return 0.0
        if now < self._next - TICK:
            return self._next - now
        if self._probe is not None:
            return math.inf
        self._probe = request
        return 0.0

    def failed(self, now: float, error: BackendError, most: int) -> bool:
        """Count a request that failed, as `answers` says.

        Args:
            now: the time in seconds.
            error: what it failed with.
            most: how many failures in a row open the breaker.

        Returns:
            Whether that opened it.
        """
        self.failures += 1
        self._said, self._status = str(error), error.status
        if now < self._answered_at + FLAKY_SECONDS:
            most *= FLAKY_FACTOR
        if self.failures >= most:
            if self._next is not None and now < self._next - TICK:
                return False  # It was sent before.
            self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
            self._next = now + self._pause
            return True
        if self.failures >= most // 2:
            self._next = now
        return False

    def answered(self, now: float) -> None:
        """Hear that the backend has answered."""
        if self.failures:
            self._answered_at = now
        self.failures, self._next, self._pause = 0, None, 0.0

    def ended(self, request: object) -> bool:
        """Hear that a request has ended, however it did; tell whether it was the probe."""
        if self._probe is not request:
            return False
        self._probe = None
        return True

    def refusal(self, now: float, where: str, late: str = "") -> CircuitOpen:
        """Count a request as not sent, and say so.

        Args:
            now: the time in seconds.
            where: the backend's name.
            late: why the request can't wait, where it would otherwise.

        Returns:
            The error.
        """
        self.unsent += 1
        return CircuitOpen(
            f"{self.state(now, where)}{late}; the last failure: {self._said}",
            status=self._status,
            retry_after=self._left(now),
        )

    def state(self, now: float, where: str) -> str:
        """Say how a backend that is not reachable is.

        Args:
            now: the time in seconds.
            where: the backend's name.

        Returns:
            A sentence.
        """
        return (
            f"{where}: not reachable, {self.failures} requests failed in a row;"
            f" the next try is in {self._left(now):.3g} s"
        )

    def _left(self, now: float) -> float:
        return 0.0 if self._next is None else max(0.0, self._next - now)


def answers(error: BackendError) -> bool | None:
    """Tell what an error says about a backend.

    Args:
        error: what a request failed with.

    Returns:
        False where the backend can't be reached or answers with a 5xx. True where it gave another
        answer, such as a 429. None where the error says neither: a reply that takes too long may
        only be a long one, a gate's refusal was never sent, and a backend that has given up by
        itself is not waited for.
    """
    if isinstance(error, BackendUnavailable | RateLimited) and not error.retryable:
        return None
    if isinstance(error, BackendUnavailable):
        return False
    return True if isinstance(error, RateLimited | MalformedResponse) or error.status else None
