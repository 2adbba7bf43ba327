"""Reservations for many requests together, such as those of a job of a provider's batch API."""

# pyright: reportPrivateUsage=false
# These are a budget's own steps, for many requests at a time.

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from mellea_like.core.generation import Usage
from mellea_like.limits.budget_accounts import Amounts, Denied, amounts, beyond
from mellea_like.limits.joint_reservation import JointReservation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Options
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.budget_accounts import Rate

__all__ = ["ReservedRound", "reserve_round"]


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
    """Reserve for requests submitted together: for as many as there is room for, in order.

    Args:
        budgets: the budgets, together with all budgets around them; each budget once.
        model: the model that is asked.
        wanted: for each request, the estimated tokens of its prompt and its options.
        paid: whether the requests have already been submitted. If so, they are charged even if
            there isn't room for all of them; in that case, nothing is reserved.

    Returns:
        The reservation; None if there is no room now, but there may be when other requests have
        ended.

    Raises:
        LimitExceeded: there will never be room for the first request.
        ValueError: the largest possible cost of a request is unknown; see `Budget.check`.
    """
    for root in dict.fromkeys(budget.chain[-1] for budget in budgets):
        root._enter_loop()
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
            raise budget._refusal(Denied(budget._account, lacking, known.spent), sums[-1][0])
    if not count and not paid:
        return None
    fits = count == len(wanted) or not paid
    held = JointReservation(budgets)
    wants = [
        (budget._account, of_budget[count - 1] if fits else Amounts())
        for budget, of_budget in zip(budgets, sums, strict=True)
    ]
    try:
        await held.make(wants)
    except Denied:
        return None  # Another process was quicker.
    return ReservedRound(len(wanted) if paid else count, held, rates)
