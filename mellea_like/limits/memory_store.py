"""The store that keeps its data in memory, for one process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mellea_like.limits.bucket import BucketStore
from mellea_like.limits.budget_accounts import Account, Claim, Denied
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from mellea_like.limits.bucket import Level
    from mellea_like.limits.budget_accounts import Limits, Sums
    from mellea_like.limits.store import Reservation, StoreAccount, Want

__all__ = ["MemoryStore"]


class MemoryStore(BucketStore):
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
        return Account(limits, name, self._accounts)

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; see `Store.reserve`.

        The accounts may belong to different stores in memory.
        """
        in_memory: Any = wants
        claim = Claim(in_memory)
        claim.decide()
        if claim.queued_at is not None:
            await claim.wait()
        if claim.denied_by is not None:
            account, lacking = claim.denied_by
            raise Denied(account, lacking, account.sums.spent)
        return claim

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

    @contextmanager
    def _step(self) -> Generator[tuple[dict[str, Level], float]]:
        yield self._levels, self._timeline.now()


IN_MEMORY = MemoryStore()
"""Reserves for all budgets in memory, also for those without a store."""
