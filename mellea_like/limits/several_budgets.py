"""Several budgets around a backend, combined into one limit that charges each budget once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import BackendWrapper
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.budget import Budget
from mellea_like.limits.fallback import FallbackBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.base import Permit

__all__ = ["Budgets", "within_budgets"]


class Budgets:
    """Several budgets as one limit: a request reserves in all of them, or in none.

    So requests that need the same budgets never deadlock, whatever the order of the budgets. An
    outer budget that several of them share is charged only once.

    Args:
        *budgets: the budgets, at least one.
    """

    def __init__(self, *budgets: Budget) -> None:
        together = [outer for budget in budgets for outer in budget.chain]
        self.budgets = tuple(dict.fromkeys(together))

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Reserve a request's largest possible cost in all budgets; see `Budget.acquire`."""
        return await Budget.reserve(self.budgets, request, backend)


def within_budgets(
    backend: Backend, budgets: Sequence[Budget], kind: Callable[..., Budgets] = Budgets
) -> Backend:
    """Return a backend that obeys several budgets, combined into one limit.

    Budgets that the backend already obeys are left out. Otherwise they would be charged twice, and
    a request that takes the last room of a budget would wait for its own reservation.

    Args:
        backend: the backend.
        budgets: the budgets.
        kind: the class that combines the budgets into a limit.

    Returns:
        A backend around ``backend``, or ``backend`` itself if no budget is left.
    """
    outside = kind(*budgets)
    inside: set[Budget] = set()
    around = [backend]
    while around:
        inner: Any = around.pop()
        # A backend that isn't a `LimitedBackend` may also have ``limits``.
        for limit in getattr(inner, "limits", ()):
            inside.update(_budgets_of(limit))
        if isinstance(inner, BackendWrapper):
            around.append(inner.inner)
        elif isinstance(inner, FallbackBackend):
            around += inner.backends
    outside.budgets = tuple(budget for budget in outside.budgets if budget not in inside)
    return LimitedBackend(backend, outside) if outside.budgets else backend


def room_to_restart(backend: Backend, request: Request) -> bool:
    """Return whether a backend's budgets have room for both a request and its replacement."""
    around: Any = backend
    while isinstance(around, BackendWrapper):
        for limit in around.limits if isinstance(around, LimitedBackend) else ():
            for budget in _budgets_of(limit):
                if not budget._has_room_twice(request, around):  # pyright: ignore[reportPrivateUsage]
                    return False
        around = around.inner
    return True


def _budgets_of(limit: object) -> tuple[Budget, ...]:
    if isinstance(limit, Budget):
        return limit.chain
    return limit.budgets if isinstance(limit, Budgets) else ()
