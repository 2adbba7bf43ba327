"""A small model first, a big one for what it fails, and a budget in dollars for all of it.

Shown: `Escalate`, a check that really runs what the model wrote, and what each model cost.
For your case: change `TASKS` and the check, and set the prices and the budget to your own.
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from stand_in import show, start

from mellea_like import (
    Backend,
    Budget,
    Escalate,
    Instruction,
    LimitExceeded,
    Price,
    Request,
    Requirement,
    Stage,
    sample_many,
)
from mellea_like.batch import ItemResult

BUDGET_USD = 0.0011


class Task(NamedTuple):
    what: str
    yes: list[str]
    no: list[str]


TASKS = [
    Task("a date such as 2024-02-29", ["2024-02-29", "1999-12-01"], ["2024-13-01", "24-1-1", ""]),
    Task("a price in euros", ["3.50 €", "1,200.00 €", "7 €"], ["3.5 €", "€ 3.50", "12,00.00 €"]),
    Task("a hex colour", ["#fff", "#A0b1C2"], ["#ffff", "fff", "#ggg"]),
    Task("a version number", ["1.0.0", "10.2.33"], ["1.0", "01.2.3", "1.2.3.4"]),
    Task("a plate such as B-AB 123", ["B-AB 123", "HH-X 1"], ["B-AB", "b-ab 123", "B-AB 12345"]),
    Task("a time of day", ["00:00", "23:59", "9:05"], ["24:00", "9:5", "12:60"]),
]


def ask(task: Task) -> Instruction:
    prompt = f"Write a regular expression (Python's re) that matches {task.what} and nothing else."
    return Instruction(f"{prompt} Reply with the expression alone.", requirements=[fits(task)])


def fits(task: Task) -> Requirement:
    def check(candidate) -> tuple[bool, str]:
        try:
            pattern = re.compile(candidate.text.strip())
        except re.error as exc:
            return False, f"it is no regular expression: {exc}"
        wrong = [f"it does not match {text!r}" for text in task.yes if not pattern.fullmatch(text)]
        wrong += [f"it matches {text!r}" for text in task.no if pattern.fullmatch(text)]
        return not wrong, "; ".join(wrong)

    return Requirement("it matches what it should", check, timeout=1, check_only=True)


async def solve(small: Backend, big: Backend, budget: Budget) -> dict[str, ItemResult[str]]:
    """Solve the tasks one after another, until the budget is spent."""
    strategy = Escalate(
        [Stage(small, turns=3), Stage(big, turns=2, carry="best")], options={"max_tokens": 60}
    )
    solved: dict[str, ItemResult[str]] = {}
    async with sample_many(strategy, TASKS, action=ask, concurrency=1, budget=budget) as results:
        try:
            async for item in results:
                solved[item.item.what] = item
                show(item.item.what, item)
                if item.result is not None:
                    spent = item.result.ledger(budget.prices).by_model
                    print(*(f"  {model}: ${cost.cost:.6f}" for model, cost in spent.items()))
        except LimitExceeded as exc:
            print(f"No further task was begun: {exc}")
    return solved


async def main(model: Backend, big: Backend) -> None:
    prices = {model.model: Price(0.20, 0.80), big.model: Price(3.00, 12.00)}
    budget = Budget(money=BUDGET_USD, prices=prices, name="all tasks")
    await solve(model, big, budget)
    print(f"{budget.statistics().spent.money:.6f} of {BUDGET_USD} dollars are spent")


# --- what plays the models: the small one is right in 3 of 10 draws, the big one in 9 of 10


def small_model(request: Request, chance: Random) -> str:
    return expression(request, chance, right=0.3)


def big_model(request: Request, chance: Random) -> str:
    return expression(request, chance, right=0.9)


def expression(request: Request, chance: Random, right: float) -> str:
    known = next(v for k, v in KNOWN.items() if k in request.messages[0].text)
    return known[0] if chance.random() < right else chance.choice(known[1:])


KNOWN = {
    "date": [r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"\d{4}-\d{2}-\d{2}", r"\d+-\d+-\d+"],
    "price": [r"\d{1,3}(,\d{3})*(\.\d{2})? €", r"[\d,]+(\.\d+)? €", r"€? ?\d+\.\d{2}"],
    "colour": [r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})", r"#[0-9a-f]{3,6}", r"#\w+"],
    "version": [r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", r"\d+(\.\d+)*", r"\d+\.\d+\.\d+"],
    "plate": [r"[A-Z]{1,3}-[A-Z]{1,2} \d{1,4}", r"[A-Z]+-[A-Z]+ \d+", r"[A-Z]-[A-Z]{2} \d{3}"],
    "time": [r"([01]?\d|2[0-3]):[0-5]\d", r"\d{1,2}:\d{2}", r"([01]\d|2[0-3]):[0-5]\d)"],
}

if __name__ == "__main__":
    start(main, __doc__, model=small_model, big=big_model)
