"""What all actors of a dataset may spend together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from mellea_like.core.prices import checked_prices
from mellea_like.limits.budget import Budget
from mellea_like.limits.rate import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.core.prices import Price
    from mellea_like.limits.base import Limit

__all__ = ["ClusterLimit", "limits_of"]


def _new_name() -> str:
    return uuid4().hex[:16]


@dataclass(frozen=True, kw_only=True)
class ClusterLimit:
    """How much all actors of a dataset may spend together: rates, a budget, or both.

    A Ray actor on the driver's node holds one `Budget` and one `RateLimiter`, and every worker asks
    it before each request. So what they promise for one process holds for the whole cluster: in any
    minute at most a minute's quota and one burst are sent, and at most the budget is spent, but for
    what requests cost beyond their estimates.

    - A worker that dies leaves requests behind of which nobody knows what they cost. Once it hasn't
      been heard of for 60 seconds, all that was reserved for them counts as spent.
    - If the limit's actor dies, nothing more is sent: the rows that are left are ``unfinished``,
      and their ``error`` says why. A worker that gets no answer from it stops after 30 seconds.

    One object stands for one limit: datasets with the same object share it, those that run in one
    Ray job at the same time.

    Args:
        requests_per_minute: requests in a minute, or None.
        tokens_per_minute: tokens in a minute, of prompts and replies together, or None.
        burst_seconds: how many seconds' quota may be used at one moment.
        requests: requests in all, or None.
        input_tokens: tokens of prompts in all, or None.
        output_tokens: tokens of replies in all, or None.
        money: money in all, in the currency of ``prices``, or None.
        prices: the price of each model by its name.
        assume_output_tokens: the longest reply to reserve for, where options have no
            ``max_tokens``.
        name: what tells the limit from others in the cluster.

    Raises:
        TypeError: a limit isn't a number, or ``prices`` isn't a price table.
        ValueError: a number is out of its range, no limit is given, or money without prices.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    burst_seconds: float = 1.0
    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    money: float | None = None
    prices: Mapping[str, Price] | None = None
    assume_output_tokens: int | None = None
    name: str = field(default_factory=_new_name)

    def __post_init__(self) -> None:
        prices = checked_prices(self.prices)
        if prices is not None:  # As a dict, which can be sent to an actor.
            object.__setattr__(self, "prices", dict(prices))
        if not limits_of(self):
            msg = (
                "ClusterLimit needs a limit: requests_per_minute, tokens_per_minute, requests,"
                " input_tokens, output_tokens or money"
            )
            raise ValueError(msg)


def limits_of(limit: ClusterLimit) -> list[Limit]:
    """Make the limits themselves, in the order in which a request asks them."""
    made: list[Limit] = []
    most = (limit.requests, limit.input_tokens, limit.output_tokens, limit.money)
    if most != (None, None, None, None):
        made.append(
            Budget(
                requests=limit.requests,
                input_tokens=limit.input_tokens,
                output_tokens=limit.output_tokens,
                money=limit.money,
                prices=limit.prices,
                assume_output_tokens=limit.assume_output_tokens,
                name="cluster",
            )
        )
    if limit.requests_per_minute is not None or limit.tokens_per_minute is not None:
        assumed = limit.assume_output_tokens
        made.append(
            RateLimiter(
                requests_per_minute=limit.requests_per_minute,
                tokens_per_minute=limit.tokens_per_minute,
                burst_seconds=limit.burst_seconds,
                **({} if assumed is None else {"assume_output_tokens": assumed}),
            )
        )
    return made
