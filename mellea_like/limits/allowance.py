"""One budget by itself: its limits, its prices, and what is spent of it."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from mellea_like.core.numbers import LARGEST, real_number, whole_number
from mellea_like.core.prices import PER, checked_prices, price_for
from mellea_like.errors import LimitExceeded
from mellea_like.limits.budget_stats import BudgetLimits
from mellea_like.limits.ledger import Account, Amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.core.options import Options
    from mellea_like.core.prices import Price

__all__ = ["Allowance", "Rate", "amounts", "in_money"]

MONEY = 10**15
"""Money is counted in whole parts of its unit, so that sums and differences are exact."""

Rate: TypeAlias = "tuple[int, int]"
"""What a token of the prompt and one of the reply cost, in those parts."""


class Allowance:
    """What a budget allows, apart from those round it.

    Args:
        limits: the limits.
        prices: the price of each model.
        assume_output_tokens: the longest reply to reserve for, without ``max_tokens``.
        name: the budget's name in errors.

    Raises:
        TypeError: something is of the wrong type.
        ValueError: a limit is not above 0 and finite, or money is limited without prices.
    """

    def __init__(
        self,
        limits: BudgetLimits,
        prices: Mapping[str, Price] | None,
        assume_output_tokens: int | None,
        name: str,
    ) -> None:
        if not isinstance(name, str):
            msg = f"a budget's name is a str, not {name!r}"
            raise TypeError(msg)
        self.name = name
        self._prices = checked_prices(prices)
        self._assumed = assume_output_tokens
        if assume_output_tokens is not None:
            whole_number("a budget's assume_output_tokens", assume_output_tokens)
        self._account = Account((inf, inf, inf, inf))
        self._limits = BudgetLimits()
        self._limit(limits)

    @property
    def requests(self) -> int | None:
        """The most requests; None for no limit. It may be set at any time, as may all limits."""
        return self._limits.requests

    @requests.setter
    def requests(self, requests: int | None) -> None:
        self._limit(self._limits._replace(requests=requests))

    @property
    def input_tokens(self) -> int | None:
        """The most tokens of prompts; None for no limit."""
        return self._limits.input_tokens

    @input_tokens.setter
    def input_tokens(self, input_tokens: int | None) -> None:
        self._limit(self._limits._replace(input_tokens=input_tokens))

    @property
    def output_tokens(self) -> int | None:
        """The most tokens of replies; None for no limit."""
        return self._limits.output_tokens

    @output_tokens.setter
    def output_tokens(self, output_tokens: int | None) -> None:
        self._limit(self._limits._replace(output_tokens=output_tokens))

    @property
    def money(self) -> float | None:
        """The most money; None for no limit."""
        return self._limits.money

    @money.setter
    def money(self, money: float | None) -> None:
        self._limit(self._limits._replace(money=money))

    @property
    def seconds(self) -> float | None:
        """How long requests are admitted, from the first one that was; None for no limit."""
        return self._limits.seconds

    @seconds.setter
    def seconds(self, seconds: float | None) -> None:
        self._limit(self._limits._replace(seconds=seconds))
        self._time_changed()

    @property
    def prices(self) -> Mapping[str, Price] | None:
        """The price of each model, or None."""
        return self._prices

    @property
    def assume_output_tokens(self) -> int | None:
        """The longest reply to reserve for where the options have no ``max_tokens``, or None."""
        return self._assumed

    @property
    def spent(self) -> Amounts:
        """What requests that have ended were charged."""
        return in_money(self._account.spent)

    def _limit(self, limits: BudgetLimits) -> None:
        for name, most in limits._asdict().items():
            if most is None:
                continue
            if name in {"money", "seconds"}:
                real_number(f"a budget's {name}", most, over=0)
            else:
                whole_number(f"a budget's {name}", most, most=LARGEST)
        if limits.money is not None and self._prices is None:
            msg = (
                f"budget {self.name!r} limits money and needs to know what that buys:"
                " prices={model: Price(input, output)}"
            )
            raise ValueError(msg)
        self._limits = limits
        requests, sent, received, money, _ = (inf if most is None else most for most in limits)
        money = money if money is inf else round(Fraction(money) * MONEY)
        self._account.limits = requests, sent, received, money
        self._account.serve()

    def _time_changed(self) -> None:
        """Hear that the time limit was set."""

    def _terms(self, options: Options, model: str | None) -> tuple[int, Rate]:
        """Return the longest reply to reserve for, and what tokens cost."""
        limits = self._limits
        bound = self._assumed if options.max_tokens is None else options.max_tokens
        if bound is None and not (limits.output_tokens is None and limits.money is None):
            what = "output_tokens" if limits.money is None else "money"
            msg = (
                f"budget {self.name!r} limits {what}, and the length of a reply is not limited:"
                " set max_tokens in the options, or assume_output_tokens on the budget"
            )
            raise ValueError(msg)
        price = None if self._prices is None else price_for(model, self._prices)
        if price is None and limits.money is not None:
            whose = "a model of unknown name" if model is None else f"the model {model!r}"
            msg = (
                f"budget {self.name!r} limits money, and its prices have none for {whose}, only"
                f" for: {', '.join(self._prices or ())}"
            )
            raise ValueError(msg)
        if price is None:
            return bound or 0, (0, 0)
        return bound or 0, (_per_token(price.input), _per_token(price.output))

    def _left(self, seconds: float | None) -> BudgetLimits:
        """Return what is neither spent nor reserved."""
        limits, account = self._limits, self._account
        taken = in_money(account.spent.plus(account.reserved))
        return BudgetLimits(
            _free(limits.requests, taken.requests),
            _free(limits.input_tokens, taken.input_tokens),
            _free(limits.output_tokens, taken.output_tokens),
            _free(limits.money, taken.money),
            seconds,
        )

    def _refusal(self, lacking: str, wanted: Amounts) -> LimitExceeded:
        """Say why a request is denied."""
        account = self._account
        allowed, spent, more = (
            amounts._asdict()[lacking]
            for amounts in (self._limits, in_money(account.spent), in_money(wanted))
        )
        if lacking == "requests":
            what = f"{spent} of {allowed} requests are made"
            return LimitExceeded(f"budget {self.name!r}: {what}, and this would be one more")
        what = "money" if lacking == "money" else lacking.replace("_", " ")
        fix = "a shorter prompt" if lacking == "input_tokens" else "a lower max_tokens"
        msg = (
            f"budget {self.name!r}: {spent:.12g} of {allowed:.12g} {what} spent, and this request"
            f" may take {more:.12g}: it needs a higher {lacking} limit, or {fix}"
        )
        return LimitExceeded(msg)


def amounts(requests: int, sent: int, received: int, rate: Rate) -> Amounts:
    """Return amounts with what the tokens cost, as accounts count it.

    Args:
        requests: requests.
        sent: tokens of prompts.
        received: tokens of replies.
        rate: what one of each costs.

    Returns:
        The amounts.
    """
    return Amounts(requests, sent, received, sent * rate[0] + received * rate[1])


def in_money(counted: Amounts) -> Amounts:
    """Return amounts with the money in its own unit.

    Args:
        counted: amounts as accounts count them.

    Returns:
        The same amounts, for people.
    """
    return counted._replace(money=counted.money / MONEY)


def _per_token(price: float) -> int:
    return round(Fraction(price) * MONEY / PER)  # Exact, and without an overflow.


def _free(limit: float | None, taken: float) -> Any:
    return None if limit is None else max(0, limit - taken)
