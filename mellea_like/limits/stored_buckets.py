"""Buckets in a store: requests take from them, and put back what they didn't use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from mellea_like.limits.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.limits.store import Take


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


_Takes: TypeAlias = "Sequence[tuple[StoredBucket, float]]"


class Taken(NamedTuple):
    """An amount taken from a bucket, and the bucket's level just afterwards."""

    bucket: StoredBucket
    amount: float
    level: Level


class TakenTurn(NamedTuple):
    """The amounts taken for one request: a `Turn`, which ``put_back`` gives back."""

    seconds: float
    left: list[float]
    taken: list[Taken]
    put_back: Callable[[Sequence[Taken]], None]

    def give_back(self) -> None:
        """Put back what was taken; see `Turn.give_back`."""
        self.put_back(self.taken)
        self.taken.clear()


def take(
    levels: Levels, now: float, takes: Sequence[Take]
) -> tuple[float, list[float], list[Taken]]:
    """Take from buckets; return the seconds until no bucket is in debt, and what is left."""
    seconds, taken = 0.0, list[Taken]()
    for bucket, amount in cast("_Takes", takes):
        wait, level = _change(levels, now, bucket, amount, amount)
        seconds = max(seconds, wait)
        taken.append(Taken(bucket, amount, level))
    return seconds, [each.level.held for each in taken], taken


def correct(levels: Levels, now: float, takes: Sequence[Take]) -> None:
    """Take more from buckets, or put some back; this doesn't count in the totals taken."""
    for bucket, amount in cast("_Takes", takes):
        _change(levels, now, bucket, amount, 0.0)


def put_back(levels: Levels, now: float, taken: Sequence[Taken]) -> None:
    """Put back what was taken, minus what later requests have taken from the same bucket since.

    Those requests wait as if this one were still ahead of them. If everything were put back, a new
    request could be sent at the same moment as one of them. (Compare ``Reservation.CancelAt`` in
    Go's ``golang.org/x/time/rate``.)
    """
    for bucket, amount, then in taken:
        level = levels.get(bucket.name)
        since = 0.0 if level is None else level.taken - then.taken
        _change(levels, now, bucket, -max(0.0, amount - since), 0.0)


def _change(
    levels: Levels, now: float, stored: StoredBucket, amount: float, counted: float
) -> tuple[float, Level]:
    name, per_minute, capacity = stored
    held, at, taken = levels.get(name) or (capacity, now, 0.0)
    if at > now:  # The machine was rebooted.
        held, at = capacity, now
    bucket = Bucket(per_minute, capacity, held, at)
    seconds = bucket.delay(now, amount)
    bucket.take(now, amount)
    levels[name] = level = Level(bucket.held, bucket.at, taken + counted)
    return seconds, level
