"""Pydantic AI."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from rows import (
    AGAIN,
    BASE_URL,
    CHECKED,
    EXPECTED,
    KEY,
    PLAIN,
    SENTENCE,
    Asked,
    Weather,
    run,
    same,
)


def model(name: str, kind: Any = OpenAIChatModel) -> Any:
    return kind(name, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


async def ask(agent: Agent[Any, Any], prompt: str, expected: object, requests: int) -> None:
    """Run an agent twice; the gateway, not the agent, notices mistakes in a first draw."""
    history: list[Any] = []
    for text in (prompt, AGAIN):
        result = await agent.run(text, message_history=history)
        same(result.output, expected)
        same(result.usage.requests, requests)
        history = result.all_messages()


async def chat(kind: Any, prompt: str) -> None:
    await ask(Agent(model(PLAIN, kind)), prompt, SENTENCE, requests=1)


async def typed(output_type: Any, name: str, kind: Any, prompt: str) -> None:
    agent = Agent(model(name, kind), output_type=output_type)
    await ask(agent, prompt, EXPECTED, requests=1)


async def tool(kind: Any, prompt: str) -> None:
    asked = Asked()
    agent = Agent(model(CHECKED, kind), tools=[asked.get_weather])
    await ask(agent, prompt, SENTENCE, requests=2)
    asked.check(times=2)


async def run_stream(kind: Any, prompt: str) -> None:
    agent, history = Agent(model(PLAIN, kind)), list[Any]()
    for text in (prompt, AGAIN):
        async with agent.run_stream(text, message_history=history) as reply:
            texts = [text async for text in reply.stream_text(delta=True)]
        same("".join(texts), SENTENCE)
        history = reply.all_messages()


async def typed_stream(prompt: str) -> None:
    agent, history = Agent(model(CHECKED), output_type=Weather), list[Any]()
    for text in (prompt, AGAIN):
        async with agent.run_stream(text, message_history=history) as reply:
            same(await reply.get_output(), EXPECTED)
        history = reply.all_messages()


run(
    "Pydantic AI",
    {
        "chat": {"Agent.run": partial(chat, OpenAIChatModel)},
        "stream": {"run_stream": partial(run_stream, OpenAIChatModel)},
        "tools": {"tools": partial(tool, OpenAIChatModel)},
        "typed": {
            "output_type": partial(typed, Weather, CHECKED, OpenAIChatModel),
            "NativeOutput": partial(typed, NativeOutput(Weather), CHECKED, OpenAIChatModel),
            "PromptedOutput": partial(typed, PromptedOutput(Weather), PLAIN, OpenAIChatModel),
            "run_stream, output_type": typed_stream,
        },
        "responses": {
            "OpenAIResponsesModel": partial(chat, OpenAIResponsesModel),
            "run_stream": partial(run_stream, OpenAIResponsesModel),
            "tools": partial(tool, OpenAIResponsesModel),
            "output_type": partial(typed, Weather, CHECKED, OpenAIResponsesModel),
        },
    },
)
