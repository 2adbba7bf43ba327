"""Several budgets as one limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.limits.budget import Budget

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.base import Permit

__all__ = ["Budgets"]


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
        """Reserve what a request may cost, in all budgets and in those round them.

        Args:
            request: the request.
            backend: what will answer it.

        Returns:
            The reservation; to be released.

        Raises:
            LimitExceeded: there is no room, and requests under way can't make any.
            ValueError: what it may cost can't be told, as `Budget.check` says.
            RuntimeError: a budget is in use in another event loop.
        """
        return await Budget.reserve(self.budgets, request, backend)
