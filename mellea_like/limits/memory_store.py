"""The store that keeps its data in memory, for one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mellea_like.limits.bucket import Bucket
from mellea_like.limits.budget_accounts import Account, Claim, Denied, Sums
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.limits.budget_accounts import Amounts, Limits
    from mellea_like.limits.store import (
        Reservation,
        StoreAccount,
        StoreBucket,
        Take,
        Turn,
        Want,
    )

__all__ = ["MemoryStore", "not_since", "reserve"]


class MemoryStore:
    """Keeps the sums of budgets and rates by name in memory: a `Store` for one process.

    A budget without a store has an account that nobody else can use. With this store, a later
    budget with the same name continues from the earlier one, perhaps with other limits.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Sums] = {}
        self._buckets: dict[str, _Level] = {}
        self._timeline = Timeline()

    def account(self, name: str, limits: Limits) -> StoreAccount:
        """Return the account called ``name``; see `Store.account`."""
        return Account(limits, self._accounts.setdefault(name, Sums()))

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; see `Store.reserve`."""
        return await reserve(cast("Any", wants))

    def forget(self, *names: str) -> None:
        """Forget the sums of accounts. Accounts with reservations or waiting requests are kept.

        Args:
            *names: the names of the accounts. Unknown names are ignored.
        """
        for name in names:
            sums = self._accounts.get(name)
            if sums is not None and not sums.reserved.requests and not sums.queue:
                del self._accounts[name]

    def accounts(self) -> list[str]:
        """Return the names of all accounts."""
        return list(self._accounts)

    def bucket(self, name: str, per_minute: float, capacity: float) -> StoreBucket:
        """Return the bucket called ``name``; see `Store.bucket`."""
        return _Bucket(self._buckets.setdefault(name, _Level()), per_minute, capacity)

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets in one step; see `Store.take`."""
        now, seconds = self._timeline.now(), 0.0
        taken: list[tuple[_Bucket, float, float]] = []
        for bucket, amount in cast("Sequence[tuple[_Bucket, float]]", takes):
            seconds = max(seconds, bucket.as_of(now).delay(now, amount))
            bucket.take(now, amount)
            bucket.level.taken += amount
            taken.append((bucket, amount, bucket.level.taken))
        left = [bucket.as_of(now).level(now) for bucket, *_ in taken]
        return _Turn(self, seconds, left, taken)

    def correct(self, takes: Sequence[Take]) -> None:
        """Take more from buckets, or put some back; see `Store.correct`."""
        now = self._timeline.now()
        for bucket, amount in cast("Sequence[tuple[_Bucket, float]]", takes):
            bucket.take(now, amount)


async def reserve(wants: Sequence[tuple[Account, Amounts]]) -> Claim:
    """Reserve in several accounts in memory, which may belong to different stores."""
    claim = Claim(wants)
    claim.decide()
    if claim.queued_at is not None:
        await claim.wait()
    if claim.denied_by is not None:
        account, lacking = claim.denied_by
        raise Denied(account, lacking, account.sums.spent)
    return claim


class _Level:
    """A bucket's level, and the total taken from it, shared by all limiters that use the bucket."""

    __slots__ = ("held", "taken")

    def __init__(self) -> None:
        self.held: tuple[float, float] | None = None  # The level and its time; None if it is full.
        self.taken = 0.0


class _Bucket(NamedTuple):
    level: _Level
    per_minute: float
    capacity: float

    def as_of(self, now: float) -> Bucket:
        held, at = self.level.held or (self.capacity, now)
        return Bucket(self.per_minute, self.capacity, held, at)

    def take(self, now: float, amount: float) -> None:
        bucket = self.as_of(now)
        bucket.take(now, amount)
        self.level.held = bucket.held, bucket.at


class _Turn(NamedTuple):
    store: MemoryStore
    seconds: float
    left: list[float]
    taken: list[tuple[_Bucket, float, float]]

    def give_back(self) -> None:
        """Put back what was taken; see `Turn.give_back`."""
        self.store.correct([(b, -not_since(n, b.level.taken - at)) for b, n, at in self.taken])
        self.taken.clear()


def not_since(amount: float, since: float) -> float:
    """Return how much of a taken amount can be put back after later requests took ``since``.

    The waiting times of the later requests already allow for the amount. If all of it were put
    back, it could be spent twice.
    (Compare ``Reservation.CancelAt`` in Go's ``golang.org/x/time/rate``.)
    """
    return max(0.0, amount - since)
