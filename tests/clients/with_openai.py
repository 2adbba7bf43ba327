"""OpenAI's own Python client."""

from __future__ import annotations

import openai
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

CALL = ("get_weather", '{"city": "Paris", "days": 21}')
client = openai.OpenAI(base_url=BASE_URL, api_key=KEY)


def sync(prompt: str) -> None:
    completion = client.chat.completions.create(model=PLAIN, messages=user(prompt))
    same(completion.choices[0].message.content, SENTENCE)
    assert completion._request_id
    same([model.id for model in client.models.list()], [PLAIN, CHECKED])


async def with_async(prompt: str) -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY) as one:
        completion = await one.chat.completions.create(model=PLAIN, messages=user(prompt))
    same(completion.choices[0].message.content, SENTENCE)


def stream(prompt: str) -> None:
    options = {"include_usage": True}
    with client.chat.completions.create(
        model=PLAIN, messages=user(prompt), stream=True, stream_options=options
    ) as chunks:
        seen = list(chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices)
    same(text, SENTENCE)
    assert seen[-1].usage.total_tokens > 0


def tools(prompt: str) -> None:
    messages = user(prompt)
    completion = client.chat.completions.create(
        model=CHECKED, messages=messages, tools=[WEATHER_TOOL]
    )
    message = completion.choices[0].message
    same(completion.choices[0].finish_reason, "tool_calls")
    (call,) = message.tool_calls
    same((call.function.name, call.function.arguments), CALL)
    answer = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    after = client.chat.completions.create(
        model=CHECKED, messages=[*messages, message, answer], tools=[WEATHER_TOOL]
    )
    same(after.choices[0].message.content, SENTENCE)


def streamed_tools(prompt: str) -> None:
    with client.chat.completions.stream(
        model=CHECKED, messages=user(prompt), tools=[WEATHER_TOOL]
    ) as events:
        completion = events.get_final_completion()
    (call,) = completion.choices[0].message.tool_calls
    same((call.function.name, call.function.arguments), CALL)


def parse(prompt: str) -> None:
    completion = client.chat.completions.parse(
        model=CHECKED, messages=user(prompt), response_format=Weather
    )
    same(completion.choices[0].message.parsed, EXPECTED)


def responses(prompt: str) -> None:
    reply = client.responses.create(model=PLAIN, input=prompt)
    same(reply.output_text, SENTENCE)


def parsed_responses(prompt: str) -> None:
    reply = client.responses.parse(model=CHECKED, input=prompt, text_format=Weather)
    same(reply.output_parsed, EXPECTED)


def streamed_responses(prompt: str) -> None:
    with client.responses.stream(model=PLAIN, input=prompt) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    same("".join(deltas), SENTENCE)
    same(final.output_text, SENTENCE)


def responses_with_tools(prompt: str) -> None:
    tool = {"type": "function", **WEATHER_TOOL["function"], "strict": None}
    reply = client.responses.create(model=CHECKED, input=prompt, tools=[tool])
    (call,) = [item for item in reply.output if item.type == "function_call"]
    same((call.name, call.arguments), CALL)


run(
    "openai",
    {
        "chat.completions.create": sync,
        "AsyncOpenAI": with_async,
        "stream=True": stream,
        "tools": tools,
        "tools, streamed": streamed_tools,
        "chat.completions.parse": parse,
        "responses.create": responses,
        "responses.parse": parsed_responses,
        "responses.stream": streamed_responses,
        "responses, tools": responses_with_tools,
    },
)
