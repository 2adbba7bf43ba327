"""Reservations in several budgets, which may keep their sums in different stores."""

# pyright: reportPrivateUsage=false
# These are steps of each of the budgets.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.limits.budget_accounts import Amounts
from mellea_like.limits.memory_store import IN_MEMORY, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.limits.budget import Budget
    from mellea_like.limits.store import Reservation, Store


class JointReservation:
    """One reservation in several budgets."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        for root in dict.fromkeys(budget.chain[-1] for budget in budgets):
            root._enter_loop()
        self._budgets = budgets
        self._parts: list[tuple[Reservation, Sequence[int]]] = []
        """The reservation in each store, with the indices of its budgets."""

    async def make(self, wants: Sequence[tuple[Any, Amounts]]) -> None:
        """Reserve in all budgets or in none; raise `Denied` if one of them denies it."""
        try:
            for store, places in _by_store(self._budgets):
                part = await self._wait(store, [wants[place] for place in places])
                self._parts.append((part, places))
        except BaseException:
            self.settle([Amounts()] * len(self._budgets))
            raise
        for budget in self._budgets:
            budget._begin()

    async def _wait(self, store: Store, wants: Sequence[tuple[Any, Amounts]]) -> Reservation:
        """Reserve in one store; raise `LimitExceeded` if a budget's time ends first."""
        while True:
            left = seconds_left(self._budgets)
            if left is None:
                return await store.reserve(wants)
            with anyio.move_on_after(left):
                return await store.reserve(wants)
            for budget in self._budgets:
                budget._require_time()

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Release the reservation and charge each budget; see `Reservation.settle`."""
        for part, places in reversed(self._parts):
            part.settle([charged[place] for place in places], unknown)
        self._parts.clear()


def _by_store(budgets: Sequence[Budget]) -> Sequence[tuple[Store, Sequence[int]]]:
    """Return the stores, each with the indices of its budgets, in the order in which to reserve.

    Because the order is the same for all requests, no two of them wait for each other. All budgets
    in memory come first, so a shared store holds reservations only for requests that have room in
    memory.
    """
    found: dict[Store, list[int]] = {}
    for place, budget in enumerate(budgets):
        store = budget.store
        if store is None or isinstance(store, MemoryStore):
            store = IN_MEMORY
        found.setdefault(store, []).append(place)
    return sorted(found.items(), key=lambda part: "" if part[0] is IN_MEMORY else repr(part[0]))


def seconds_left(budgets: Sequence[Budget]) -> float | None:
    """Return how long all of several budgets still admit requests; None without a time limit."""
    left = [left for budget in budgets if (left := budget._own_seconds_left()) is not None]
    return min(left, default=None)
