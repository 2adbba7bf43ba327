"""Parts, tools and calls in OpenAIBackend's requests, which the SDK's own types accept."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from http_server import Answer, serving
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
)
from pydantic import TypeAdapter

from mellea_like import Image, Message, Request, Tool
from mellea_like.backends.openai_reply import Reply
from mellea_like.core import Audio, File, Options, Text, ToolCall
from mellea_like.core.generation import Generation, Meter
from mellea_like.errors import MalformedResponse

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n and more"
WEATHER = Tool("weather", "Tells it.", {"type": "object", "properties": {"city": {}}})
CLOCK = Tool("clock")
ASKED = (
    Message("system", "Be brief."),
    Message(
        "user",
        [
            Text("What is here?"),
            Image(data=PNG, detail="low"),
            Image("https://example.org/a.png"),
            Audio(b"RIFF", "wav"),
            File(b"%PDF-1.7", filename="a.pdf"),
            File(file_id="file-1"),
        ],
        name="Ann",
    ),
    Message("assistant", "", tool_calls=[ToolCall("c1", "clock", "{}")], reasoning="hm"),
    Message("tool", "noon", tool_call_id="c1"),
)


async def test_parts_tools_and_tool_messages_go_onto_the_wire():
    async with serving() as (server, backend):
        await backend.generate(Request(ASKED, tools=(WEATHER, CLOCK), tool_choice="weather"))
        await backend.generate(Request(ASKED[:1], tools=(CLOCK,), tool_choice="required"))
        extra = Options(extra={"parallel_tool_calls": False})
        await backend.generate(Request(ASKED[:1], extra, tools=(CLOCK,)))
        strict = Tool.of({"type": "function", "function": {"name": "clock", "strict": True}})
        await backend.generate(Request(ASKED[:1], tools=(Tool.of(strict, name="watch"),)))
    first, second, third, fourth = server.requests
    parameters = {"type": "object", "properties": {}}
    watch = {"name": "watch", "parameters": parameters, "strict": True}
    assert fourth["tools"] == [{"type": "function", "function": watch}]
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(first["messages"])
    TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(first["tools"])
    for body in (first, second):
        TypeAdapter(ChatCompletionToolChoiceOptionParam).validate_python(body["tool_choice"])
    _, user, assistant, tool = first["messages"]
    encoded = base64.b64encode(PNG).decode()
    assert [part["type"] for part in user["content"]] == [
        *["text", "image_url", "image_url", "input_audio", "file", "file"]
    ]
    assert user["content"][1]["image_url"] == {
        "url": f"data:image/png;base64,{encoded}",
        "detail": "low",
    }
    assert user["content"][3]["input_audio"] == {"data": "UklGRg==", "format": "wav"}
    assert user["name"] == "Ann"
    assert assistant["content"] is None
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
    assert tool == {"role": "tool", "content": "noon", "tool_call_id": "c1"}
    assert [one["function"]["name"] for one in first["tools"]] == ["weather", "clock"]
    assert first["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert second["tool_choice"] == "required"
    assert "tool_choice" not in third
    assert third["parallel_tool_calls"] is False


def event(delta: dict[str, Any], reason: str | None = None) -> str:
    """A chunk that the SDK's types accept."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    common = {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    data = json.dumps({**common, "choices": [choice]})
    ChatCompletionChunk.model_validate_json(data)
    return data


def piece(index: int | None = 0, id_: str | None = None, **function: str) -> dict[str, Any]:
    given = {"index": index, "id": id_, "function": function or None}
    return {name: value for name, value in given.items() if value is not None}


TWO = (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"))


@pytest.mark.parametrize("reason", ["tool_calls", "stop", None])
async def test_calls_are_put_together_by_their_index_beside_text_and_reasoning(reason):
    events = (
        event({"role": "assistant", "reasoning_content": "Let me "}),
        event({"reasoning": "see."}),
        event({"content": "I look it up."}),
        event({"tool_calls": [piece(0, "a", name="f", arguments="")]}),
        event({"tool_calls": [piece(1, "b", name="g", arguments="{")]}),
        event({"tool_calls": [piece(0, arguments='{"x"'), piece(1, arguments="}")]}),
        event({"tool_calls": [piece(0, arguments=": 1}")]}),
        *([] if reason is None else [event({}, reason)]),
    )
    async with serving(Answer(events=events, finish_reason=None)) as (_, backend):
        whole = await backend.generate(Request(ASKED[:1], tools=(CLOCK,)))
        async with backend.stream(Request(ASKED[:1], tools=(CLOCK,))) as reply:
            *pieces, last = [item async for item in reply]
    assert last == whole
    assert pieces == ["I look it up."]
    assert whole == Generation(
        "I look it up.",
        usage=whole.usage,
        model="m",
        finish_reason="tool_calls",
        tool_calls=TWO,
        reasoning="Let me see.",
    )


def read(*deltas: dict[str, Any]) -> tuple[ToolCall, ...]:
    reply = Reply(Meter().start())
    for delta in deltas:
        reply.read(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    reply.read(b"[DONE]")
    return reply.generation().tool_calls


@pytest.mark.parametrize(
    "pieces",
    [
        # All at once, as local servers have it.
        [[piece(0, "a", name="f", arguments='{"x": 1}'), piece(1, "b", name="g", arguments="{}")]],
        # One index for all.
        [
            [piece(0, "a", name="f", arguments='{"x": 1}')],
            [piece(0, "b", name="g", arguments="{}")],
        ],
        # No indices.
        [
            [piece(None, "a", name="f", arguments='{"x"')],
            [piece(None, arguments=": 1}")],
            [piece(None, "b", name="g", arguments="{}")],
        ],
        # The id and the name with each piece.
        [
            [piece(0, "a", name="f", arguments='{"x"')],
            [piece(0, "a", name="f", arguments=": 1}")],
            [piece(1, "b", name="g", arguments="{}")],
        ],
    ],
    ids=["whole", "one index", "no index", "repeated"],
)
def test_calls_are_told_apart_as_servers_write_them(pieces):
    assert read(*({"tool_calls": calls} for calls in pieces)) == TWO


def test_calls_without_ids_get_some_and_old_function_calls_are_calls():
    unnamed = read({"tool_calls": [piece(0, name="f"), piece(1, name="f")]})
    assert unnamed == (ToolCall("call_0", "f", ""), ToolCall("call_1", "f", ""))
    assert read({"tool_calls": [piece(None, name="f"), piece(None, name="f")]}) == unnamed
    old = read(
        {"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}
    )
    assert old == (ToolCall("call_0", "f", "{}"),)


async def test_a_call_of_nothing_is_malformed():
    events = (event({"tool_calls": [piece(0, "a", arguments="{}")]}), event({}, "tool_calls"))
    async with serving(Answer(events=events, finish_reason=None)) as (_, backend):
        with pytest.raises(MalformedResponse, match="no name"):
            await backend.generate(Request(ASKED[:1]))


@given(
    st.lists(st.tuples(st.sampled_from("fgh"), st.text(max_size=12)), min_size=1, max_size=3),
    st.data(),
)
def test_it_does_not_matter_how_calls_are_cut_nor_how_their_pieces_are_mixed(calls, data):
    begun = [[piece(n, f"id{n}", name=name)] for n, (name, _) in enumerate(calls)]
    queues = []
    for number, (_, arguments) in enumerate(calls):
        cut = data.draw(st.integers(0, len(arguments)))
        queues.append(
            [piece(number, arguments=arguments[:cut]), piece(number, arguments=arguments[cut:])]
        )
    order = data.draw(st.permutations([n for n in range(len(calls)) for _ in range(2)]))
    mixed = [[queues[number].pop(0)] for number in order]
    found = read(*({"tool_calls": pieces} for pieces in [*begun, *mixed]))
    assert found == tuple(
        ToolCall(f"id{n}", name, arguments) for n, (name, arguments) in enumerate(calls)
    )
