"""The figures that a budget takes and shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mellea_like.limits.ledger import Amounts

__all__ = ["BudgetLimits", "BudgetStatistics"]


class BudgetLimits(NamedTuple):
    """How much of each thing there is; None where there is no limit.

    Attributes:
        requests: requests.
        input_tokens: tokens of prompts.
        output_tokens: tokens of replies.
        money: money, in the currency of the prices.
        seconds: time.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    money: float | None = None
    seconds: float | None = None

    def least(self, other: BudgetLimits) -> BudgetLimits:
        """Return the narrower limits.

        Args:
            other: what to compare with.

        Returns:
            Of each limit the lower one.
        """
        return BudgetLimits._make(map(_least, self, other))


class BudgetStatistics(NamedTuple):
    """A look at a budget. What is spent through the budgets within it counts.

    Attributes:
        limits: the limits.
        spent: what requests that have ended were charged.
        reserved: what requests under way may cost.
        unknown: requests that have ended and whose cost is not known; they were charged estimates.
        denied: requests that this budget has denied.
        waiting: requests that wait until others have ended.
        seconds: time since the first request was admitted.
    """

    limits: BudgetLimits
    spent: Amounts
    reserved: Amounts
    unknown: int
    denied: int
    waiting: int
    seconds: float


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
