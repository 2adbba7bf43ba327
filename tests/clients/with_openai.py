"""OpenAI's own Python client."""

from __future__ import annotations

import json
from typing import Any

import openai
from rows import (
    AGAIN,
    ARGUMENTS,
    BASE_URL,
    CHECKED,
    EXPECTED,
    FOUND,
    KEY,
    PLAIN,
    SENTENCE,
    TALKATIVE,
    WEATHER_TOOL,
    Weather,
    requests,
    run,
    same,
    turns,
    user,
)

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY)
FUNCTION = {"type": "function", **WEATHER_TOOL["function"], "strict": None}


def got_back(prompt: str, field: str) -> None:
    """Raise if a talkative server didn't get back what it added to its reply."""
    if TALKATIVE in prompt:
        assert requests(prompt, AGAIN, f'"{field}": ')["requests"], field


def create(prompt: str) -> None:
    for messages in turns(prompt):
        completion = client.chat.completions.create(model=PLAIN, messages=messages)
        same(completion.choices[0].message.content, SENTENCE)
        assert completion._request_id
        messages.append(completion.choices[0].message)
    got_back(prompt, "reasoning_details")


async def with_async(prompt: str) -> None:
    messages: list[Any] = []
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY) as one:
        same([model.id async for model in one.models.list()], [PLAIN, CHECKED])
        for text in (prompt, AGAIN):
            messages.append(user(text))
            completion = await one.chat.completions.create(model=PLAIN, messages=messages)
            same(completion.choices[0].message.content, SENTENCE)
            messages.append(completion.choices[0].message.model_dump())  # With each null.


def stream(prompt: str) -> None:
    options = {"include_usage": True}
    for messages in turns(prompt):
        with client.chat.completions.create(
            model=PLAIN, messages=messages, stream=True, stream_options=options
        ) as chunks:
            seen = list(chunks)
        texts = [chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices]
        same("".join(texts), SENTENCE)
        assert seen[-1].usage.total_tokens > 0
        messages.append({"role": "assistant", "content": "".join(texts)})


def helped_stream(prompt: str) -> None:
    for messages in turns(prompt):
        with client.chat.completions.stream(model=PLAIN, messages=messages) as events:
            completion = events.get_final_completion()
        same(completion.choices[0].message.content, SENTENCE)
        messages.append(completion.choices[0].message)


def loop(prompt: str, complete: Any) -> None:
    for messages in turns(prompt):
        choice = complete(messages)
        same(choice.finish_reason, "tool_calls")
        (call,) = choice.message.tool_calls
        same(call.function.name, "get_weather")
        same(json.loads(call.function.arguments), ARGUMENTS)
        found = {"role": "tool", "tool_call_id": call.id, "content": FOUND}
        messages.extend([choice.message, found])
        choice = complete(messages)
        same(choice.message.content, SENTENCE)
        messages.append(choice.message)
    got_back(prompt, "thought_signature")


def tools(prompt: str) -> None:
    create, given = client.chat.completions.create, [WEATHER_TOOL]
    loop(prompt, lambda m: create(model=CHECKED, messages=m, tools=given).choices[0])


def streamed_tools(prompt: str) -> None:
    def complete(messages: list[Any]) -> Any:
        with client.chat.completions.stream(
            model=CHECKED, messages=messages, tools=[WEATHER_TOOL]
        ) as events:
            return events.get_final_completion().choices[0]

    loop(prompt, complete)


def parse(prompt: str) -> None:
    for messages in turns(prompt):
        completion = client.chat.completions.parse(
            model=CHECKED, messages=messages, response_format=Weather
        )
        same(completion.choices[0].message.parsed, EXPECTED)
        messages.append(completion.choices[0].message)


def responses(prompt: str) -> None:
    for items in turns(prompt):
        reply = client.responses.create(model=PLAIN, input=items)
        same(reply.output_text, SENTENCE)
        items.extend(reply.output)


def dumped_responses(prompt: str) -> None:
    for items in turns(prompt):
        reply = client.responses.parse(model=CHECKED, input=items, text_format=Weather)
        same(reply.output_parsed, EXPECTED)
        items.extend([item.model_dump() for item in reply.output])


def streamed_responses(prompt: str) -> None:
    for items in turns(prompt):
        with client.responses.stream(model=PLAIN, input=items) as events:
            deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
            final = events.get_final_response()
        same("".join(deltas), SENTENCE)
        same(final.output_text, SENTENCE)
        items.extend(final.output)


def responses_with_tools(prompt: str) -> None:
    for items in turns(prompt):
        reply = client.responses.create(model=CHECKED, input=items, tools=[FUNCTION])
        (call,) = [item for item in reply.output if item.type == "function_call"]
        same((call.name, json.loads(call.arguments)), ("get_weather", ARGUMENTS))
        found = {"type": "function_call_output", "call_id": call.call_id, "output": FOUND}
        items.extend([*reply.output, found])
        reply = client.responses.create(model=CHECKED, input=items, tools=[FUNCTION])
        same(reply.output_text, SENTENCE)
        items.extend(reply.output)


run(
    "openai",
    {
        "chat": {"chat.completions.create": create, "AsyncOpenAI": with_async},
        "stream": {"stream=True": stream, "chat.completions.stream": helped_stream},
        "tools": {"chat.completions.create": tools, "chat.completions.stream": streamed_tools},
        "typed": {"chat.completions.parse": parse},
        "responses": {
            "responses.create": responses,
            "responses.stream": streamed_responses,
            "responses.create, tools": responses_with_tools,
            "responses.parse": dumped_responses,
        },
    },
)
