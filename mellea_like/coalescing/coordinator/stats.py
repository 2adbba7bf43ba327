"""A coordinator in numbers: what it starts from, and what it has done."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mellea_like.coalescing.coordinator.audit import RequestStatus

__all__ = [
    "DEFAULT_COALESCE_MAX_BATCH",
    "DEFAULT_COALESCE_WINDOW",
    "DEFAULT_MAX_INFLIGHT",
    "DEFAULT_MAX_JOINT_TOKENS",
    "DEFAULT_MAX_PENDING",
    "CoordinatorStatistics",
    "Counts",
]

DEFAULT_COALESCE_WINDOW = 5.0
"""Seconds from the first request of a batch until it is sent."""

DEFAULT_COALESCE_MAX_BATCH = 10
"""Requests of a batch at most; when they are there it is sent at once."""

DEFAULT_MAX_INFLIGHT = 4
"""Batches that are under way at one time."""

DEFAULT_MAX_JOINT_TOKENS = 16_384
"""The longest joint reply that is asked for, in tokens; ten of 1,000 go together."""

DEFAULT_MAX_PENDING = 1000
"""Requests that wait to be sent."""


class CoordinatorStatistics(NamedTuple):
    """A look at a coordinator.

    ``asked = answered + failed + refused + cancelled + expired + missing + waiting + outside``, and
    those that are under way.

    Attributes:
        waiting: requests that wait to be sent.
        outside: requests that wait for room among those.
        in_flight: batches that are under way.
        max_in_flight: the most that were under way at one time.
        asked: requests that came.
        answered: requests that were answered.
        failed: requests that failed: with the backend's error, or the library's.
        refused: requests that found no room, or whose reply was a refusal.
        cancelled: requests whose caller left, or that were there when the coordinator was closed.
        expired: requests whose deadline passed before they were sent.
        missing: requests whose answers the joint reply lacked.
        calls: requests sent to the backend inside.
        joint_calls: those among them that were for several.
        repeated_calls: those among them that asked again for what was missing.
    """

    waiting: int
    outside: int
    in_flight: int
    max_in_flight: int
    asked: int
    answered: int
    failed: int
    refused: int
    cancelled: int
    expired: int
    missing: int
    calls: int
    joint_calls: int
    repeated_calls: int


class Counts:
    """The running counts of a coordinator."""

    def __init__(self) -> None:
        self.asked = 0
        self.max_in_flight = 0
        self._calls = 0
        self._joint = 0
        self._repeated = 0
        self._ended: Counter[RequestStatus] = Counter()

    def called(self, size: int, first: bool) -> None:  # noqa: FBT001 (a callback's)
        """Count a request that is sent."""
        self._calls += 1
        self._joint += size > 1
        self._repeated += not first

    def ended(self, status: RequestStatus) -> None:
        """Count a request that has ended."""
        self._ended[status] += 1

    def statistics(self, *, waiting: int, outside: int, in_flight: int) -> CoordinatorStatistics:
        """Return the numbers of this moment."""
        ended = self._ended
        return CoordinatorStatistics(
            waiting,
            outside,
            in_flight,
            self.max_in_flight,
            self.asked,
            ended[RequestStatus.OK],
            ended[RequestStatus.ERROR],
            ended[RequestStatus.REFUSED],
            ended[RequestStatus.CANCELLED],
            ended[RequestStatus.EXPIRED],
            ended[RequestStatus.MISSING],
            self._calls,
            self._joint,
            self._repeated,
        )
