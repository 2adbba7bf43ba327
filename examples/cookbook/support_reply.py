"""A support reply, shown word by word as soon as it is certain that its first line is true.

Shown: `strategy.stream` and a check that decides while the reply arrives; a reply that begins with
a wrong status is closed at that word, and nobody sees it. For your case: change `ORDERS` and rule.
"""

from __future__ import annotations

from random import Random

from stand_in import start

from mellea_like import Backend, RejectionSamplingStrategy, Request, SamplingResult, checks

ORDERS = {1042: "shipped on Monday", 1043: "waiting for payment", 1044: "delivered"}
PROMPT = """\
A customer asks where order {number} is. Our records say: {status}.
Begin your reply with the line "Order {number}: {status}." and then help in two or three sentences.
"""


async def reply_to(model: Backend, number: int) -> SamplingResult[str]:
    """Print a reply while it arrives; return its record."""
    true = checks.starts_with(f"Order {number}: {ORDERS[number]}.", early=True)
    strategy = RejectionSamplingStrategy(model, loop_budget=5)
    prompt = PROMPT.format(number=number, status=ORDERS[number])
    async with strategy.stream(prompt, [true]) as reply:
        async for text in reply:
            print(text, end="", flush=True)
    print()
    return reply.result


async def main(model: Backend) -> None:
    for number in ORDERS:
        result = await reply_to(model, number)
        for draw in result.slices[:-1]:
            print(f"  (not shown, and closed after {len(draw.text.split())} words: {draw.text!r})")
        if not result.success:
            print("  Nobody can say right now; we will write to you.")


# --- what plays the model: 4 of 10 replies begin with what another order is


def helpful_agent(request: Request, chance: Random) -> str:
    prompt = request.messages[0].text
    number = next(number for number in ORDERS if str(number) in prompt)
    others = [status for other, status in ORDERS.items() if other != number]
    status = chance.choice(others) if chance.random() < 0.4 else ORDERS[number]
    offer = chance.choice(["You can follow it on our site.", "Write to us if anything is amiss."])
    return f"Order {number}: {status}.\n{offer} Thank you for your patience."


if __name__ == "__main__":
    start(main, __doc__, model=helpful_agent)
