"""The token bucket, which limits a rate, and buckets that are kept in a store."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mellea_like.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from mellea_like.limits.store import StoreBucket, Take, Turn

    Step = Callable[[], AbstractContextManager[tuple["Levels", float]]]

__all__ = ["Bucket"]

MINUTE = 60.0


class Bucket:
    """A token bucket: it fills at a constant rate up to its capacity, and requests take from it.

    See J. Turner, "New directions in communications (or which way to the information age?)", 1986,
    and RFC 2697. Unlike the buckets described there, this one may be in debt, for two reasons. A
    request may turn out to cost more than it took, and an amount larger than the capacity may be
    taken from a full bucket. A bucket reads no clock: callers pass the time in, in seconds.
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


class Level(NamedTuple):
    """A bucket's level at the time ``at``, and the total ever taken from the bucket."""

    held: float
    at: float
    taken: float


class Levels(Protocol):
    """The levels of a store's buckets by name, such as a dict. A bucket without one is full."""

    def get(self, name: str, /) -> Level | None:
        """Return a bucket's level, if there is one."""

    def __setitem__(self, name: str, level: Level, /) -> None: ...


class StoredBucket(NamedTuple):
    """A bucket in a store, as one limiter sees it."""

    name: str
    per_minute: float
    capacity: float

    def take(self, levels: Levels, now: float, amount: float, counted: float = 0.0) -> Taken:
        """Take an amount, ``counted`` of which is added to the total ever taken."""
        held, at, taken = levels.get(self.name) or (self.capacity, now, 0.0)
        if at > now:  # The machine was rebooted.
            held, at = self.capacity, now
        bucket = Bucket(self.per_minute, self.capacity, held, at)
        seconds = bucket.delay(now, amount)
        bucket.take(now, amount)
        levels[self.name] = level = Level(bucket.held, bucket.at, taken + counted)
        return Taken(self, amount, seconds, level)


class Taken(NamedTuple):
    """An amount taken from a bucket, the seconds until it is there, and the level afterwards."""

    bucket: StoredBucket
    amount: float
    seconds: float
    level: Level


class TakenTurn:
    """The amounts taken for one request: a `Turn`. ``step`` is `BucketStore._step`."""

    def __init__(self, taken: Sequence[Taken], step: Step) -> None:
        self.seconds = max((each.seconds for each in taken), default=0.0)
        self.left = [each.level.held for each in taken]
        self._taken = taken
        self._step = step

    def give_back(self) -> None:
        """Put back what was taken, minus what later requests have taken from the same bucket since.

        Those requests wait as if this one were still ahead of them. If everything were put back, a
        new request could be sent at the same moment as one of them. (Compare
        ``Reservation.CancelAt`` in Go's ``golang.org/x/time/rate``.)
        """
        taken, self._taken = self._taken, ()
        with suppress(StoreError), self._step() as (levels, now):  # If not, they refill anyway.
            for bucket, amount, _, then in taken:
                level = levels.get(bucket.name)
                since = 0.0 if level is None else level.taken - then.taken
                bucket.take(levels, now, -max(0.0, amount - since))


class BucketStore(ABC):
    """The buckets of a `Store`, in memory or in a file."""

    @abstractmethod
    def _step(self) -> AbstractContextManager[tuple[Levels, float]]:
        """Enter a step that may change levels; return the levels and the time."""

    def bucket(self, name: str, per_minute: float, capacity: float) -> StoreBucket:
        """Return the bucket called ``name``; see `Store.bucket`."""
        return StoredBucket(name, per_minute, capacity)

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets in one step; see `Store.take`."""
        return self._take(takes)

    def _take(self, takes: Sequence[Any]) -> Turn:
        with self._step() as (levels, now):
            taken = [bucket.take(levels, now, amount, amount) for bucket, amount in takes]
        return TakenTurn(taken, self._step)

    def correct(self, takes: Sequence[Take]) -> None:
        """Take more from buckets, or put some back; see `Store.correct`."""
        wanted: Sequence[Any] = takes
        with suppress(StoreError), self._step() as (levels, now):
            for bucket, amount in wanted:
                bucket.take(levels, now, amount)
