"""The options that limit the cost of judges, for commands that only judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mellea_like.cli.draw_options import BUDGETS, parse_budget
from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.limits import Budget
from mellea_like.specification.upstream import read_price

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.limits import Price

__all__ = ["BUDGET", "PRICE", "judge_budget", "read_judge_price"]

COSTS = "Costs and limits"


BUDGET = (
    "--budget KIND=N",
    f"Limit for all judge requests together: {', '.join(BUDGETS)}. Repeatable.",
    COSTS,
)
PRICE = (
    "--price IN,OUT",
    "Dollars per million input and output tokens; 0.15,0.60,EUR for euros.",
    COSTS,
)


def read_judge_price(given: str | None) -> Price | None:
    """Parse the value of ``--price``; return None if the option isn't given."""
    try:
        price = cast("Price | None", read_price(given))
    except ValueError as exc:
        msg = f"--price {exc}, not {given!r}"
        raise Problem(msg, Exit.USAGE) from exc
    return price


def judge_budget(
    given: Iterable[str],
    price: Price | None,
    models: Sequence[str | None],
    judge_options: Mapping[str, Any],
) -> Budget | None:
    """Make one budget for all judges; return None if there is no limit."""
    limits: Any = parse_budget(given)
    if not limits:
        return None
    if "money" in limits and (price is None or None in models):
        msg = "--budget cost needs the price of tokens and the models: add --price IN,OUT"
        if price is not None:
            msg = "--budget cost needs to know the model beforehand: add --judge MODEL"
        raise Problem(msg, Exit.USAGE)
    if limits.keys() & {"money", "output_tokens"} and "max_tokens" not in judge_options:
        msg = (
            "--budget cost and output-tokens need to know how long a verdict may get: add"
            " --judge-option max-tokens=N"
        )
        raise Problem(msg, Exit.USAGE)
    prices = None if price is None else {str(model): price for model in models}
    return Budget(name="this run", prices=prices, **limits)
