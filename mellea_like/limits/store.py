"""Stores of budgets and rates: sums by name, perhaps shared by the processes of a machine.

The library has two stores: `MemoryStore` and `SQLiteStore`. Every operation is atomic: it happens
completely or not at all, and no other caller sees a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

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
        """Whether this process has reservations in it."""
        ...

    def look(self) -> StoreSums:
        """Return the sums of the account."""
        ...


Want: TypeAlias = "tuple[StoreAccount, Amounts]"
"""An account, and the amounts to reserve in it."""


class Reservation(Protocol):
    """The reservation of one request. It ends when it is settled, or when the process dies."""

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Release the reservation and charge the cost. Calling it again does nothing.

        This is one synchronous step that raises nothing. If the store can't be reached, it settles
        later.

        Args:
            charged: the amounts to charge to each account, in the order of the wants.
            unknown: 1 if the cost is an estimate.
        """
        ...


class StoreBucket(Protocol):
    """A bucket as one limiter sees it: its name in the store, and the limiter's own rate."""


Take: TypeAlias = "tuple[StoreBucket, float]"
"""A bucket, and how much to take from it."""


class Turn(Protocol):
    """The amounts taken from buckets for one request, and the time when it may be sent."""

    @property
    def seconds(self) -> float:
        """The seconds from taking until the request may be sent, at least 0."""
        ...

    @property
    def left(self) -> Sequence[float]:
        """The level of each bucket afterwards; a negative level is debt."""
        ...

    def give_back(self) -> None:
        """Put back what an unsent request took, except what later requests have used."""
        ...


class Store(Protocol):
    """Keeps the sums of budgets and rates by name.

    Budgets that name the same account of a store share its sums, but each reservation is subject
    to the limits of the budget that makes it. Limiters share buckets in the same way.
    """

    def account(self, name: str, limits: Limits) -> StoreAccount:
        """Return the account with a name, which need not exist yet.

        Args:
            name: its name.
            limits: the most of each of `Amounts`, infinite if there is no limit.
        """
        ...

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; wait as long as other reservations take up the room.

        Requests are served in the order of arrival. A caller that is cancelled has reserved
        nothing.

        Args:
            wants: the amounts to reserve; each account once.

        Returns:
            The reservation.

        Raises:
            Denied: the wanted amounts do not fit beside those already spent.
            StoreError: the store can't be used.
        """
        ...

    def bucket(self, name: str, per_minute: float, capacity: float) -> StoreBucket:
        """Return the bucket with a name. A new bucket is full.

        Args:
            name: its name.
            per_minute: how much flows into it in a minute.
            capacity: the most that it holds.
        """
        ...

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets, into debt if necessary, and return when the debts are paid.

        A caller that is cancelled has taken nothing.

        Args:
            takes: the amounts to take; each bucket once.

        Returns:
            When the request may go.

        Raises:
            StoreError: the store can't be used.
        """
        ...

    def correct(self, takes: Sequence[Take]) -> None:
        """Correct what a request took from buckets: take more, or put back a negative amount.

        This is one synchronous step that raises nothing.

        Args:
            takes: the differences.
        """
        ...
