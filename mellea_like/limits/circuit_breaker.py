"""The circuit breaker of a backoff gate. It reads no clock: callers pass the time in."""

from __future__ import annotations

from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    CircuitOpen,
    MalformedResponse,
    RateLimited,
)
from mellea_like.runtime.timeline import TICK

FIRST_PAUSE = 0.2
"""The seconds from the opening of a circuit breaker to its first probe.

A probe is a request that tests whether the server is up again. Each failed probe doubles the pause
before the next one. So three probes, 0.2, 0.6 and 1.4 s after the opening, fit into the 1.5 s that
a request may wait by default. The fourth probe comes 1.6 s after the third, when a request that has
waited from the start has already failed.
"""

LONGEST_PAUSE = 30.0

PROBE_SECONDS = 1.0
"""If a probe has no answer after this many seconds, another probe may be sent."""

UNREACHABLE = "%s: not reachable, %d requests in a row failed; the next try is in %.3g s"
LAST_FAILURE = "; the last failure: %s"


class CircuitBreaker:
    """Counts a backend's failures in a row, and decides whether another request may be sent."""

    # While it is closed, it lets all requests through. Any answer closes it. While it is open, it
    # lets one request through after each pause, as a probe. If a probe fails, the pause doubles. If
    # a probe ends without showing whether the backend is up, another request takes its place.

    def __init__(self) -> None:
        self.failures = 0
        self.unsent = 0
        self.next_probe: float | None = None
        """When the next probe may be sent; None while the breaker is closed."""
        self.opened_at = 0.0
        self.probes = 0
        """The number of probes in progress."""
        self._awaited = False
        self._pause = 0.0
        self.last_error = ""
        self._status: int | None = None

    def seconds_left(self, now: float) -> float:
        """Return the seconds until a request may be sent; 0 if it may be sent now."""
        left = 0.0 if self.next_probe is None else self.next_probe - now
        return left if left > TICK else 0.0

    def begin_probe(self, now: float) -> bool:
        """Return whether a request may be sent as a probe now; if so, count it as sent."""
        if self.seconds_left(now):
            return False
        self.probes += 1
        self._awaited = True
        self.next_probe = now + PROBE_SECONDS
        return True

    def ended(self, now: float) -> None:
        """Record that a probe has ended. If its outcome isn't known, the next probe is due now."""
        self.probes -= 1
        if self._awaited and self.next_probe is not None:
            self.next_probe = now

    def failed(self, now: float, error: BackendError, most: int, *, flaky: bool = False) -> bool:
        """Count a failed request; return whether this opened the breaker."""
        self.failures += 1
        self.last_error, self._status = str(error), error.status
        opens = self.next_probe is None
        if opens:
            if flaky or self.failures < most:
                return False
            self.opened_at, self._pause = now, FIRST_PAUSE
        elif self._awaited:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        else:
            return False  # It was sent before the breaker opened.
        self._awaited = False
        self.next_probe = now + self._pause
        return opens

    def answered(self) -> None:
        """Record that the backend has answered, which closes the breaker."""
        self.failures, self.next_probe, self._awaited = 0, None, False

    def refusal(self, now: float, where: str, why: str) -> CircuitOpen:
        """Count a request that the breaker refuses to send, and return its error."""
        self.unsent += 1
        msg = UNREACHABLE % self.state(now, where) + why + LAST_FAILURE % self.last_error
        return CircuitOpen(msg, status=self._status, retry_after=self.seconds_left(now))

    def state(self, now: float, where: str) -> tuple[str, int, float]:
        """Return the arguments of `UNREACHABLE`."""
        return where, self.failures, self.seconds_left(now)


def is_answer(error: BackendError) -> bool | None:
    """Return True if an error shows that a backend is up, False if down, None if it shows neither.

    A 429, for example, shows that the backend is up. A backend is down if it can't be reached or
    answers with a 5xx. Some errors show neither. A timeout may only mean a long reply. A request
    that a gate refused was never sent. An outage or a 429 that isn't retryable won't end by
    waiting.
    """
    if isinstance(error, BackendUnavailable | RateLimited) and not error.retryable:
        return None
    if isinstance(error, BackendUnavailable):
        return False
    return True if isinstance(error, RateLimited | MalformedResponse) or error.status else None
