"""Haystack."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
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
    turns,
)


def generator(kind: Any, name: str, **how: Any) -> Any:
    return kind(api_key=Secret.from_token(KEY), model=name, api_base_url=BASE_URL, **how)


def chat(kind: Any, prompt: str, *, stream: bool = False) -> None:
    texts: list[str] = []
    how = {"streaming_callback": lambda chunk: texts.append(chunk.content)} if stream else {}
    asked = generator(kind, PLAIN, **how)
    for messages in turns(prompt, ChatMessage.from_user):
        (reply,) = asked.run(messages)["replies"]
        same(reply.text, SENTENCE)
        messages.append(reply)
    if stream:
        same("".join(texts), 2 * SENTENCE)


def tools(kind: Any, prompt: str, *, stream: bool = False) -> None:
    asked, messages = Asked(), list[Any]()
    how = {"streaming_callback": lambda chunk: None} if stream else {}

    def get_weather(city: str, days: int) -> str:
        """Look the weather up."""
        return asked.get_weather(city, days)

    agent = Agent(
        chat_generator=generator(kind, CHECKED, **how),
        tools=[create_tool_from_function(get_weather)],
    )
    for text in (prompt, AGAIN):
        messages.append(ChatMessage.from_user(text))
        done = agent.run(messages=messages)
        same(done["last_message"].text, SENTENCE)
        messages = done["messages"]
    asked.check(times=2)


def typed(kind: Any, name: str, prompt: str) -> None:
    asked = generator(kind, CHECKED, generation_kwargs={name: Weather})
    for messages in turns(prompt, ChatMessage.from_user):
        (reply,) = asked.run(messages)["replies"]
        same(json.loads(reply.text), EXPECTED.model_dump())
        messages.append(reply)


CHAT, RESPONSES = OpenAIChatGenerator, OpenAIResponsesChatGenerator
run(
    "Haystack",
    {
        "chat": {"OpenAIChatGenerator": partial(chat, CHAT)},
        "stream": {"streaming_callback": partial(chat, CHAT, stream=True)},
        "tools": {
            "Agent": partial(tools, CHAT),
            "Agent, streaming_callback": partial(tools, CHAT, stream=True),
        },
        "typed": {"response_format": partial(typed, CHAT, "response_format")},
        "responses": {
            "OpenAIResponsesChatGenerator": partial(chat, RESPONSES),
            "streaming_callback": partial(chat, RESPONSES, stream=True),
            "Agent": partial(tools, RESPONSES),
            "text_format": partial(typed, RESPONSES, "text_format"),
        },
    },
)
