"""Prices of tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mellea_like.core.argument_checks import check_type, real_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.generation import Usage

__all__ = ["IN_A_JOB", "Price", "cost", "price_for"]

PER = 1_000_000
"""The number of tokens that a price is for."""

SNAPSHOT = re.compile(r"(?P<model>.+)[-@](?:\d{4}-\d{2}-\d{2}|\d{8})")
"""Matches a model's name that ends in the date of a version."""


IN_A_JOB = ":batch"
"""The suffix that a record adds to the model's name if the request was part of a batch job."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model's tokens, per million.

    Args:
        input: the price of a million tokens of prompts.
        output: the price of a million tokens of replies.
        currency: the code of the currency (ISO 4217), three capital letters. Nothing is converted,
            so all prices of a table must be in the same currency.
        cached_input: the price of a million tokens of prompts that the server took from its prompt
            cache; None if these cost as much as all other tokens of prompts.

    Raises:
        TypeError: a price isn't a number.
        ValueError: a price is negative or not finite, or the currency isn't such a code.
    """

    input: float
    output: float
    currency: str = "USD"
    cached_input: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            price: object = getattr(self, name)
            if price is not None or name != "cached_input":
                real_number(f"a price's {name}, in money per million tokens,", price, least=0)
        if not re.fullmatch("[A-Z]{3}", str(self.currency)):
            msg = f"a price's currency must be a code such as 'USD' or 'EUR', not {self.currency!r}"
            raise ValueError(msg)

    def cost(self, usage: Usage) -> float:
        """Return the cost of requests, as far as their tokens are known.

        Args:
            usage: the usage of the requests.

        Returns:
            An amount of money in the currency of the price.
        """
        spent = usage.input_tokens * self.input + usage.output_tokens * self.output
        if self.cached_input is not None:
            spent += usage.cached_input_tokens * (self.cached_input - self.input)
        return spent / PER

    def halved(self) -> Price:
        """Return half of this price, which is the price of the same tokens in a batch job."""
        cached = None if self.cached_input is None else self.cached_input / 2
        return replace(self, input=self.input / 2, output=self.output / 2, cached_input=cached)

    def as_list(self) -> list[float | str | None]:
        """Return the price as plain data, which `from_list` reads."""
        written: list[float | str | None] = [self.input, self.output, self.currency]
        return written if self.cached_input is None else [*written, self.cached_input]

    @classmethod
    def from_list(cls, written: Sequence[Any]) -> Price:
        """Read a price that `as_list` has written."""
        *price, cached = (*written, None) if len(written) < len(fields(cls)) else written
        return cls(*price, cached_input=cached)


def checked_prices(prices: Mapping[str, Price] | None) -> Mapping[str, Price] | None:
    """Make sure that something is a price table or None, and return a read-only copy."""
    if prices is None:
        return None
    check_type("prices", prices, Mapping, "a mapping of model names to Price")
    for model, price in prices.items():
        if not isinstance(model, str) or not isinstance(price, Price):
            msg = f"prices must map model names to Price(input, output), not {model!r} to {price!r}"
            raise TypeError(msg)
    currencies = sorted({price.currency for price in prices.values()})
    if len(currencies) > 1:
        msg = f"all prices must be in the same currency, not {', '.join(currencies)}"
        raise ValueError(msg)
    return MappingProxyType(dict(prices))


def currency_of(prices: Mapping[str, Price] | None) -> str:
    """Return the currency code of a table's prices; ``"USD"`` if there are none."""
    return next(iter(prices.values())).currency if prices else "USD"


def with_currency(amount: str, currency: str) -> str:
    """Write an amount of money with its currency, as in ``$0.50`` or ``0.50 EUR``."""
    return f"${amount}" if currency == "USD" else f"{amount} {currency}"


def is_version(model: str, of: str) -> bool:
    """Return whether ``model`` is the name ``of``, or that name with the date of a version."""
    snapshot = SNAPSHOT.fullmatch(model)
    return model == of or (snapshot is not None and snapshot["model"] == of)


def price_for(model: str | None, prices: Mapping[str, Price]) -> Price | None:
    """Find the price of a model, or of the model that it is a version of; None if there is none.

    For a model in a batch job, such as ``"gpt-5-mini:batch"``, the table may have a separate price.
    If it doesn't, the price is half of the model's, as with OpenAI, Azure, Anthropic and Mistral.
    """
    if model is None:
        return None
    base = model.removesuffix(IN_A_JOB)
    snapshot = SNAPSHOT.fullmatch(base)
    names = (base,) if snapshot is None else (base, snapshot["model"])
    if base != model:
        own = next((prices[f"{n}{IN_A_JOB}"] for n in names if f"{n}{IN_A_JOB}" in prices), None)
        if own is not None:
            return own
    price = next((prices[name] for name in names if name in prices), None)
    return price.halved() if price is not None and base != model else price


def known_price(model: str | None, prices: Mapping[str, Price]) -> Price:
    """Return the price of a model, like `price_for`; raise ``ValueError`` if there is none."""
    price = price_for(model, prices)
    if price is None:
        whose = "a model whose name is unknown" if model is None else f"the model {model!r}"
        msg = f"there is no price for {whose}: the prices are for {', '.join(prices) or 'none'}"
        raise ValueError(msg)
    return price


def cost(usage: Usage, model: str | None, prices: Mapping[str, Price]) -> float:
    """Return the cost of tokens; raise ``ValueError`` if the model has no price."""
    return known_price(model, prices).cost(usage)
