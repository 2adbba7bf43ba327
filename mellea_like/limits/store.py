"""Stores of budgets and rates: sums by name, perhaps shared by the processes of a machine.

The library has two stores: `MemoryStore` and `SQLiteStore`. Every operation is atomic: it happens
completely or not at all, and no other caller sees a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from mellea_like.core.display import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.limits.budget_accounts import Amounts, Limits, StoreSums

__all__ = [
    "Reservation",
    "Store",
    "StoreAccount",
    "StoreBucket",
    "Take",
    "Turn",
    "Want",
]


class StoreAccount(Protocol):
    """An account as one budget sees it: its name in the store, and the budget's own limits."""

    @property
    def in_use(self) -> bool:
        """Whether this process has reservations in the account."""
        ...

    def look(self) -> StoreSums:
        """Return the sums of the account."""
        ...


Want: TypeAlias = "tuple[StoreAccount, Amounts]"
"""An account, and the amounts to reserve in it."""


class Reservation(Protocol):
    """The reservation of one request, which ends when it is settled or when the process dies."""

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Release the reservation and charge the cost. Calling it again does nothing.

        This is one synchronous step that raises nothing. If the store can't be reached, the cost
        is charged later.

        Args:
            charged: the amounts to charge to each account, in the order of ``wants`` in
                `Store.reserve`.
            unknown: the number of requests whose cost is an estimate.
        """
        ...


class StoreBucket(Protocol):
    """A bucket as one limiter sees it: its name in the store, and the limiter's own rate."""


Take: TypeAlias = "tuple[StoreBucket, float]"
"""A bucket, and the amount to take from it."""


class Turn(Protocol):
    """The amounts taken from buckets for one request, and the time when it may be sent."""

    @property
    def seconds(self) -> float:
        """The seconds from taking the amounts until the request may be sent, at least 0."""
        ...

    @property
    def left(self) -> Sequence[float]:
        """The level of each bucket after taking the amounts; a negative level is debt."""
        ...

    def give_back(self) -> None:
        """Put back what an unsent request took, except what later requests have used."""
        ...


class Store(Protocol):
    """Keeps the sums of budgets and rates by name.

    Budgets that name the same account of a store share its sums, but each reservation is subject
    to the limits of the budget that makes it. Limiters share buckets in the same way.

    A budget is pickled together with its store and account, and a limiter with its store and
    buckets. So that a budget or a limiter can be sent to another process, these must be picklable.
    """

    def account(self, name: str, limits: Limits) -> StoreAccount:
        """Return the account called ``name``, which need not exist yet.

        Args:
            name: the account's name.
            limits: the limit of each field of `Amounts`, infinite if there is none.
        """
        ...

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; wait while other reservations take up the room.

        Requests are served in the order of arrival. A caller that is cancelled has reserved
        nothing.

        Args:
            wants: the amounts to reserve in each account; each account once.

        Returns:
            The reservation.

        Raises:
            Denied: the wanted amounts exceed what is left unspent.
            StoreError: the store can't be used.
        """
        ...

    def bucket(self, name: str, per_minute: float, capacity: float) -> StoreBucket:
        """Return the bucket called ``name``. A new bucket is full.

        Args:
            name: the bucket's name.
            per_minute: the amount that flows into the bucket in a minute.
            capacity: the largest amount that the bucket holds.
        """
        ...

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets, into debt if necessary.

        This doesn't wait until the debts are paid. A caller that is cancelled has taken nothing.

        Args:
            takes: the amounts to take from each bucket; each bucket once.

        Returns:
            A turn, which tells when the debts are paid and the request may be sent.

        Raises:
            StoreError: the store can't be used.
        """
        ...

    def correct(self, takes: Sequence[Take]) -> None:
        """Correct what a request took from buckets: take more, or put some back.

        This is one synchronous step that raises nothing.

        Args:
            takes: the amounts to take in addition, or to put back if negative.
        """
        ...


def check_store(whose: str, store: object, name: object) -> None:
    """Make sure that an argument is a store, and that there is a name to use in it."""
    if isinstance(store, type) or not callable(getattr(store, "account", None)):
        msg = f"{whose}: store must be a store, such as SQLiteStore('spent.db'), not {shown(store)}"
        raise TypeError(msg)
    if not isinstance(name, str) or not name:
        msg = f"{whose} in a store needs a name, which identifies it there: pass name='...'"
        raise ValueError(msg)
