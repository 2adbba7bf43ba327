"""The draws, tokens and cost of each model, in a call, a run or a stage of an escalation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price, currency_of, price_for
from mellea_like.report.markup import clip
from mellea_like.report.numbers import amount, count, money, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.report.views import SliceView, TraceView


ANY_MODEL = "any model"
"""The key in a price table for the price of all models that the table doesn't name."""


class Money(NamedTuple):
    """A sum of money: the amount that is known, and whether that is the whole sum."""

    known: float = 0.0
    complete: bool = True

    def plus(self, other: Money) -> Money:
        """Return the total of this sum and another one."""
        return Money(self.known + other.known, self.complete and other.complete)


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of models, from which the cost of requests is computed."""

    of: Mapping[str, Price]

    @property
    def currency(self) -> str:
        """The currency of the prices, as a code."""
        return currency_of(self.of)

    def price(self, model: str | None) -> Price | None:
        """Return a model's price; ``model`` is None if it is unknown."""
        if model is None and len(self.of) == 1:
            model = next(iter(self.of))
        return price_for(model, self.of) or self.of.get(ANY_MODEL)

    def cost(self, usage: Usage, model: str | None) -> Money:
        """Return the cost of a model's requests; ``model`` is None if it is unknown."""
        price = self.price(model)
        if price is None:
            return Money(0.0, not usage.total_tokens and not usage.unknown)
        return Money(price.cost(usage), not usage.unknown)


def prices_of(written: Mapping[str, list[Any]] | None) -> Prices | None:
    """Return the prices in a run's record; None if the record has no prices."""
    if not written:
        return None
    return Prices({model: Price.from_list(price) for model, price in written.items()})


@dataclass(slots=True)
class ModelShare:
    """The draws, usage and cost of one model."""

    draws: int = 0
    judged: int = 0
    passed: int = 0
    usage: Usage = Usage()
    money: Money = field(default_factory=Money)


Shares: TypeAlias = "dict[tuple[int | None, str | None], ModelShare]"
"""The models' shares, by stage (None without stages) and model (None if unknown)."""


def _parts_of(
    s: SliceView, model: str | None, prices: Prices | None
) -> list[tuple[str | None, Usage, Money]]:
    """Split the cost of a draw by model: the draw's own model, then the models of its checks."""
    checks, usage = s.check_usage, s.usage
    own = usage - sum((spent for _, spent in checks or ()), Usage())
    parts: list[tuple[str | None, Usage, Money]] = []
    for at, (name, spent) in enumerate(((model, own), *(checks or ()))):
        money = Money() if prices is None else prices.cost(spent, name)
        # If the judge's model was not recorded, its price may differ.
        if checks is None or (at and name is None):
            money = Money(money.known, complete=False)
        parts.append((name, spent, money))
    return parts


def money_of(s: SliceView, model: str | None, prices: Prices) -> Money:
    """Return the cost of a draw and its checks."""
    total = Money()
    for _, _, cost in _parts_of(s, model, prices):
        total = total.plus(cost)
    return total


def add_shares(trace: TraceView, shares: Shares, prices: Prices | None = None) -> Money:
    """Add a call's draws and checks to the ``shares`` of their models; return their total cost."""
    total = Money()
    for s, model in zip(trace.slices, trace.models, strict=True):
        for at, (name, usage, cost) in enumerate(_parts_of(s, model, prices)):
            share = shares.setdefault((s.stage, name), ModelShare())
            share.draws += not at
            share.judged += not at and s.judged
            share.passed += not at and s.passed
            share.usage += usage
            share.money = share.money.plus(cost)
            total = total.plus(cost)
    return total


def share_rows(shares: Shares, currency: str | None = None) -> list[tuple[str, ...]]:
    """Return each model's share as a row of texts; no rows if there is only one model."""
    rows: list[tuple[str, ...]] = []
    order = sorted(shares.items(), key=lambda share: -1 if share[0][0] is None else share[0][0])
    for (stage, model), share in order if len(shares) > 1 else ():
        where = "" if stage is None else f"stage {stage}: "
        of_judged = "" if share.judged == share.draws else f" of {count(share.judged)} judged"
        cells = [
            where + clip(model or "unknown model", 100),
            count(share.draws),
            f"{count(share.passed)} ({percent(share.passed, share.judged)}{of_judged})",
            ("≥ " if share.usage.unknown else "") + amount(share.usage.total_tokens),
        ]
        if currency is not None:
            known, complete = share.money
            cells.append(money(known, currency, at_least=not complete))
        rows.append(tuple(cells))
    return rows
