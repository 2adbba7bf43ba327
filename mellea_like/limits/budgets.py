"""Several budgets as one limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.base import Permit

__all__ = ["Budgets", "within_budgets"]


class Budgets:
    """Several budgets as one limit: a request has room in all of them, or takes nothing of any.

    So requests that need the same budgets never wait for each other, in whatever order these are
    given; and a budget that several of them are within is charged once.

    Args:
        *budgets: the budgets, at least one.
    """

    def __init__(self, *budgets: Budget) -> None:
        together = [outer for budget in budgets for outer in budget.chain]
        self.budgets = tuple(dict.fromkeys(together))

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost in all of them; see `Budget.acquire`."""
        return await Budget.reserve(self.budgets, request, backend)


def within_budgets(backend: Backend, budgets: Sequence[Budget]) -> Backend:
    """Return a backend that keeps to budgets: one around it, or itself.

    Those that the backend keeps to by itself are left out: they would be charged twice, and at the
    last request wait for themselves.
    """
    outside = Budgets(*budgets)
    inside: set[Budget] = set()
    inner = backend
    while isinstance(inner, BackendWrapper):
        for limit in inner.limits if isinstance(inner, LimitedBackend) else ():
            if isinstance(limit, Budget):
                inside.update(limit.chain)
            elif isinstance(limit, Budgets):
                inside.update(limit.budgets)
        inner = inner.inner
    outside.budgets = tuple(budget for budget in outside.budgets if budget not in inside)
    return LimitedBackend(backend, outside) if outside.budgets else backend
