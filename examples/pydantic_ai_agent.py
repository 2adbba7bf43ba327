"""Rejection sampling over a whole agent of Pydantic AI: a draw is a run of the agent.

`FunctionBackend` makes a backend of any function, so also of ``agent.run``: the agent keeps its
tools, its retries and its typed output, and its runs race against a requirement. When one passes,
the others' runs are cancelled, with the requests that they have in flight.

A `FunctionModel` of Pydantic AI plays the language model, offline. In a program, give the agent a
model's name instead: ``Agent("openai:gpt-5", ...)``.

Run it: ``python examples/pydantic_ai_agent.py`` (``pip install pydantic-ai-slim``)
"""

from __future__ import annotations

import sys

import anyio
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from mellea_like import (
    FunctionBackend,
    Generation,
    MelleaError,
    RejectionSamplingStrategy,
    Request,
    requirement,
)
from mellea_like.core import Usage, current_iteration

DEPTHS = {"north pier": 4.2, "south pier": 6.8, "basin": 9.5}


class Berth(BaseModel):
    """Where a ship may lie."""

    place: str
    depth: float


class Model:
    """Plays a language model: the draws of higher numbers are wiser, and slower."""

    cancelled = 0

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Look the depth of a place up, then answer with it."""
        draw = current_iteration() or 0
        place = list(DEPTHS)[(draw - 1) % len(DEPTHS)]
        try:
            await anyio.sleep(0.02 * draw)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("depth_of", {"place": place})])
        answer = {"place": place, "depth": DEPTHS[place]}
        return ModelResponse([ToolCallPart(info.output_tools[0].name, answer)])


model = Model()
agent = Agent(FunctionModel(model.answer), output_type=Berth)


@agent.tool_plain
def depth_of(place: str) -> float:
    """Look up how deep the water is, in metres."""
    return DEPTHS[place]


async def run_agent(request: Request) -> Generation:
    """Run the agent once; what it spends is what the draw costs."""
    run = await agent.run(request.messages[-1].text)
    spent = run.usage
    usage = Usage(spent.requests, spent.input_tokens, spent.output_tokens)
    return Generation(run.output.model_dump_json(), run.output, usage, finish_reason="stop")


@requirement("it is deep enough for a draught of 6 m", inline=True)
def deep_enough(candidate):
    return candidate.value.depth > 6, f"{candidate.value.depth} m is too shallow"


async def main() -> int:
    strategy = RejectionSamplingStrategy(
        FunctionBackend(run_agent), loop_budget=1, concurrency_budget=3
    )
    try:
        result = await strategy.sample("Find a berth for the Maria.", [deep_enough], format=Berth)
        berth = result.unwrap()
    except MelleaError as exc:
        print(f"No berth: {exc}", file=sys.stderr)
        return 1

    for slice_ in result.slices:
        print(f"run {slice_.iteration}: {slice_.outcome}", *slice_.problems, sep="\n    ")
    print(f"The berth: {berth.place}, {berth.depth} m, by {result.usage.requests} requests")
    print(f"Requests of losers that were cancelled: {model.cancelled}")
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))

# expect: run 1: failed
# expect: run 2: passed
# expect: run 3: cancelled
# expect: The berth: south pier, 6.8 m, by ... requests
# expect: Requests of losers that were cancelled: 1
