"""The store of budgets and rates: their sums by name, perhaps shared by the processes of a machine.

Two stores come with the library: `MemoryStore` and `SQLiteStore`. Each of the operations is atomic:
all of it happens or nothing, and no other caller sees a part of it.
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
    """The reservation of one request, until it is settled or the process dies."""

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Give back the reservation and charge the cost; a second time does nothing.

        One synchronous step, which raises nothing: a store that can't be reached settles later.

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
    """The amounts taken from buckets for one request, and when it may be sent."""

    @property
    def seconds(self) -> float:
        """In how many seconds the request may go, counted from when it was taken; at least 0."""
        ...

    @property
    def left(self) -> Sequence[float]:
        """The level of each bucket after that; less than 0 is debt."""
        ...

    def give_back(self) -> None:
        """Put back what was taken: the request never went.

        Nobody who came later goes earlier for it, so what they have taken isn't put back.
        """
        ...


class Store(Protocol):
    """Keeps the sums of budgets and rates under names.

    Budgets that name the same account of a store share its sums. Each reservation is judged by the
    limits of the budget that asks. The same goes for limiters and buckets.
    """

    def account(self, name: str, limits: Limits) -> StoreAccount:
        """Return the account of a name, which need not be there yet.

        Args:
            name: its name.
            limits: the most of each of `Amounts`, infinite if there is no limit.
        """
        ...

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; wait while there is room only beside what is spent.

        Who waits goes before who comes later. A caller that is cancelled has reserved nothing.

        Args:
            wants: the amounts to reserve; each account once.

        Returns:
            The reservation.

        Raises:
            Denied: the wanted amounts do not fit in addition to those spent.
            StoreError: the store can't be used.
        """
        ...

    def bucket(self, name: str, per_minute: float, capacity: float) -> StoreBucket:
        """Return the bucket of a name, which is full if it isn't there yet.

        Args:
            name: its name.
            per_minute: how much flows into it in a minute.
            capacity: the most that it holds.
        """
        ...

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from all of some buckets, into debt if need be, and tell when the debts are paid.

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
        """Take more from buckets, or put some back if it is negative: what a request really cost.

        One synchronous step, which raises nothing.

        Args:
            takes: the differences.
        """
        ...
