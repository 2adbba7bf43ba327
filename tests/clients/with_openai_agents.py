"""OpenAI's Agents SDK."""

from __future__ import annotations

from functools import partial
from typing import Any

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
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

set_tracing_disabled(True)


def agent(name: str, kind: Any, **given: Any) -> Agent[None]:
    client = openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
    return Agent(name="weather", model=kind(model=name, openai_client=client), **given)


async def ask(asked: Agent[None], prompt: str, expected: object, *, stream: bool = False) -> None:
    items: list[Any] = []
    for text in (prompt, AGAIN):
        items.append({"role": "user", "content": text})
        if stream:
            result: Any = Runner.run_streamed(asked, items)
            events = [event async for event in result.stream_events()]
            deltas = [e.data for e in events if e.type == "raw_response_event"]
            kind = "response.output_text.delta"
            same("".join(data.delta for data in deltas if data.type == kind), expected)
        else:
            result = await Runner.run(asked, items)
        same(result.final_output, expected)
        items = result.to_input_list()


async def chat(kind: Any, prompt: str, *, stream: bool = False) -> None:
    await ask(agent(PLAIN, kind), prompt, SENTENCE, stream=stream)


async def tools(kind: Any, prompt: str, *, stream: bool = False) -> None:
    asked = Asked()
    given = [function_tool(asked.get_weather)]
    await ask(agent(CHECKED, kind, tools=given), prompt, SENTENCE, stream=stream)
    asked.check(times=2)


async def typed(kind: Any, prompt: str) -> None:
    await ask(agent(CHECKED, kind, output_type=Weather), prompt, EXPECTED)


CHAT, RESPONSES = OpenAIChatCompletionsModel, OpenAIResponsesModel
run(
    "OpenAI Agents SDK",
    {
        "chat": {"Runner.run": partial(chat, CHAT)},
        "stream": {"Runner.run_streamed": partial(chat, CHAT, stream=True)},
        "tools": {
            "tools": partial(tools, CHAT),
            "run_streamed, tools": partial(tools, CHAT, stream=True),
        },
        "typed": {"output_type": partial(typed, CHAT)},
        "responses": {
            "Runner.run": partial(chat, RESPONSES),
            "run_streamed": partial(chat, RESPONSES, stream=True),
            "tools": partial(tools, RESPONSES),
            "output_type": partial(typed, RESPONSES),
        },
    },
)
