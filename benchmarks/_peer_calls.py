"""The task of `peers.py`, done by one library: `python benchmarks/_peer_calls.py WAY URL`.

It runs in that library's environment. Each line that comes in is a number of calls to make; the
line that goes out tells how long each took, the processor time of all and since the start, when
the last returned, and the memory of the process. A way is written as the library's documentation
does it. All have the same prompt, type and check, 16 attempts at most, and a client that keeps its
connections.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator

PROMPT = "Read this invoice: paper for 12.50 and ink for 30.00, 42.50 in all."
RULE = "the lines add up to the total"
LANES = 4
ATTEMPTS = 16
"""The budget of a call: four lanes of four attempts, or 16 one after the other."""

Call = Callable[[], Awaitable[Any]]


class Line(BaseModel):
    name: str
    price: float


class Invoice(BaseModel):
    lines: list[Line]
    total: float


class CheckedInvoice(Invoice):
    """An invoice whose lines add up, for libraries that check by validating the type."""

    @model_validator(mode="after")
    def lines_add_up(self) -> CheckedInvoice:
        if not adds_up(self):
            raise ValueError(RULE)
        return self


def adds_up(invoice: Invoice) -> bool:
    """Check a reply: the same for all."""
    return sum(line.price for line in invoice.lines) == invoice.total


def text_adds_up(text: str) -> bool:
    """Check a reply that comes as text."""
    try:
        return adds_up(Invoice.model_validate_json(text))
    except ValidationError:
        return False


def by_hand(url: str, lanes: int) -> Call:
    """The leanest loop: the SDK, a check, and for several lanes a task group that is cancelled."""
    import anyio
    import openai

    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    schema: Any = {"name": "invoice", "schema": Invoice.model_json_schema()}
    wanted: Any = {"type": "json_schema", "json_schema": schema}
    messages: Any = [{"role": "user", "content": f"{PROMPT} Requirement: {RULE}."}]

    async def lane(attempts: int) -> Invoice | None:
        for _ in range(attempts):
            reply = await client.chat.completions.create(
                model="bench", messages=messages, response_format=wanted
            )
            try:
                invoice = Invoice.model_validate_json(reply.choices[0].message.content or "")
            except ValidationError:
                continue
            if adds_up(invoice):
                return invoice
        return None

    async def alone() -> Invoice | None:
        return await lane(ATTEMPTS)

    async def race() -> Invoice | None:
        found: list[Invoice] = []

        async def one() -> None:
            invoice = await lane(ATTEMPTS // lanes)
            if invoice is not None:
                found.append(invoice)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(lanes):
                tasks.start_soon(one)
        return found[0] if found else None

    return alone if lanes == 1 else race


def mellea_like(url: str, lanes: int) -> Call:
    from mellea_like import Candidate, OpenAIBackend, RejectionSamplingStrategy, requirement

    @requirement(RULE, inline=True)
    def rule(candidate: Candidate) -> bool:
        return adds_up(candidate.value)

    strategy = RejectionSamplingStrategy(
        OpenAIBackend("bench", base_url=url, api_key="none", keep_alive=True),
        loop_budget=ATTEMPTS // lanes,
        concurrency_budget=lanes,
    )

    async def call() -> Any:
        return (await strategy.sample(PROMPT, [rule], format=Invoice)).unwrap()

    return call


def mellea(url: str, lanes: int) -> Call:
    import logging

    from mellea import start_session
    from mellea.stdlib.requirements import req, simple_validate
    from mellea.stdlib.sampling import RejectionSamplingStrategy

    logging.disable(logging.WARNING)
    session = start_session("openai", model_id="bench", base_url=url, api_key="none")
    rule = req(RULE, simple_validate(text_adds_up))
    strategy = RejectionSamplingStrategy(loop_budget=ATTEMPTS // lanes, concurrency_budget=lanes)

    async def call() -> Any:
        result = await session.ainstruct(
            PROMPT,
            requirements=[rule],
            strategy=strategy,
            format=Invoice,
            return_sampling_results=True,
        )
        return Invoice.model_validate_json(str(result.result)) if result.success else None

    return call


def instructor(url: str, lanes: int) -> Call:
    import instructor

    client = instructor.from_provider(
        "openai/bench", async_client=True, base_url=url, api_key="none"
    )

    async def call() -> Any:
        return await client.create(
            response_model=CheckedInvoice,
            messages=[{"role": "user", "content": PROMPT}],
            max_retries=ATTEMPTS - 1,
        )

    return call


def pydantic_ai(url: str, lanes: int) -> Call:
    from pydantic_ai import Agent, ModelRetry
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("bench", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, output_type=Invoice, retries={"output": ATTEMPTS - 1})

    @agent.output_validator
    def rule(invoice: Invoice) -> Invoice:
        if not adds_up(invoice):
            raise ModelRetry(RULE)
        return invoice

    async def call() -> Any:
        return (await agent.run(PROMPT)).output

    return call


def dspy(url: str, lanes: int) -> Call:
    import dspy

    # What it has kept of an earlier call would be an answer without a request.
    dspy.configure(lm=dspy.LM("openai/bench", api_base=url, api_key="none", cache=False))

    class Read(dspy.Signature):
        text: str = dspy.InputField()
        invoice: Invoice = dspy.OutputField()

    best = dspy.BestOfN(
        module=dspy.Predict(Read),
        N=ATTEMPTS,
        reward_fn=lambda asked, reply: float(adds_up(reply.invoice)),
        threshold=1.0,
    )

    async def call() -> Any:
        return best(text=PROMPT).invoice

    return call


WAYS: dict[str, Callable[[str, int], Call]] = {
    "by hand": by_hand,
    "mellea_like": mellea_like,
    "Mellea": mellea,
    "Instructor": instructor,
    "Pydantic AI": pydantic_ai,
    "DSPy": dspy,
}


async def main(way: str, url: str, lanes: int) -> None:
    """Make as many calls as each line says."""
    call = WAYS[way](url, lanes)
    while line := await asyncio.to_thread(sys.stdin.readline):
        taken: list[float] = []
        worked = time.process_time()
        for _ in range(int(line)):
            began = time.monotonic()
            invoice = await call()
            taken.append(time.monotonic() - began)
            if invoice is None or not adds_up(invoice):
                sys.exit(f"{way} returned {invoice!r}")
        returned = time.monotonic()
        worked = time.process_time() - worked
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        told = {"taken": taken, "worked": worked, "returned": returned, "memory": memory}
        told["since_start"] = time.process_time()
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
