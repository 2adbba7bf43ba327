"""LiteLLM."""

from __future__ import annotations

import json

import litellm
from rows import (
    BASE_URL,
    CHECKED,
    EXPECTED,
    KEY,
    PLAIN,
    SENTENCE,
    WEATHER_TOOL,
    Weather,
    run,
    same,
    user,
)

where = {"api_base": BASE_URL, "api_key": KEY}
plain, checked = f"openai/{PLAIN}", f"openai/{CHECKED}"


def sync(prompt: str) -> None:
    reply = litellm.completion(plain, user(prompt), **where)
    same(reply.choices[0].message.content, SENTENCE)


async def with_async(prompt: str) -> None:
    reply = await litellm.acompletion(plain, user(prompt), **where)
    same(reply.choices[0].message.content, SENTENCE)


def stream(prompt: str) -> None:
    chunks = litellm.completion(plain, user(prompt), stream=True, **where)
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), SENTENCE)


def tools(prompt: str) -> None:
    reply = litellm.completion(checked, user(prompt), tools=[WEATHER_TOOL], **where)
    (call,) = reply.choices[0].message.tool_calls
    same(json.loads(call.function.arguments), {"city": "Paris", "days": 21})


def typed(prompt: str) -> None:
    reply = litellm.completion(checked, user(prompt), response_format=Weather, **where)
    same(Weather.model_validate_json(reply.choices[0].message.content), EXPECTED)


run(
    "LiteLLM",
    {
        "completion": sync,
        "acompletion": with_async,
        "stream=True": stream,
        "tools": tools,
        "response_format=Model": typed,
    },
)
