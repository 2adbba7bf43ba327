"""The token bucket, by which rates are kept."""

from __future__ import annotations

import math

__all__ = ["MINUTE", "Bucket"]

MINUTE = 60.0


class Bucket:
    """A token bucket: it fills at an even rate up to its capacity, and each request takes from it.

    Pure: the time is passed in. (J. Turner, "New directions in communications (or which way to the
    information age?)", 1986; RFC 2697 describes the same meter.) Unlike in those, it may be in
    debt: a request may turn out to have cost more than it took, and an amount larger than the
    bucket is let through when the bucket is full.
    """

    __slots__ = ("at", "capacity", "held", "per_minute")

    def __init__(
        self,
        per_minute: float,
        capacity: float,
        held: float | None = None,
        at: float = -math.inf,
    ) -> None:
        self.per_minute = per_minute
        self.capacity = capacity
        self.held = capacity if held is None else held  # At the time ``at``.
        self.at = at

    def level(self, now: float) -> float:
        """Return the level; negative is debt."""
        passed = max(0.0, now - self.at)
        return min(self.capacity, self.held + passed * self.per_minute / MINUTE)

    def delay(self, now: float, amount: float) -> float:
        """Return in how many seconds it holds an amount, or is full if the amount is larger."""
        missing = min(amount, self.capacity) - self.level(now)
        return max(0.0, missing * MINUTE / self.per_minute)

    def take(self, now: float, amount: float) -> None:
        """Take an amount out, or put it back if it is negative."""
        self.held = min(self.capacity, self.level(now) - amount)
        self.at = max(self.at, now)
