"""Several budgets together: as one limit, and for many requests that are submitted together."""

# pyright: reportPrivateUsage=false
# These are a budget's own steps, for several budgets and requests.

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import BackendWrapper
from mellea_like.core.display import shown
from mellea_like.core.generation import Usage
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.budget import Budget
from mellea_like.limits.budget_accounts import Amounts, Denied, amounts, beyond
from mellea_like.limits.fallback import FallbackBackend
from mellea_like.limits.joint_reservation import JointReservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mellea_like.core.backend import Backend, Options, Request
    from mellea_like.limits.base import Permit
    from mellea_like.limits.budget_accounts import Rate

__all__ = ["Budgets", "ReservedRound", "reserve_round", "within_budgets"]


class Budgets:
    """Several budgets as one limit: a request reserves in all of them, or in none.

    So requests that need the same budgets never deadlock, whatever the order of the budgets. An
    outer budget that several of them share is charged only once.

    Args:
        *budgets: the budgets, at least one.

    Raises:
        TypeError: an argument isn't a `Budget`.
    """

    def __init__(self, *budgets: Budget) -> None:
        for budget in budgets:
            if not isinstance(budget, Budget):
                msg = f"Budgets combines Budget objects, not {shown(budget)}"
                raise TypeError(msg)
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
    inside = {budget for budget, _ in _obeyed(backend, fallbacks=True)}
    outside.budgets = tuple(budget for budget in outside.budgets if budget not in inside)
    return LimitedBackend(backend, outside) if outside.budgets else backend


def room_to_restart(backend: Backend, request: Request) -> bool:
    """Return whether a backend's budgets have room for both a request and its replacement."""
    obeyed = _obeyed(backend, fallbacks=False)
    return all(budget._has_room_twice(request, limited) for budget, limited in obeyed)


def _obeyed(backend: Backend, *, fallbacks: bool) -> Iterator[tuple[Budget, Backend]]:
    """Yield each budget that a backend obeys, with the backend that it limits."""
    around = [backend]
    while around:
        inner: Any = around.pop()
        # Backends of other classes may also have ``limits``, such as those of an HTTP client.
        limits: Any = getattr(inner, "limits", ())
        for limit in limits if hasattr(limits, "__iter__") else ():
            budgets = Budgets(limit) if isinstance(limit, Budget) else limit
            if isinstance(budgets, Budgets):
                yield from ((budget, inner) for budget in budgets.budgets)
        if isinstance(inner, BackendWrapper):
            around.append(inner.inner)
        elif fallbacks and isinstance(inner, FallbackBackend):
            around += inner.backends


class ReservedRound:
    """The joint reservation for requests that are submitted together, such as those of a batch job.

    Attributes:
        count: the number of requests that the reservation is for.
    """

    def __init__(self, count: int, held: JointReservation, rates: Sequence[Rate]) -> None:
        self.count = count
        self._held = held
        self._rates = rates

    def settle(self, cost: Usage | None) -> None:
        """Release the reservation and charge the requests' cost, in one synchronous step.

        Args:
            cost: the cost of all requests together; None if none of them was run.
        """
        if cost is None:
            cost = Usage()
        tokens = cost.requests, cost.input_tokens, cost.output_tokens
        charged = [amounts(*tokens, rate, cost.cached_input_tokens) for rate in self._rates]
        self._held.settle(charged, cost.unknown)


async def reserve_round(
    budgets: Sequence[Budget],
    model: str | None,
    wanted: Sequence[tuple[int, Options]],
    *,
    paid: bool = False,
) -> ReservedRound | None:
    """Reserve the cost of requests that are submitted together: of the first ones that fit.

    Args:
        budgets: the budgets, together with all budgets around them; each budget once.
        model: the model that is asked.
        wanted: for each request, the estimated tokens of its prompt and its options.
        paid: whether the requests have already been submitted. If so, all of them will be charged.
            If there isn't room for all, nothing is reserved in advance.

    Returns:
        The reservation; None if there is no room now, but there may be when other requests have
        ended.

    Raises:
        LimitExceeded: there will never be room for the first request.
        ValueError: the largest possible cost of a request is unknown; see `Budget.check`.
    """
    held = JointReservation(budgets)
    rates: list[Rate] = []
    sums: list[list[Amounts]] = []
    count = len(wanted)
    for budget in budgets:
        terms = [budget._terms(options, model) for _, options in wanted]
        rates.append(terms[0][1])
        each = (
            amounts(1, sent, received, rate)
            for (sent, _), (received, rate) in zip(wanted, terms, strict=True)
        )
        sums.append(list(accumulate(each, Amounts.plus)))
        if not paid:
            budget._require_time()
        known = budget._account.look()
        taken = known.spent.plus(known.reserved)
        # The largest number that fits; sums only grow.
        count = bisect_left(
            sums[-1][:count],
            True,
            key=lambda total: beyond(budget._most, taken, total) is not None,
        )
        lacking = None if count or paid else beyond(budget._most, known.spent, sums[-1][0])
        if lacking is not None:
            raise budget._refusal(lacking, known.spent, sums[-1][0])
    if not count and not paid:
        return None
    fits = count == len(wanted) or not paid
    wants = [
        (budget._account, of_budget[count - 1] if fits else Amounts())
        for budget, of_budget in zip(budgets, sums, strict=True)
    ]
    try:
        await held.make(wants)
    except Denied:
        return None  # Another process was quicker.
    return ReservedRound(len(wanted) if paid else count, held, rates)
