"""Tools in draws over a real HTTP server: OpenAI's own types allow each request."""

from __future__ import annotations

import json

import pytest
from http_server import Answer, serving
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from pydantic import TypeAdapter

from mellea_like import MultiTurnStrategy, Tool, checks

pytestmark = pytest.mark.anyio


def calling(*calls: tuple[str, str]) -> Answer:
    """A streamed answer that calls tools; the server leaves out the ids."""
    deltas = [
        {"tool_calls": [{"index": i, "function": {"name": name, "arguments": arguments}}]}
        for i, (name, arguments) in enumerate(calls)
    ]
    common = {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    events = tuple(json.dumps({**common, "choices": [choice]}) for choice in choices)
    return Answer(events=events, finish_reason=None)


def rooms(city: str) -> int:
    """Return the number of free rooms."""
    return len(city)


def book(city: str, nights: int) -> str:
    """Book a room."""
    return f"{nights} nights in {city}"


async def test_an_agent_looks_up_is_repaired_and_books():
    answers = (
        calling(("rooms", '{"city": "Oslo"}'), ("rooms", '{"city": "Rome"}')),
        calling(("book", '{"city": "Oslo"')),
        calling(("book", '{"city": "Oslo", "nights": 2}')),
        Answer("It is done."),
    )
    async with serving(*answers) as (server, backend):
        strategy = MultiTurnStrategy(backend)
        tools = [Tool.of(rooms, read_only=True), book]
        result = await strategy.sample("Go.", [checks.calls_tool("book")], tools=tools)
        made = await result.run_tools()
        final = await strategy.sample(made, context=result.context, tools=tools)
    assert (made[0].content, final.value) == ("2 nights in Oslo", "It is done.")
    assert [len(slice_.messages) for slice_ in result.slices] == [4, 7]
    assert len(server.requests) == 4
    for body in server.requests:
        TypeAdapter(list[ChatCompletionMessageParam]).validate_python(body["messages"])
        TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(body["tools"])
        waiting: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                waiting.remove(message["tool_call_id"])
            else:
                assert not waiting, "a call that nobody answered"
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                waiting.append(call["id"])
        assert not waiting
    assert [m["role"] for m in server.requests[2]["messages"]] == [
        *("user", "assistant", "tool", "tool", "assistant", "tool", "user")
    ]
