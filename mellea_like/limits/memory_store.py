"""The store that keeps its data in memory, for one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mellea_like.limits.budget_accounts import Account, Claim, Denied, Sums
from mellea_like.limits.stored_buckets import (
    Level,
    StoredBucket,
    Taken,
    TakenTurn,
    correct,
    put_back,
    take,
)
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

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps the sums of budgets and rates by name in memory: a `Store` for one process.

    A budget without a store has an account that nobody else can use. With this store, a later
    budget with the same name continues from the earlier one, perhaps with other limits.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Sums] = {}
        self._levels: dict[str, Level] = {}
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
        return StoredBucket(name, per_minute, capacity)

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets in one step; see `Store.take`."""
        return TakenTurn(*take(self._levels, self._timeline.now(), takes), self._put_back)

    def correct(self, takes: Sequence[Take]) -> None:
        """Take more from buckets, or put some back; see `Store.correct`."""
        correct(self._levels, self._timeline.now(), takes)

    def _put_back(self, taken: Sequence[Taken]) -> None:
        put_back(self._levels, self._timeline.now(), taken)


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
