"""``/v1/responses``: its requests, responses and events, also with the official SDK."""

from __future__ import annotations

import json

import openai
import pytest
from gateway_kit import InTurn, calling
from open_responses import OPENAI_EVENT, RESPONSE
from openai.types.responses import Response
from pydantic import BaseModel

from mellea_like.backends.function import FunctionBackend
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, TokenLogprob, Usage
from mellea_like.core.parts import Image, Text
from mellea_like.core.tools import ToolCall
from mellea_like.gateway.chat.responses_request import read_response
from mellea_like.gateway.fields import DEFAULTS, FieldRules
from mellea_like.gateway.refusal import Refusal

pytestmark = pytest.mark.usefixtures("warm_checks")


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


def call(arguments: str = '{"city": "Rome"}', name: str = "weather") -> Generation:
    return Generation("", finish_reason="tool_calls", tool_calls=(ToolCall("c1", name, arguments),))


def test_a_response_has_the_reply_and_what_it_took(client, upstream):
    upstream.replies = [
        Generation("a b c", usage=Usage(1, 10, 3)),
        Generation("a b", usage=Usage(1, 10, 2, 0, 4, 1)),
    ]
    response = client.responses.create(
        model="mine", input="Hi.", instructions="Be brief.", metadata={"a": "b"}, store=True
    )
    Response.model_validate_json(response.model_dump_json(), strict=False)
    assert (response.output_text, response.status, response.error) == ("a b", "completed", None)
    usage = response.usage.model_dump()
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 5, 25)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"]["reasoning_tokens"] == 1
    assert (response.store, response.metadata, response.instructions) == (
        False,
        {"a": "b"},
        "Be brief.",
    )
    assert response.mellea_like["iterations"] == 2
    system, user = upstream.requests[0].messages
    assert (system, user.content.split("\n")[0]) == (Message("system", "Be brief."), "Hi.")


class City(BaseModel):
    city: str


def test_typed_output_is_checked_and_parsed(client, upstream):
    upstream.replies = ['{"town": "Rome"}', '{"city":"Rome"}']
    response = client.responses.parse(model="mine", input="Where?", text_format=City)
    assert response.output_parsed == City(city="Rome")
    assert response.mellea_like["iterations"] == 2
    assert response.text.format.name == "City"


def test_calls_of_tools_are_checked_and_a_conversation_goes_on_with_them(client, upstream):
    upstream.replies = [call('{"town": "Rome"}'), call(), "It rains."]
    asked = [{"role": "user", "content": "What is the weather in Rome?"}]
    first = client.responses.create(
        model="mine", input=asked, tools=[WEATHER], tool_choice="required"
    )
    Response.model_validate_json(first.model_dump_json())
    [made] = first.output
    assert (made.type, made.name, json.loads(made.arguments)) == (
        "function_call",
        "weather",
        {"city": "Rome"},
    )
    assert first.mellea_like["iterations"] == 2
    assert "'city' is a required property" in upstream.requests[1].messages[-1].content
    again = [
        *asked,
        *first.output,
        {"type": "function_call_output", "call_id": made.call_id, "output": "rain"},
    ]
    second = client.responses.create(model="mine", input=again, tools=[WEATHER])
    assert second.output_text == "It rains."
    _, called, answered = upstream.requests[-1].messages
    assert called.tool_calls == (ToolCall("c1", "weather", '{"city": "Rome"}'),)
    assert answered == Message("tool", "rain", tool_call_id="c1")


LOGPROBS = (TokenLogprob("a", -0.5, (("b", -1.0),)),)


@pytest.mark.parametrize(
    ("reply", "last"),
    [
        (Generation("a b", logprobs=LOGPROBS, reasoning="Hm."), "response.completed"),
        (Generation("", refusal="I can't.", finish_reason="refusal"), "response.completed"),
        (Generation("a", finish_reason="length"), "response.incomplete"),
        (call(), "response.completed"),
    ],
    ids=["text", "refusal", "cut off", "call"],
)
@pytest.mark.anyio
async def test_a_stream_has_the_apis_events_and_ends_with_the_same_response(reply, last):
    upstream = FunctionBackend(lambda _: reply, inline=True)
    body = {"model": "mine", "input": "Hi.", "tools": [WEATHER], "stream": True}
    async with calling(upstream, accept_incomplete=True) as caller:
        answer = await caller.ask("/v1/responses", body)
    frames = [frame for frame in answer.body.decode().split("\n\n") if frame]
    assert [frame.split("\n")[0].removeprefix("event: ") for frame in frames] == [
        event["type"] for event in answer.events
    ]
    assert [event["sequence_number"] for event in answer.events] == list(range(len(frames)))
    for event in answer.events:
        OPENAI_EVENT.validate_python(event)
    whole = answer.events[-1]["response"]
    assert answer.events[-1]["type"] == last
    assert [e["item"] for e in answer.events if e["type"].endswith("item.done")] == whole["output"]
    RESPONSE.model_validate(whole)
    if last == "response.incomplete":
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert (whole["status"], whole["completed_at"]) == ("incomplete", None)


def test_the_sdks_stream_helper_puts_it_together(client, upstream):
    upstream.replies = [call(), '{"city":"Rome"}']
    tool = openai.pydantic_function_tool(City, name="weather")["function"]
    tools = [{"type": "function", **tool}]
    with client.responses.stream(model="mine", input="Hi.", tools=tools) as stream:
        arguments = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        [made] = stream.get_final_response().output
    assert ("".join(arguments), made.parsed_arguments) == ('{"city": "Rome"}', {"city": "Rome"})
    with client.responses.stream(model="mine", input="Hi.", text_format=City) as stream:
        text = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_parsed == City(city="Rome")
    assert "".join(text) == '{"city":"Rome"}'


def test_what_fails_has_openais_errors(client, upstream):
    upstream.replies = ["a b c"]
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.responses.create(model="mine", input="Hi.")
    assert caught.value.body["mellea_like"]["best"]["content"] == "a b c"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="Hi.")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="mine", input="Hi.", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    assert "send the whole conversation" in str(refused.value)


# --- what is read -------------------------------------------------------------------------------


def says(*content: dict, role: str = "user") -> dict:
    return {"role": role, "content": list(content)}


def read(rules: FieldRules = DEFAULTS, **fields):
    return read_response({"model": "m", "input": "Hi.", **fields}, rules)


NAMESPACE = {"type": "namespace", "name": "n"}
MANY = [{"type": "custom", "name": f"t{number}"} for number in range(65)]
ALLOWED = {"type": "allowed_tools", "mode": "auto"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_items_become_messages():
    asked = read(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Be kind."},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See:"},
                    {"type": "input_image", "image_url": PIXEL, "detail": "low"},
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "H", "annotations": []},
                    {"type": "refusal", "refusal": "m."},
                ],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
            {
                "type": "function_call_output",
                "call_id": "2",
                "output": [{"type": "input_text", "text": "y"}],
            },
        ],
    ).conversation
    pixel = bytes.fromhex("89504e470d0a1a0a")
    assert asked == (
        Message("system", "Be brief."),
        Message("system", "Be kind."),
        Message("user", (Text("See:"), Image(data=pixel, media_type="image/png", detail="low"))),
        Message("assistant", "Hm.", None, (ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}"))),
        Message("tool", "x", tool_call_id="1"),
        Message("tool", "y", tool_call_id="2"),
    )


def test_nothing_comes_between_calls_and_their_results():
    def text(said):
        return {"role": "assistant", "content": said}

    def called(name):
        return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}

    results = [
        {"type": "function_call_output", "call_id": name, "output": name} for name in ("1", "2")
    ]
    asked = read(
        input=[
            {"role": "user", "content": "Go."},
            *(called("1"), text("First."), called("2"), text("Then."), *results),
        ]
    ).conversation
    assert asked == (
        Message("user", "Go."),
        Message("assistant", "First."),
        Message("assistant", "Then.", None, (ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))),
        Message("tool", "1", tool_call_id="1"),
        Message("tool", "2", tool_call_id="2"),
    )


def test_fields_become_those_of_chat_completions():
    named = {"type": "function", "name": "weather"}
    chat = read(
        max_output_tokens=7,
        tools=[WEATHER],
        tool_choice={"type": "allowed_tools", "mode": "required", "tools": [named]},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "x", "schema": {}}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        prompt_cache_key="k",
        stream=True,
        mellea_like={"attempts": 2},
    )
    assert (chat.max_completion_tokens, chat.stream, chat.mellea_like.attempts) == (7, True, 2)
    assert (chat.wanted_call, chat.parallel_tool_calls) == ("required", False)
    function = {"name": "weather", "parameters": PARAMETERS, "strict": True}
    assert [tool.sent for tool in chat.functions] == [{"type": "function", "function": function}]
    assert chat.format == {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert chat.passed_on == {
        "reasoning_effort": "low",
        "logprobs": True,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "verbosity": "low",
    }


def test_any_json_may_be_asked_for():
    assert read(text={"format": {"type": "json_object"}}).format == {"type": "json_object"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": "Once"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input.0"),
        ({"input": [says({"type": "text", "text": "x"})]}, "input.0.content.0"),
        ({"input": [says(*["not a part"] * 2001)]}, "input.0.content"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [None] * 2001}]},
            "input.0.output",
        ),
        (
            {"input": [says({"type": "input_image", "image_url": "http://a/b"})]},
            "input.0.content.0.image_url",
        ),
        ({"input": [says({"type": "input_file", "file_data": "?"})]}, "input.0.content.0"),
        (
            {"input": [says({"type": "input_file", "file_url": "http://a/b"})]},
            "input.0.content.0.file_url",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "auto"}]}, "tools.0.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"include": ["web_search_call.results"]}, "include.0"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"tools": [{**NAMESPACE, "tools": [{"type": "mcp"}]}]}, "tools.0.tools.0"),
        ({"tools": [{"type": "custom"}]}, "tools.0.name"),
        ({"tools": [{**NAMESPACE, "name": name, "tools": MANY} for name in "ab"]}, "tools"),
        ({"tools": [{**NAMESPACE, "tools": MANY * 2}]}, "tools.0.tools"),
        ({"tools": [WEATHER], "tool_choice": {**ALLOWED, "tools": MANY * 2}}, "tool_choice.tools"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input.0"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named_as_it_was_sent(fields, param):
    with pytest.raises(Refusal) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(f"{param}: ")


def test_fields_that_are_unknown_are_left_out_unless_they_are_to_be_refused():
    part = {"type": "input_text", "text": "x", "a": {"b": 1}}
    asked = {
        "inptu": "x",
        "client_metadata": {"installation_id": "i"},
        "tools": [{**WEATHER, "output_schema": {}, "defer_loading": True}],
        "input": [{"role": "user", "content": [part]}],
    }
    [tool] = read(tools=[WEATHER]).functions
    for said in ("forward", "drop"):
        chat = read(FieldRules(unknown=said), **asked)
        assert chat.passed_on == {}
        assert [each.sent for each in chat.functions] == [tool.sent]
    assert read(FieldRules(named={"top_k": "forward"}), top_k=5).passed_on == {"top_k": 5}
    for name in ("inptu", "client_metadata"):
        with pytest.raises(Refusal) as caught:
            read(FieldRules("refuse"), **{name: asked[name]})
        assert (caught.value.status, caught.value.param) == (400, name)


def test_fields_that_the_model_drops_ask_for_no_logprobs():
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    chat = read(FieldRules(named=dict.fromkeys(asked, "drop")), **asked)
    assert (chat.logprobs, chat.passed_on) == (False, {})


STRICT = FieldRules("refuse")
NAMED = {"type": "function", "name": "weather"}
ODD = {"odd": 1}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user", "content": "x", **ODD}]}, "input.0.odd"),
        ({"input": [says({"type": "input_text", "text": "x", **ODD})]}, "input.0.content.0.odd"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "x", **ODD}]},
            "input.0.odd",
        ),
        ({"tools": [{**WEATHER, **ODD}]}, "tools.0.odd"),
        ({"tools": [{**NAMESPACE, "tools": [{**WEATHER, **ODD}]}]}, "tools.0.tools.0.odd"),
        ({"tools": [WEATHER], "tool_choice": {**NAMED, **ODD}}, "tool_choice.odd"),
        ({"text": ODD}, "text.odd"),
        ({"text": {"format": {"type": "text", **ODD}}}, "text.format.odd"),
        ({"reasoning": ODD}, "reasoning.odd"),
    ],
)
def test_unknown_fields_inside_objects_are_refused_only_if_they_are_to_be(fields, param):
    assert read(**fields).conversation
    with pytest.raises(Refusal) as caught:
        read(STRICT, **fields)
    assert (caught.value.param, caught.value.code) == (param, "unknown_parameter")


def test_agents_may_ask_for_summaries_even_if_unknown_fields_are_refused():
    asked = read(STRICT, reasoning={"effort": "low", "summary": "auto"})
    assert asked.passed_on == {"reasoning_effort": "low"}


def test_items_of_a_response_may_be_sent_back_even_if_unknown_fields_are_refused(client, upstream):
    upstream.replies = [
        Generation("a", logprobs=LOGPROBS, reasoning="Hm."),
        call(),
        '{"city":"Rome"}',
    ]
    said = [
        item
        for fields in ({}, {"tools": [WEATHER]}, {"text_format": City})
        for item in client.responses.parse(model="mine", input="Hi.", **fields).to_dict()["output"]
    ]
    kinds = ["reasoning", "message", "function_call", "message"]
    assert [item["type"] for item in said] == kinds
    hosted = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    rules = STRICT._replace(hosted_tools="drop")
    sent_back = [*said, hosted, {"role": "user", "content": "Hi."}]
    roles = [message.role for message in read(rules, input=sent_back).conversation]
    assert roles == ["assistant", "assistant", "user"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"tools": [{**WEATHER, "parameters": {"type": "nonsense"}}]}, "tools.0.parameters"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}},
            "text.format.schema",
        ),
    ],
)
async def test_what_the_model_refuses_is_named_as_it_was_sent(fields, param):
    async with calling(InTurn("a b"), server={"limits": {"max_tokens": 4096}}) as caller:
        answer = await caller.ask("/v1/responses", {"model": "mine", "input": "Hi.", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert answer.error["message"].startswith(f"{param}: ")
