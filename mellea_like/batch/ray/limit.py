"""What all actors of a dataset may spend together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from mellea_like.core.numbers import real_number
from mellea_like.core.prices import checked_prices
from mellea_like.limits.allowance import Allowance
from mellea_like.limits.budget_stats import BudgetLimits
from mellea_like.limits.rate import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.core.prices import Price
    from mellea_like.limits.ledger import Limits

__all__ = ["ClusterLimit"]


def _new_name() -> str:
    return uuid4().hex[:16]


class _Total(Allowance):
    def __init__(self, limit: ClusterLimit) -> None:
        super().__init__(limit.budget, limit.prices, limit.assume_output_tokens, limit.name)

    @property
    def counted(self) -> Limits:
        return self._account.limits


@dataclass(frozen=True, kw_only=True)
class ClusterLimit:
    """How much all actors of a dataset may spend together: rates, a budget, or both.

    An actor of its own, the office, leases them out: to each worker a part of the rates, by how
    much it has to do, and of the budget as much as it will soon need. A worker spends what it has
    leased, by itself, and renews its leases ahead of time. So no request waits for the office as
    long as there is something left to lease.

    Where the office dies, the workers make another one, and tell it what they know. Meanwhile, a
    worker goes on at half of the last rates it had, then at a quarter, and at an eighth for as long
    as it takes; and of the budget it spends what it has leased and nothing more. So does a worker
    that can't reach the office any more.

    What holds:

    - In any minute, all workers together send at most a minute's quota and one burst each.
    - They spend at most the budget, but for what requests cost beyond their estimates, as with any
      `Budget`. What a worker had leased and not spent when it died is taken as spent. Where the
      office and a worker die at once, what that worker had leased in the last moment can be leased
      a second time.

    One object stands for one limit: datasets with the same object share it, those that run in one
    Ray job at the same time.

    Args:
        requests_per_minute: requests in a minute, or None.
        tokens_per_minute: tokens in a minute, of prompts and replies together, or None.
        burst_seconds: how many seconds' quota a worker may use at one moment.
        requests: requests in all, or None.
        input_tokens: tokens of prompts in all, or None.
        output_tokens: tokens of replies in all, or None.
        money: money in all, in the currency of ``prices``, or None.
        prices: the price of each model by its name.
        assume_output_tokens: the longest reply to reserve for, where options have no
            ``max_tokens``.
        lease_seconds: for how long a lease holds; it is renewed after half of that.
        name: what the office is called in the cluster.

    Raises:
        TypeError: something is no number, or ``prices`` no price table.
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
    lease_seconds: float = 2.0
    name: str = field(default_factory=_new_name)

    def __post_init__(self) -> None:
        real_number("ClusterLimit: lease_seconds", self.lease_seconds, over=0)
        if not self.has_rate and self.budget == BudgetLimits():
            msg = (
                "ClusterLimit needs a limit: requests_per_minute, tokens_per_minute, requests,"
                " input_tokens, output_tokens or money"
            )
            raise ValueError(msg)
        for name in ("requests_per_minute", "tokens_per_minute"):
            rate = getattr(self, name)
            if rate is not None:
                real_number(f"ClusterLimit: {name}", rate, over=0)
        prices = checked_prices(self.prices)
        if prices is not None:  # As a dict, which can be sent to an actor.
            object.__setattr__(self, "prices", dict(prices))
        _Total(self)
        if self.has_rate:
            self.rate_limiter(1.0)

    @property
    def has_rate(self) -> bool:
        """Whether there is a limit to the rate."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    @property
    def budget(self) -> BudgetLimits:
        """The limits to what is spent in all."""
        return BudgetLimits(self.requests, self.input_tokens, self.output_tokens, self.money)

    @property
    def total(self) -> Limits:
        """The same limits as accounts count them: infinite for none."""
        return _Total(self).counted

    def rates(self, share: float) -> tuple[float | None, float | None]:
        """Return a part of the rates.

        Args:
            share: which part, from 0 to 1.

        Returns:
            The requests and the tokens in a minute: hardly any for no share, which no limiter
            takes.
        """
        requests, tokens = self.requests_per_minute, self.tokens_per_minute
        share = max(share, 1e-9)
        return requests and requests * share, tokens and tokens * share

    def rate_limiter(self, share: float) -> RateLimiter:
        """Make the limiter of a worker.

        Args:
            share: the part of the rates that it has.

        Returns:
            The limiter.
        """
        requests, tokens = self.rates(share)
        assumed = (
            {}
            if self.assume_output_tokens is None
            else {"assume_output_tokens": self.assume_output_tokens}
        )
        return RateLimiter(
            requests_per_minute=requests,
            tokens_per_minute=tokens,
            burst_seconds=self.burst_seconds,
            **assumed,
        )
