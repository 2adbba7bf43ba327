"""What a run may cost, and when its requests may go: from the options to the objects."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.cli.exits import Exit, Problem
from mellea_like.core.prices import Price
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.budget import Budget
from mellea_like.limits.rate import RateLimiter
from mellea_like.limits.retry import Retry
from mellea_like.sampling.giving_up import PerRequirement
from mellea_like.sampling.schedules.expressions import parse_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.core.backend import Backend
    from mellea_like.sampling.giving_up import GiveUp
    from mellea_like.sampling.schedules.base import Schedule

__all__ = ["BUDGETS", "LimitArguments", "Limits", "in_options", "parse_budget", "parse_price"]

BUDGETS = {
    "requests": "requests",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
    "cost": "money",
}
"""What ``--budget`` bounds, and how `Budget` calls it."""

MOST_MONEY = 1e12
"""More than anyone has, and little enough to count with."""

VERDICT_TOKENS = 512
"""What a judge's reply is taken to have at most, for a budget; nothing cuts it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitArguments:
    """The options about limits, as typed."""

    retries: int = 2
    schedule: str = "eager"
    budget: Sequence[str] = ()
    price: str | None = None
    max_tokens: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    give_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run."""

    retry: Retry | None
    schedule: Schedule
    give_up: GiveUp | None = None
    budget: Mapping[str, Any] = field(default_factory=dict[str, Any])
    price: Price | None = None
    limiter: RateLimiter | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, arguments: LimitArguments) -> Limits:
        """Make the limits that were asked for."""
        try:
            schedule = parse_schedule(arguments.schedule)
            budget = parse_budget(arguments.budget)
            price = None if arguments.price is None else parse_price(arguments.price)
        except ValueError as exc:
            msg = f"--{exc}"
            raise Problem(msg, Exit.USAGE) from exc
        if "money" in budget and price is None:
            msg = (
                "--budget cost needs the price of tokens: add --price IN,OUT, dollars (or another"
                " currency: IN,OUT,EUR) per million tokens of prompts and of replies"
            )
            raise Problem(msg, Exit.USAGE)
        bounded = next((kind for kind in ("cost", "output-tokens") if BUDGETS[kind] in budget), "")
        if bounded and arguments.max_tokens is None:
            msg = f"--budget {bounded} needs to know how long one reply may get: add --max-tokens N"
            raise Problem(msg, Exit.USAGE)
        retries = arguments.retries
        # Refusals with a 429 are counted by themselves.
        refusals = max(retries + 1, Retry().rate_limit_attempts)
        return cls(
            retry=Retry(retries + 1, rate_limit_attempts=refusals) if retries else None,
            schedule=schedule,
            give_up=PerRequirement() if arguments.give_up else None,
            budget=budget,
            price=price,
            limiter=_limiter(arguments),
            max_tokens=arguments.max_tokens,
        )

    def limited(self, backend: Backend) -> Backend:
        """Put the limiter round a backend."""
        return backend if self.limiter is None else LimitedBackend(backend, self.limiter)

    def budget_for(self, backends: Iterable[Backend], what: str = "call") -> Budget | None:
        """Make the budget."""
        if not self.budget:
            return None
        models = [getattr(backend, "model", None) for backend in backends]
        if "money" in self.budget and None in models:
            msg = (
                "--budget cost needs to know the model beforehand: add --model NAME"
                " (--judge-model NAME for a judge)"
            )
            raise Problem(msg, Exit.USAGE)
        prices = None if self.price is None else self.prices(models)
        return Budget(
            **self.budget,
            prices=prices,
            assume_output_tokens=VERDICT_TOKENS,
            name=f"this {what}",
        )

    def prices(self, models: Iterable[str | None]) -> dict[str, Price] | None:
        """Make a price table."""
        if self.price is None:
            return None
        return {model: self.price for model in models if model is not None}


def parse_budget(given: Iterable[str]) -> dict[str, Any]:
    """Read what may be spent."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, amount = (part.strip() for part in text.partition("="))
        kind = name.lower().replace("_", "-")
        if kind not in BUDGETS:
            raise ValueError(_unknown_budget(text, kind, amount))
        if not equals or not amount:
            msg = f"budget {text!r} lacks its amount: write {kind}={_example(kind)}"
            raise ValueError(msg)
        if BUDGETS[kind] in found:
            msg = f"budget {kind} is given twice: name each kind once"
            raise ValueError(msg)
        found[BUDGETS[kind]] = _amount(text, kind, amount)
    return found


def parse_price(text: str) -> Price:
    """Read what tokens cost."""
    *parts, last = text.split(",")
    currency = last.strip().upper() if len(parts) == 2 else "USD"  # noqa: PLR2004
    try:
        sent, received = map(float, parts if len(parts) == 2 else [*parts, last])  # noqa: PLR2004
        if max(sent, received) <= MOST_MONEY:
            return Price(sent, received, currency)
    except ValueError:
        pass
    msg = (
        "price takes two amounts of at least 0, of money per million tokens of prompts and of"
        f" replies, and perhaps the currency's code: 0.15,0.60 or 0.15,0.60,EUR, not {text!r}"
    )
    raise ValueError(msg)


def in_options(sentence: str) -> str:
    """Say what a budget's error says in words of the command line."""
    names = {value: kind for kind, value in BUDGETS.items()}
    found = re.sub(
        r"a higher (\w+) limit", lambda m: f"a higher --budget {names.get(m[1], m[1])}", sentence
    )
    found = found.replace("a lower max_tokens", "a lower --max-tokens")
    return re.sub(r"budget '(this (?:call|run))'", r"the budget of \1", found)


def _limiter(arguments: LimitArguments) -> RateLimiter | None:
    if arguments.rpm is None and arguments.tpm is None:
        return None
    try:
        return RateLimiter(requests_per_minute=arguments.rpm, tokens_per_minute=arguments.tpm)
    except ValueError as exc:
        wrong = "rpm" if "requests" in str(exc) else "tpm"
        msg = f"--{wrong} takes a number above 0, not {getattr(arguments, wrong):g}"
        raise Problem(msg, Exit.USAGE) from exc


def _amount(text: str, kind: str, amount: str) -> float:
    whole = kind != "cost"
    try:
        number = int(amount) if whole else float(amount)
    except ValueError:
        number = 0
    if not 0 < number <= (float("inf") if whole else MOST_MONEY):
        what = "a whole number above 0" if whole else "an amount of money above 0"
        msg = f"budget {text!r}: {kind} takes {what}, as in {kind}={_example(kind)}"
        raise ValueError(msg)
    return number


def _example(kind: str) -> str:
    return {"requests": "20", "cost": "0.50"}.get(kind, "5000")


def _unknown_budget(text: str, kind: str, amount: str) -> str:
    close = difflib.get_close_matches(kind, BUDGETS, n=1)
    hint = f"; did you mean {close[0]}={amount or _example(close[0])}?" if close else ""
    if kind in {"seconds", "time", "timeout"}:
        hint = f": write --timeout {amount or 'SECONDS'} for that"
    allowed = "  ".join(f"{kind}={_example(kind)}" for kind in BUDGETS)
    return f"budget {text!r} is none of the known ones{hint}\nAllowed: {allowed}"
