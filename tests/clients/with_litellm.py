"""LiteLLM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import litellm
from rows import (
    ARGUMENTS,
    BASE_URL,
    CHECKED,
    EXPECTED,
    FOUND,
    KEY,
    PLAIN,
    SENTENCE,
    WEATHER_TOOL,
    Weather,
    run,
    same,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

where = {"api_base": BASE_URL, "api_key": KEY}
plain, checked = f"openai/{PLAIN}", f"openai/{CHECKED}"


def talk(prompt: str, complete: Callable[[list[Any]], Any]) -> None:
    """Take two turns, each with a request."""
    for messages in turns(prompt):
        message = complete(messages).choices[0].message
        same(message.content, SENTENCE)
        messages.append(message)


def sync(prompt: str) -> None:
    talk(prompt, lambda messages: litellm.completion(plain, messages, **where))


async def with_async(prompt: str) -> None:
    for messages in turns(prompt):
        reply = await litellm.acompletion(plain, messages, **where)
        same(reply.choices[0].message.content, SENTENCE)
        messages.append(reply.choices[0].message.model_dump())


def streamed(model: str, messages: list[Any], **given: Any) -> Any:
    chunks = litellm.completion(model, messages, stream=True, **where, **given)
    return litellm.stream_chunk_builder(list(chunks), messages=messages)


def stream(prompt: str) -> None:
    talk(prompt, lambda messages: streamed(plain, messages))


def loop(prompt: str, complete: Callable[[list[Any]], Any]) -> None:
    """Take two turns; in each, the model calls a tool."""
    for messages in turns(prompt):
        message = complete(messages).choices[0].message
        (call,) = message.tool_calls
        same(json.loads(call.function.arguments), ARGUMENTS)
        messages.extend([message, {"role": "tool", "tool_call_id": call.id, "content": FOUND}])
        message = complete(messages).choices[0].message
        same(message.content, SENTENCE)
        messages.append(message)


def tools(prompt: str) -> None:
    given = [WEATHER_TOOL]
    loop(prompt, lambda m: litellm.completion(checked, m, tools=given, **where))


def streamed_tools(prompt: str) -> None:
    loop(prompt, lambda messages: streamed(checked, messages, tools=[WEATHER_TOOL]))


def typed(prompt: str) -> None:
    for messages in turns(prompt):
        reply = litellm.completion(checked, messages, response_format=Weather, **where)
        message = reply.choices[0].message
        same(Weather.model_validate_json(message.content), EXPECTED)
        messages.append(message)


def responses(prompt: str) -> None:
    for items in turns(prompt):
        reply = litellm.responses(model=plain, input=items, **where)
        same(reply.output_text, SENTENCE)
        items.extend([item.model_dump() for item in reply.output])


run(
    "LiteLLM",
    {
        "chat": {"completion": sync, "acompletion": with_async},
        "stream": {"stream=True": stream},
        "tools": {"tools": tools, "tools, stream=True": streamed_tools},
        "typed": {"response_format=Model": typed},
        "responses": {"responses": responses},
    },
)
