"""Tools, parts and log-probabilities with the official SDK; calls are checked before they come."""

from __future__ import annotations

import json
from dataclasses import replace

import openai
import pytest
from gateway_kit import InTurn, calling, user
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, TokenLogprob
from mellea_like.core.parts import Image, Text
from mellea_like.core.tools import ToolCall
from mellea_like.gateway.chat.caller_checks import Workers


class Weather(BaseModel):
    """The weather of today."""

    city: str


TOOL = openai.pydantic_function_tool(Weather, name="weather")
CLOCK = {"type": "function", "function": {"name": "clock"}}
FORECAST = {
    "type": "function",
    "function": {"name": "forecast", "parameters": {"properties": {"regions": {}, "days": {}}}},
}
ROME = '{"city": "Rome"}'


def calls(*arguments: str, name: str = "weather", **more) -> Generation:
    made = [ToolCall(f"c{n}", name, text) for n, text in enumerate(arguments)]
    return Generation("", finish_reason="tool_calls", tool_calls=tuple(made), **more)


WRONG = {
    "no such tool": (calls(ROME, name="wether"), {}, "there is no tool wether"),
    "no JSON": (calls("{"), {}, "the call of weather can't be made"),
    "no object": (calls("[]"), {}, "its arguments aren't a JSON object"),
    "not of the schema": (calls('{"city": 7}'), {}, "the call of weather: at $.city: 7 is not"),
    "a field too many": (
        calls('{"city": "a", "town": "b"}'),
        {},
        "the call of weather: there is no argument town: it takes city",
    ),
    "a field misspelt": (
        calls('{"region": "a"}', name="forecast"),
        {},
        "the call of forecast: there is no argument region (did you mean regions?): it takes",
    ),
    "an argument of none": (
        calls('{"zone": "a"}', name="clock"),
        {},
        "the call of clock: there is no argument zone: it takes none",
    ),
    "no call": ("a b", {"tool_choice": "required"}, "calls no tool"),
    "a call": (calls(ROME), {"tool_choice": "none"}, "answer with text"),
    "another tool": (calls("{}", name="clock"), {"tool_choice": TOOL}, "does not call weather"),
    "several": (calls(ROME, ROME), {"parallel_tool_calls": False}, "2 calls at a time"),
}


@pytest.mark.parametrize(("wrong", "asked", "said"), WRONG.values(), ids=WRONG)
def test_a_call_that_is_wrong_is_a_failed_draw_whose_repair_says_why(
    client, upstream, wrong, asked, said
):
    good = "a b" if asked == {"tool_choice": "none"} else calls(ROME)
    upstream.replies = [wrong, good]
    if asked.get("tool_choice") is TOOL:
        asked = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    reply = client.chat.completions.create(
        model="mine", messages=user(), tools=[TOOL, CLOCK, FORECAST], **asked
    )
    assert reply.model_extra["mellea_like"]["iterations"] == 2
    assert said in upstream.requests[1].messages[-1].content
    assert bool(reply.choices[0].message.tool_calls) is (good != "a b")


def test_a_reply_with_calls_has_openais_shape_and_need_not_be_a_text_that_passes(client, upstream):
    upstream.replies = [calls(ROME, '{"city": "Oslo"}')]
    reply = client.chat.completions.create(model="mine", messages=user(), tools=[TOOL])
    ChatCompletion.model_validate_json(reply.model_dump_json())
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.refusal) == (None, None)
    assert [(c.id, c.type, c.function.name) for c in choice.message.tool_calls] == [
        ("c0", "function", "weather"),
        ("c1", "function", "weather"),
    ]
    assert json.loads(choice.message.tool_calls[1].function.arguments) == {"city": "Oslo"}
    [tool] = upstream.requests[0].tools
    # The tool still has the fields that only OpenAI's servers read.
    assert (tool.as_dict(), tool.name) == (TOOL, "weather")
    upstream.replies = ["a b c", "a b"]
    reply = client.chat.completions.create(model="mine", messages=user(), tools=[TOOL])
    assert reply.choices[0].message.content == "a b"


def test_the_sdk_parses_calls_whole_and_streamed(client, upstream):
    upstream.replies = [calls(ROME, reasoning="Hm.")]
    asked = {"model": "mine", "messages": user(), "tools": [TOOL]}
    parsed = client.chat.completions.parse(**asked).choices[0].message
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds
    for message in (parsed, streamed.message):
        [call] = message.tool_calls
        assert (call.function.parsed_arguments, call.id) == (Weather(city="Rome"), "c0")
        assert message.model_extra["reasoning_content"] == "Hm."
    assert streamed.finish_reason == "tool_calls"
    for chunk in client.chat.completions.create(**asked, stream=True):
        ChatCompletionChunk.model_validate_json(chunk.model_dump_json())


@pytest.mark.anyio
async def test_a_conversation_goes_on_below_what_must_hold(scenery, upstream):
    upstream.replies = [calls(ROME), "a b"]
    async with scenery[1].async_client() as client:
        ask = client.chat.completions.create
        talk = user("And the weather?")
        first = (await ask(model="mine", messages=talk, tools=[TOOL])).choices[0].message
        answer = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
        talk = [*talk, first, answer]
        last = await ask(model="mine", messages=talk, tools=[TOOL])
    assert last.choices[0].message.content == "a b"
    before, (asked, called, answered) = (request.messages for request in upstream.requests)
    assert asked == before[-1]
    assert asked.content.startswith("And the weather?\n\nRequirements:\n")
    assert called == Message("assistant", "", tool_calls=(ToolCall("c0", "weather", ROME),))
    assert answered == Message("tool", "rain", tool_call_id="c0")


def test_parts_go_to_the_upstream_as_they_are(client, upstream):
    upstream.replies = ["a b"]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    parts = [{"type": "text", "text": "What is it?"}, image]
    client.chat.completions.create(model="mine", messages=user(parts))
    content = upstream.requests[0].messages[-1].content
    picture = Image(data=bytes.fromhex("89504e470d0a1a0a"), media_type="image/png")
    assert content[:2] == (Text("What is it?"), picture)
    assert content[2].text == "\n\nRequirements:\n- has at most 2 words"


@pytest.mark.anyio
async def test_where_no_text_must_hold_a_text_that_was_cut_off_is_a_reply_and_a_call_is_none():
    upstream = InTurn(Generation("a", finish_reason="length"))
    async with calling(upstream, attempts=1) as caller:
        text = await caller.chat(tools=[TOOL])
        upstream.replies = [replace(calls('{"city": "Ro'), finish_reason="length")]
        call = await caller.chat(tools=[TOOL])
    assert (text.status, text.json["choices"][0]["finish_reason"]) == (200, "length")
    assert (call.status, call.error["mellea_like"]["best"]["finish_reason"]) == (422, "length")


@pytest.mark.anyio
async def test_a_format_is_for_texts():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    upstream = InTurn(calls(ROME), '{"n": "a"}', '{"n": 1}')
    async with calling(upstream) as caller:
        asked = {"tools": [TOOL], "response_format": format}
        called, said = [(await caller.chat(**asked)).json for _ in range(2)]
    assert called["choices"][0]["finish_reason"] == "tool_calls"
    assert said["choices"][0]["message"]["content"] == '{"n": 1}'
    assert said["mellea_like"]["iterations"] == 2


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_has_its_logprobs_and_its_refusal(stream):
    tokens = (TokenLogprob("a", -0.5, (("a", -0.5), ("b", -1.0))), TokenLogprob(" \u00e9", -0.1))
    said = Generation("a \u00e9", logprobs=tokens)
    upstream = InTurn(said, replace(said, text="", refusal="I can't.", finish_reason="refusal"))
    async with calling(upstream, accept_incomplete=True) as caller:
        given = {"logprobs": True, "top_logprobs": 2, "stream": stream}
        told, refused = [await caller.chat(**given) for _ in range(2)]
    if stream:
        [chunk] = [e for e in told.events[:-1] if e["choices"][0]["delta"].get("content")]
        choice = chunk["choices"][0]
        deltas = [e["choices"][0]["delta"] for e in refused.events[:-1]]
        assert {"refusal": "I can't."} in deltas
    else:
        choice = told.json["choices"][0]
        message = refused.json["choices"][0]["message"]
        assert message == {"role": "assistant", "content": None, "refusal": "I can't."}
    first, second = choice["logprobs"]["content"]
    assert (first["token"], first["bytes"], first["logprob"]) == ("a", [97], -0.5)
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "b"]
    assert second["bytes"] == [32, 195, 169]
    extra = upstream.requests[0].options.extra
    assert (extra["logprobs"], extra["top_logprobs"]) == (True, 2)


@pytest.mark.anyio
async def test_schemas_of_tools_are_tried_once_and_not_in_this_process(monkeypatch):
    asked = []
    ask = Workers.ask

    async def counted(self, question):
        asked.append(question["text"])
        return await ask(self, question)

    monkeypatch.setattr(Workers, "ask", counted)
    upstream = InTurn(calls('{"a": "b"}', name="slow"))
    slow = {"type": "object", "properties": {"a": {"pattern": "^(?:a|aa)+$"}}}
    tool = {"type": "function", "function": {"name": "slow", "parameters": slow}}
    wrong = {"type": "function", "function": {"name": "x", "parameters": {"type": "nonsense"}}}
    async with calling(upstream, attempts=1) as caller:
        refused = await caller.chat(tools=[tool, wrong])
        assert (refused.status, refused.error["param"]) == (400, "tools.1.function.parameters")
        assert upstream.requests == []
        assert [(await caller.chat(tools=[tool])).status for _ in range(2)] == [422, 422]
        assert asked == ["{}", "{}", '{"a": "b"}', '{"a": "b"}']
        upstream.replies = [calls(json.dumps({"a": "a" * 40 + "!"}), name="slow")]
        costly = await caller.chat(tools=[tool])
    assert (costly.status, costly.error["code"]) == (422, "checks_too_costly")
