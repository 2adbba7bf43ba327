"""Several draws of a small agent: the first whose work is verified wins, and only it may act.

The agent is to order bread where it is cheapest and in stock. It looks around with two tools that
are ``read_only``, so they run inside the draws, each against a real database. ``order`` changes
something: it runs for the winner alone, after the draws. A requirement verifies the order before
that, by its own query.

No language model here: `careless_agent` plays one, and a seed makes its draws repeatable. It reads
the conversation and calls tools as a model does; some draws guess, some look at one shop only. For
a real one, put ``OpenAIBackend(...)`` in its place.

Run it: ``python examples/agent.py``
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import anyio

from mellea_like import (
    FunctionBackend,
    Generation,
    MelleaError,
    RejectionSamplingStrategy,
    Request,
    Tool,
    ToolCall,
    checks,
    requirement,
)

TASK = "Order 20 loaves of bread from the cheapest shop that has them in stock."
OFFERS = [("Mill", 2.10, 12), ("Corner", 2.40, 80), ("Harbour", 2.90, 500), ("Tower", 2.60, 40)]
FOLDER = tempfile.TemporaryDirectory(prefix="agent-")
DATABASE = Path(FOLDER.name) / "bread.db"


def query(sql: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(DATABASE)) as database, database:
        return database.execute(sql, values).fetchall()


# --- the tools: plain functions, which run in threads


def offers() -> list[dict[str, object]]:
    """List the shops that sell bread, with the price of a loaf."""
    return [
        {"shop": shop, "price": price} for shop, price in query("SELECT shop, price FROM offer")
    ]


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


TOOLS = [Tool.of(offers, read_only=True), Tool.of(stock, read_only=True), order]


@requirement("the shop is the cheapest one that has the bread")
def is_the_best_order(candidate):
    call = candidate.tool_calls[0]  # checks.calls_tool("order") comes first
    best = query("SELECT shop FROM offer WHERE loaves >= ? ORDER BY price", call.value["loaves"])
    return call.value["shop"] == best[0][0], f"{call.value['shop']} is not"


# --- what plays the model


def careless_agent(request: Request) -> Generation:
    """Look at what the tools said, and call the next one; guess, now and then."""
    chance = random.Random(request.options.seed)
    hurry = chance.random()
    told = [json.loads(m.text) for m in request.messages if m.role == "tool"]
    if hurry < 0.3:
        return calling("order", shop="Mill", loaves=20)  # it asks nobody
    if not told:
        return calling("offers")
    by_price = sorted(told[0], key=lambda offer: offer["price"])
    if hurry < 0.6:
        return calling("order", shop=by_price[0]["shop"], loaves=20)  # it forgets the stock
    loaves = told[1:]
    if loaves and loaves[-1] >= 20:
        return calling("order", shop=by_price[len(loaves) - 1]["shop"], loaves=20)
    return calling("stock", shop=by_price[len(loaves)]["shop"])


def calling(name: str, **arguments: object) -> Generation:
    call = ToolCall(f"call-{name}", name, json.dumps(arguments))
    return Generation("", tool_calls=(call,), finish_reason="tool_calls")


async def main() -> int:
    query("CREATE TABLE offer (shop, price, loaves)")
    query("CREATE TABLE ordered (shop, loaves)")
    for offer in OFFERS:
        query("INSERT INTO offer VALUES (?, ?, ?)", *offer)

    strategy = RejectionSamplingStrategy(
        FunctionBackend(careless_agent, inline=True),
        loop_budget=4,
        concurrency_budget=2,
        selection="ordered",  # the same winner each time, whichever draw is quicker
        options={"seed": 2},
    )
    verified = [checks.calls_tool("order", loaves=20), is_the_best_order]
    try:
        result = await strategy.sample(TASK, verified, tools=TOOLS)
        answers = await result.run_tools()
    except MelleaError as exc:
        print(f"Nothing was ordered: {exc}", file=sys.stderr)
        return 1

    for slice_ in sorted(result.slices, key=lambda s: s.iteration):
        steps = [*(call for m in slice_.messages for call in m.tool_calls), *slice_.tool_calls]
        lines = [*steps, *(f"-> {problem}" for problem in slice_.problems)]
        print(f"draw {slice_.iteration} {slice_.outcome}:", *lines, sep="\n    ")
    print("The winner's call:", *(message.text for message in answers))
    print("In the database:", query("SELECT * FROM ordered"))
    return 0


if __name__ == "__main__":
    with FOLDER:
        sys.exit(anyio.run(main))

# expect: draw 1 failed:
# expect: ...order({"shop": "Mill", "loaves": 20})
# expect: draw ... passed:
# expect: ...stock({"shop": "Corner"})
# expect: The winner's call: 20 loaves ordered from Corner
# expect: In the database: [('Corner', 20)]
