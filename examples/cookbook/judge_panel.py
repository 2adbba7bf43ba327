"""A panel of three judges votes on each draft: two of three have to find that it is true.

Shown: requirements that models decide, each with a judge of its own, and `at_least` for the votes.
For your case: change `CLAIM`, and name three models that differ: they err in different ways.
"""

from __future__ import annotations

import json
from random import Random

from stand_in import show, start

from mellea_like import (
    Backend,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    checks,
    sample_many,
)
from mellea_like.batch import ItemResult

CLAIM = "it claims nothing that the facts do not say"
PRODUCTS = {
    "lamp": "a brass desk lamp, 40 cm high, 40 euros, with a two-year guarantee",
    "rug": "a woollen rug, 2 by 3 metres, woven by hand in Fes, 95 euros",
    "vase": "a blue glass vase, 25 cm high, 18 euros",
}


def panel(judges: list[Backend]) -> Requirement:
    """Put the same question to each judge; the majority decides."""
    votes = [Requirement(CLAIM, judge=judge, name=f"judge {judge.model}") for judge in judges]
    return checks.at_least(2, *votes)


async def write(model: Backend, judges: list[Backend]) -> list[ItemResult[str]]:
    strategy = RejectionSamplingStrategy(model, loop_budget=8, requirements=[panel(judges)])
    prompts = [f"Write a line for our shop. The facts: {facts}." for facts in PRODUCTS.values()]
    async with sample_many(strategy, prompts, concurrency=3, in_order=True) as results:
        return [item async for item in results]


async def main(model: Backend, first: Backend, second: Backend, third: Backend) -> None:
    for item in await write(model, [first, second, third]):
        show(list(PRODUCTS)[item.id], item)
        for verdict in item.result.best.verdicts if item.success else ():
            print(f"  {item.result.best.text}\n  {verdict.reason.partition(':')[0]}")
            print(f"  {item.usage.requests} requests, the judges' included")


# --- what plays the writer: half of its lines make something up


def eager_writer(request: Request, chance: Random) -> str:
    facts = request.messages[0].text.partition("The facts: ")[2].partition(".")[0]
    line = f"Now in our shop: {facts}."
    return f"{line} {chance.choice(INVENTED)}" if chance.random() < 0.5 else line


INVENTED = ["It lasts a lifetime!", "Delivery is free!", "It has won three design prizes!"]

# --- what plays the judges: each is right in 9 of 10 cases, and on its own


def verdict(request: Request, chance: Random) -> str:
    text = request.messages[-1].text
    honest = not any(claim in text for claim in INVENTED)
    passed = honest if chance.random() < 0.9 else not honest
    reason = "all of it is among the facts" if passed else "the last claim is not among the facts"
    return json.dumps({"passed": passed, "reason": reason})


def judge_one(request: Request, chance: Random) -> str:
    return verdict(request, chance)


def judge_two(request: Request, chance: Random) -> str:
    return verdict(request, chance)


def judge_three(request: Request, chance: Random) -> str:
    return verdict(request, chance)


if __name__ == "__main__":
    start(main, __doc__, model=eager_writer, first=judge_one, second=judge_two, third=judge_three)
