"""Pydantic AI."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from rows import BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, Weather, run, same


def chat(model: str, kind: Any = OpenAIChatModel) -> Any:
    return kind(model, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


async def typed(
    output_type: Any, prompt: str, model: str = CHECKED, kind: Any = OpenAIChatModel
) -> None:
    # One request: what is wrong in the first draw is the gateway's to notice, not the agent's.
    agent = Agent(chat(model, kind), output_type=output_type)
    result = await agent.run(prompt)
    same(result.output, EXPECTED)
    same(result.usage.requests, 1)


async def tool(prompt: str) -> None:
    agent = Agent(chat(CHECKED))
    asked: list[tuple[str, int]] = []

    @agent.tool_plain
    def get_weather(city: str, days: int) -> str:
        asked.append((city, days))
        return "21 degrees"

    result = await agent.run(prompt)
    same((result.output, asked), (SENTENCE, [("Paris", 21)]))


async def run_stream(prompt: str) -> None:
    async with Agent(chat(PLAIN)).run_stream(prompt) as reply:
        texts = [text async for text in reply.stream_text(delta=True)]
    same("".join(texts), SENTENCE)


async def typed_stream(prompt: str) -> None:
    agent = Agent(chat(CHECKED), output_type=Weather)
    async with agent.run_stream(prompt) as reply:
        same(await reply.get_output(), EXPECTED)


run(
    "Pydantic AI",
    {
        "output_type (tool output)": partial(typed, Weather),
        "NativeOutput": partial(typed, NativeOutput(Weather)),
        "PromptedOutput": partial(typed, PromptedOutput(Weather), model=PLAIN),
        "a tool": tool,
        "run_stream": run_stream,
        "run_stream, typed": typed_stream,
        "OpenAIResponsesModel": partial(typed, Weather, kind=OpenAIResponsesModel),
    },
)
