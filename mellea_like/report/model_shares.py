"""What each model did in a call or a run, and in each stage of an escalation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from mellea_like.core.generation import Usage
from mellea_like.core.serialization import check_usage_of
from mellea_like.report.markup import clip
from mellea_like.report.numbers import amount, count, money, percent
from mellea_like.report.trace_figures import Money, usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.report.trace_figures import Prices

__all__ = [
    "ModelShare",
    "Shares",
    "add_shares",
    "models_in",
    "money_of",
    "parts_of",
    "share_rows",
]

MOST_MODELS = 50
"""Models that are told apart; the rest goes together."""


@dataclass(slots=True)
class ModelShare:
    """What one model did."""

    draws: int = 0
    passed: int = 0
    usage: Usage = Usage()
    money: Money = field(default_factory=Money)


Shares: TypeAlias = "dict[tuple[int | None, str | None], ModelShare]"
"""What each model did, by the stage, where there are stages, and the model."""


def models_in(trace: Mapping[str, Any]) -> list[str | None]:
    """Find the model of each iteration: that of its reply.

    Without a reply, the one that all replies of its stage name, or else the one that was asked.
    """
    slices: list[Mapping[str, Any]] = trace["slices"]
    named: dict[int | None, set[str]] = {}
    for s in slices:
        if s["model"] is not None:
            named.setdefault(s.get("stage"), set()).add(s["model"])
    only = {stage: next(iter(models)) for stage, models in named.items() if len(models) == 1}
    return [s["model"] or only.get(s.get("stage")) or s.get("asked") for s in slices]


def parts_of(
    s: Mapping[str, Any], model: str | None, prices: Prices | None
) -> list[tuple[str | None, Usage, Money]]:
    """Split what a draw cost: the part of its own model first, then those of its checks."""
    checks, usage = check_usage_of(s), usage_of(s["usage"])
    own = usage - sum((spent for _, spent in checks or ()), Usage())
    parts: list[tuple[str | None, Usage, Money]] = []
    for at, (name, spent) in enumerate(((model, own), *(checks or ()))):
        money = Money() if prices is None else prices.cost(spent, name)
        # The price of a judge whose model was not recorded may be another.
        if checks is None or (at and name is None):
            money = Money(money.known, complete=False)
        parts.append((name, spent, money))
    return parts


def money_of(s: Mapping[str, Any], model: str | None, prices: Prices) -> Money:
    """Sum what a draw and its checks cost."""
    total = Money()
    for _, _, cost in parts_of(s, model, prices):
        total = total.plus(cost)
    return total


def add_shares(trace: Mapping[str, Any], shares: Shares, prices: Prices | None = None) -> None:
    """Add what the models of a call did, those of judges too."""
    for s, model in zip(trace["slices"], models_in(trace), strict=True):
        for at, (name, usage, cost) in enumerate(parts_of(s, model, prices)):
            key = (s.get("stage"), name)
            if key not in shares and len(shares) >= MOST_MODELS:
                key = (None, "(others)")
            share = shares.setdefault(key, ModelShare())
            share.draws += not at
            share.passed += not at and s["outcome"] == "passed"
            share.usage += usage
            share.money = share.money.plus(cost)


def share_rows(shares: Shares, currency: str | None = None) -> list[tuple[str, ...]]:
    """Write each model's name, draws, passes and tokens and, in a currency, its cost.

    Empty where there is one model only.
    """
    rows: list[tuple[str, ...]] = []
    order = sorted(shares.items(), key=lambda share: -1 if share[0][0] is None else share[0][0])
    for (stage, model), share in order if len(shares) > 1 else ():
        where = "" if stage is None else f"stage {stage}: "
        cells = [
            where + clip(model or "unknown model", 100),
            count(share.draws),
            f"{count(share.passed)} ({percent(share.passed, share.draws)})",
            ("≥ " if share.usage.unknown else "") + amount(share.usage.total_tokens),
        ]
        if currency is not None:
            known, complete = share.money
            cells.append(money(known, currency, at_least=not complete))
        rows.append(tuple(cells))
    return rows
