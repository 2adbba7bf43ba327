"""The token bucket, which limits a rate."""

from __future__ import annotations

import math

__all__ = ["Bucket"]

MINUTE = 60.0


class Bucket:
    """A token bucket: it fills at a constant rate up to its capacity, and requests take from it.

    See J. Turner, "New directions in communications (or which way to the information age?)", 1986,
    and RFC 2697. Unlike the buckets described there, this one may be in debt, for two reasons. A
    request may turn out to cost more than it took, and an amount larger than the capacity may be
    taken from a full bucket. A bucket reads no clock: callers pass the time in.
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
        self.held = capacity if held is None else held  # The level at the time ``at``.
        self.at = at

    def level(self, now: float) -> float:
        """Return the bucket's level at ``now``; a negative level is debt."""
        passed = max(0.0, now - self.at)
        return min(self.capacity, self.held + passed * self.per_minute / MINUTE)

    def delay(self, now: float, amount: float) -> float:
        """Return the seconds until the bucket holds ``amount``, or its capacity if that is less."""
        missing = min(amount, self.capacity) - self.level(now)
        return max(0.0, missing * MINUTE / self.per_minute)

    def take(self, now: float, amount: float) -> None:
        """Take out an amount; a negative amount is put back."""
        self.held = min(self.capacity, self.level(now) - amount)
        self.at = max(self.at, now)
