"""An agent that looks around with read-only tools in each draw; only the winner's order is placed.

Shown: tools against a real database, draws that race, a requirement that verifies the order before
anything is bought. For your case: change the tools; leave `read_only` off those that do something.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from stand_in import start

from mellea_like import (
    Backend,
    Generation,
    RejectionSamplingStrategy,
    Request,
    SamplingResult,
    Tool,
    checks,
    requirement,
)
from mellea_like.core import ToolCall

TASK = "Order 20 loaves of bread from the cheapest shop that has them in stock."
OFFERS = [("Mill", 2.10, 12), ("Corner", 2.40, 80), ("Harbour", 2.90, 500), ("Tower", 2.60, 40)]
FOLDER = tempfile.TemporaryDirectory(prefix="agent-")
DATABASE = Path(FOLDER.name) / "bread.db"


def query(sql: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(DATABASE)) as database, database:
        return database.execute(sql, values).fetchall()


def open_shops() -> None:
    query("CREATE TABLE offer (shop, price, loaves)")
    query("CREATE TABLE ordered (shop, loaves)")
    for offer in OFFERS:
        query("INSERT INTO offer VALUES (?, ?, ?)", *offer)


# --- the tools: plain functions, which run in threads


def offers() -> list[dict[str, object]]:
    """List the shops that sell bread, with the price of a loaf."""
    return [{"shop": shop, "price": p} for shop, p in query("SELECT shop, price FROM offer")]


def stock(shop: str) -> int:
    """Tell how many loaves a shop has.

    Args:
        shop: the shop's name, as ``offers`` has it.
    """
    found = query("SELECT loaves FROM offer WHERE shop = ?", shop)
    if not found:
        msg = f"there is no shop named {shop}"
        raise ValueError(msg)  # the agent reads this
    return found[0][0]


def order(shop: str, loaves: int) -> str:
    """Order bread. It is paid for at once."""
    query("INSERT INTO ordered VALUES (?, ?)", shop, loaves)
    return f"{loaves} loaves ordered from {shop}"


@requirement("the shop is the cheapest one that has the bread")
def is_the_best_order(candidate):
    call = candidate.tool_calls[0]  # checks.calls_tool("order") comes first
    best = query("SELECT shop FROM offer WHERE loaves >= ? ORDER BY price", call.value["loaves"])
    return call.value["shop"] == best[0][0], f"{call.value['shop']} is not"


async def shop_for(model: Backend, task: str) -> SamplingResult[str]:
    strategy = RejectionSamplingStrategy(
        model, loop_budget=4, concurrency_budget=2, selection="ordered"
    )
    tools = [Tool.of(offers, read_only=True), Tool.of(stock, read_only=True), order]
    verified = [checks.calls_tool("order", loaves=20), is_the_best_order]
    return await strategy.sample(task, verified, tools=tools)


async def main(model: Backend) -> None:
    open_shops()
    result = await shop_for(model, TASK)
    for draw in sorted(result.slices, key=lambda draw: draw.rank):
        if draw.rank <= result.best.rank:
            print(f"attempt {draw.depth + 1}, lane {draw.subsample + 1}: {draw.outcome}")
            for call in [*(c for m in draw.messages for c in m.tool_calls), *draw.tool_calls]:
                print(f"    {call}")
            print(*(f"      {problem}\n" for problem in draw.problems), sep="", end="")
    print("The winner's call:", *(message.text for message in await result.run_tools()))
    print("In the database:", query("SELECT * FROM ordered"))


# --- what plays the model: of 10 draws 3 ask nobody, 3 forget the stock, and 4 look at it


def brisk_agent(request: Request, chance: Random) -> Generation:
    hurry = chance.random()
    told = [json.loads(m.text) for m in request.messages if m.role == "tool"]
    if hurry < 0.3:
        return calling("order", shop="Mill", loaves=20)
    if not told:
        return calling("offers")
    by_price = sorted(told[0], key=lambda offer: offer["price"])
    loaves = told[1:]
    if hurry < 0.6:
        return calling("order", shop=by_price[0]["shop"], loaves=20)
    if loaves and loaves[-1] >= 20:
        return calling("order", shop=by_price[len(loaves) - 1]["shop"], loaves=20)
    return calling("stock", shop=by_price[len(loaves)]["shop"])


def calling(name: str, **arguments: object) -> Generation:
    call = ToolCall(f"call-{name}", name, json.dumps(arguments))
    return Generation("", tool_calls=(call,), finish_reason="tool_calls")


if __name__ == "__main__":
    with FOLDER:
        start(main, __doc__, model=brisk_agent)
