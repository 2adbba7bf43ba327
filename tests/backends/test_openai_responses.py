"""OpenAIBackend with the Responses API; the SDK's own types check both directions."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import pytest
from gateway_kit import config_for, running
from http_server import Answer, OpenAIServer, response_parts, serving
from hypothesis import given
from hypothesis import strategies as st
from open_responses import OPENAI_EVENT
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import BaseModel, TypeAdapter

from mellea_like import Generation, Image, Message, OpenAIBackend, Request, Tool
from mellea_like.backends.openai_events import ServerError
from mellea_like.backends.openai_responses import Response
from mellea_like.core import Audio, File, Options, ToolCall, Usage
from mellea_like.core.generation import Meter, TokenLogprob
from mellea_like.errors import BackendUnavailable, InvalidRequest, MalformedResponse, RateLimited

pytestmark = pytest.mark.anyio


@functools.cache
def body_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseCreateParamsStreaming)


PNG = b"\x89PNG\r\n\x1a\n and more"
CLOCK = Tool("clock", "Tells the time.")


class Point(BaseModel):
    x: int


def ask(*messages: Message, **fields: Any) -> Request:
    return Request(messages or (Message("user", "Say something."),), **fields)


WHOLE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "m-1",
    "output": [],
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "status": "completed",
}
COUNTED = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 16,
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "status": "completed"}
TEXT = {"item_id": "i", "output_index": 0, "content_index": 0}
THOUGHT = {"item_id": "i", "output_index": 0}


def event(kind: str, **fields: Any) -> str:
    """An event that the SDK's types accept."""
    data = {"type": kind, "sequence_number": 1, **fields}
    OPENAI_EVENT.validate_python(data)
    return json.dumps(data)


def delta(text: str) -> str:
    return event("response.output_text.delta", **TEXT, delta=text, logprobs=[])


def ended(kind: str = "response.completed", **fields: Any) -> str:
    return event(kind, response={**WHOLE, **fields})


def responding(*events: str, **fields: Any) -> Any:
    answer = Answer(events=events, finish_reason=None, usage=None, done=False)
    return serving(answer, api="responses", **fields)


def test_the_test_servers_events_are_those_of_the_sdk():
    for data in itertools.chain(*response_parts("m", Answer("a b", usage=(3, 2)))):
        OPENAI_EVENT.validate_json(data)


async def test_what_is_asked_is_written_as_the_api_has_it():
    messages = (
        Message("system", "Be brief."),
        Message("user", ["Look:", Image(data=PNG), File(b"%PDF-1.7", filename="a.pdf")]),
        Message("assistant", "I see.", tool_calls=[ToolCall("a", "clock", "{}")], reasoning="hm"),
        Message("tool", "noon", tool_call_id="a"),
        Message("user", [Image("https://example.org/a.png", detail="low"), File(file_id="f1")]),
    )
    extra = {"store": True, "text": {"verbosity": "low"}}
    options = Options(temperature=0.5, top_p=0.9, max_tokens=20, seed=3, extra=extra)
    async with serving(api="responses") as (server, backend):
        asked = ask(*messages, options=options, tools=(CLOCK,), tool_choice="clock", format=Point)
        await backend.generate(asked)
        await backend.generate(ask(tools=(CLOCK,), tool_choice="none"))
    first, second = server.requests
    for body in server.requests:
        body_adapter().validate_python(body)
    system, user, assistant, call, output, last = first["input"]
    assert system == {"role": "system", "content": "Be brief."}
    assert [part["type"] for part in user["content"]] == [
        *["input_text", "input_image", "input_file"]
    ]
    assert user["content"][1]["image_url"].startswith("data:image/png;base64,")
    assert assistant == {"role": "assistant", "content": "I see."}
    assert call == {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"}
    assert output == {"type": "function_call_output", "call_id": "a", "output": "noon"}
    assert last["content"][0]["detail"] == "low"
    assert last["content"][1] == {"type": "input_file", "file_id": "f1"}
    assert first["tool_choice"] == {"type": "function", "name": "clock"}
    assert first["tools"][0]["name"] == "clock"
    closed = {**Point.model_json_schema(), "additionalProperties": False}
    assert first["text"]["format"]["schema"] == closed
    assert first["text"]["verbosity"] == "low"
    assert (first["temperature"], first["top_p"], first["max_output_tokens"]) == (0.5, 0.9, 20)
    assert first["store"] is True
    assert second["tool_choice"] == "none"
    assert second["store"] is False
    assert not {"seed", "stop", "n", "stream_options", "text"} & set(second)


@pytest.mark.parametrize("text", [{"format": {"type": "text"}}, ["unknown"]])
async def test_extra_overrides_the_format(text):
    async with serving(api="responses") as (server, backend):
        await backend.generate(ask(options=Options(extra={"text": text}), format=Point))
    assert server.requests[0]["text"] == text


async def test_what_the_api_does_not_have_is_refused_before_anything_is_sent():
    async with serving(api="responses") as (server, backend):
        with pytest.raises(InvalidRequest, match="no stop texts"):
            await backend.generate(ask(options=Options(stop="x")))
        with pytest.raises(InvalidRequest, match="doesn't support audio"):
            await backend.generate(ask(Message("user", [Audio(b"RIFF", "wav")])))
        with pytest.raises(InvalidRequest, match="one reply"):
            backend.stream_choices(ask(), 2)
    assert not server.requests
    with pytest.raises(ValueError, match="api must be 'chat' or 'responses'"):
        OpenAIBackend("m", api="assistants")  # type: ignore[arg-type]


ADDED = "response.output_item.added"
ARGUMENTS = "response.function_call_arguments.delta"


@pytest.mark.parametrize("again", [True, False], ids=["done", "pieces only"])
async def test_calls_text_and_reasoning_are_put_together(again):
    pieces = [
        event("response.created", response={**WHOLE, "status": "in_progress"}),
        event("response.reasoning_summary_text.delta", **THOUGHT, summary_index=0, delta="I look"),
        event("response.reasoning_summary_text.delta", **THOUGHT, summary_index=0, delta=" up."),
        event("response.reasoning_summary_text.delta", **THOUGHT, summary_index=1, delta="Now."),
        delta("Wait."),
        event(ADDED, output_index=2, item={**CALL, "arguments": ""}),
        event(ADDED, output_index=3, item={**CALL, "call_id": "b", "name": "g", "arguments": ""}),
        event(ARGUMENTS, item_id="fc_1", output_index=2, delta='{"x"'),
        event(ARGUMENTS, item_id="fc_2", output_index=3, delta="{}"),
        event(ARGUMENTS, item_id="fc_1", output_index=2, delta=": 1}"),
    ]
    if again:
        item = {**CALL, "arguments": '{"x": 1}'}
        pieces += [event("response.output_item.done", output_index=2, item=item)]
    async with responding(*pieces, ended(usage=COUNTED)) as (_, backend):
        whole = await backend.generate(ask(tools=(CLOCK,)))
    assert whole == Generation(
        "Wait.",
        None,
        Usage(1, 9, 7, 0, 4, 5),
        "m-1",
        "tool_calls",
        tool_calls=(ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}")),
        reasoning="I look up.\n\nNow.",
    )


@pytest.mark.parametrize("again", [True, False], ids=["done", "pieces only"])
async def test_what_the_output_tool_is_called_with_is_the_text(again):
    call = {**CALL, "name": "Point"}
    pieces = [event(ADDED, output_index=0, item={**call, "arguments": ""})]
    pieces += [
        event(ARGUMENTS, item_id="fc_1", output_index=0, delta=part) for part in ('{"x"', ": 1")
    ]
    if again:
        pieces += [
            event(
                "response.output_item.done", output_index=0, item={**call, "arguments": '{"x": 1}'}
            )
        ]
    else:
        pieces += [event(ARGUMENTS, item_id="fc_1", output_index=0, delta="}")]
    async with (
        responding(*pieces, ended(), output="tool") as (server, backend),
        backend.stream(ask(format=Point)) as reply,
    ):
        *texts, whole = [item async for item in reply]
    assert texts == ['{"x"', ": 1", "}"]
    assert (whole.text, whole.finish_reason, whole.tool_calls) == ('{"x": 1}', "stop", ())
    (body,) = server.requests
    body_adapter().validate_python(body)
    assert body["tool_choice"] == {"type": "function", "name": "Point"}
    assert body["tools"][0]["parameters"] == Point.model_json_schema()


async def test_typed_output_steps_down_where_the_server_refuses_it():
    def choose(number: int, body: dict[str, Any]) -> Answer:
        if body.get("text", {}).get("format", {}).get("type") == "json_schema":
            return Answer.error(400, "text.format of type json_schema is not supported")
        if body.get("tools"):
            return Answer.error(400, "tools are not supported")
        return Answer('{"x": 1}')

    async with serving(choose=choose, api="responses") as (server, backend):
        whole = await backend.generate(ask(format=Point))
    assert whole.text == '{"x": 1}'
    assert server.requests[-1]["text"] == {"format": {"type": "json_object"}}
    for body in server.requests:
        body_adapter().validate_python(body)


async def test_what_a_server_says_only_at_the_end_is_read_there():
    said = {"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
    output = [{**message, "content": [said]}, {**CALL, "arguments": "{}"}]
    async with responding(ended(output=output)) as (_, backend), backend.stream(ask()) as reply:
        piece, whole = [item async for item in reply]
    assert (piece, whole.text) == ("Wait.", "Wait.")
    assert whole.tool_calls == (ToolCall("a", "f", "{}"),)
    assert whole.usage.unknown == 1


async def test_a_call_that_comes_only_at_the_end_is_read_beside_one_that_came_before():
    first, second = {**CALL, "arguments": "{}"}, {**CALL, "call_id": "b", "arguments": "[]"}
    done = event("response.output_item.done", output_index=0, item=first)
    async with responding(done, ended(output=[first, second])) as (_, backend):
        whole = await backend.generate(ask())
    assert whole.tool_calls == (ToolCall("a", "f", "{}"), ToolCall("b", "f", "[]"))


async def test_a_server_without_the_api_is_told_apart_from_one_without_the_model():
    async with serving(Answer.error(404), api="responses") as (_, backend):
        with pytest.raises(InvalidRequest, match="may not have the Responses API: use api='chat'"):
            await backend.generate(ask())
    async with serving(Answer.error(404)) as (_, backend):
        with pytest.raises(InvalidRequest) as caught:
            await backend.generate(ask())
    assert "Responses" not in str(caught.value)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        (None, "length"),
    ],
)
async def test_why_a_response_is_incomplete_is_said_in_the_usual_words(details, reason):
    last = ended("response.incomplete", status="incomplete", incomplete_details=details)
    async with responding(delta("a"), last) as (_, backend):
        whole = await backend.generate(ask())
    assert (whole.text, whole.finish_reason) == ("a", reason)


async def test_a_refusal_is_a_reply():
    refusing = event("response.refusal.delta", **TEXT, delta="I can't.")
    async with responding(refusing, ended()) as (_, backend):
        whole = await backend.generate(ask())
    assert (whole.text, whole.refusal, whole.finish_reason) == ("I can't.", "I can't.", "refusal")


@pytest.fixture
def gateway():
    call = {"index": 0, "id": "a", "function": {"name": "clock", "arguments": "{}"}}
    choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    calling = json.dumps({"model": "m", "choices": [choice]})

    def choose(number: int, body: dict[str, Any]) -> Answer:
        if body.get("tools"):
            return Answer(events=(calling,), finish_reason=None)
        return Answer('{"x": 1}' if body.get("response_format") else "a b", usage=(9, 3))

    with OpenAIServer(choose=choose) as upstream, running(config_for(upstream.url)) as gateway:
        yield gateway


async def test_the_gateways_responses_are_read_too(gateway):
    backend = OpenAIBackend("mine", base_url=gateway.url, api="responses")
    said = await backend.generate(ask())
    called = await backend.generate(ask(tools=(CLOCK,)))
    typed = await backend.generate(ask(format=Point))
    await backend.aclose()
    assert said == Generation("a b", None, Usage(1, 9, 3), "mine", "stop")
    assert called.tool_calls == (ToolCall("a", "clock", "{}"),)
    assert typed.text == '{"x": 1}'


def failed(code: str, how: str = "failed") -> str:
    error = {"code": code, "message": "sorry"}
    return ended(f"response.{how}", status="failed", error=error)


@pytest.mark.parametrize(
    ("events", "error", "said"),
    [
        ([failed("server_error")], BackendUnavailable, "sorry"),
        ([failed("rate_limit_exceeded")], RateLimited, "sorry"),
        ([delta("a"), failed("server_error", "completed")], BackendUnavailable, "sorry"),
        ([failed("invalid_image_url")], InvalidRequest, "sorry"),
        ([event("error", code="x", message="oh", param=None)], BackendUnavailable, "oh"),
        ([delta("a")], MalformedResponse, "an incomplete reply"),
        ([], MalformedResponse, "without a reply.*use api='chat'"),
        (['{"choices": []}'], MalformedResponse, "isn't an event of a response.*use api='chat'"),
    ],
)
async def test_what_goes_wrong_within_a_response_is_told(events, error, said):
    async with responding(*events) as (_, backend):
        with pytest.raises(error, match=said):
            await backend.generate(ask())


KINDS = st.sampled_from(
    [
        *["response.created", "response.completed", "response.failed", "response.unheard.of"],
        *["response.output_text.delta", "response.output_item.done", "error", ARGUMENTS, ADDED],
    ]
)
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.just("function_call"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["type", "item", "delta", "response", "output", "usage", "name", "content", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["item", "delta", "response", "output_index", "logprobs", "error"]),
    VALUES,
    max_size=4,
)


@pytest.mark.parametrize("fields", [{}, {"status": "incomplete"}], ids=str)
def test_a_response_from_a_file_is_a_reply(fields):
    said = {"type": "message", "content": [{"type": "output_text", "text": "so"}]}
    reply = Response(Meter().start())
    reply.take_whole({**WHOLE, "output": [said], **fields})
    generation = reply.generation()
    assert (generation.text, generation.finish_reason) == ("so", "length" if fields else "stop")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"status": "failed", "error": {"code": "server_error", "message": "no luck"}}, "no luck"),
        ({"error": {"message": "no luck"}}, "no luck"),
        ({"status": "cancelled"}, "it is cancelled"),
    ],
    ids=str,
)
def test_one_that_failed_is_the_servers_error(fields, said):
    with pytest.raises(ServerError) as caught:
        Response(Meter().start()).take_whole({**WHOLE, **fields})
    assert caught.value.message == said


@pytest.mark.parametrize("whole", [{}, [], {"status": "completed", "output": 1}], ids=str)
def test_and_anything_else_is_no_response(whole):
    with pytest.raises(ValueError, match="it isn't a response"):
        Response(Meter().start()).take_whole(whole)


@given(st.lists(st.builds(lambda kind, fields: {**fields, "type": kind}, KINDS, FIELDS)))
def test_any_events_are_a_reply_or_an_error(events):
    reply = Response(Meter().start())
    text = ""
    try:
        for one in events:
            text += reply.read(json.dumps(one).encode())
    except (ValueError, ServerError):
        return
    assert reply.generation().text == text


def test_log_probabilities_that_are_null_are_left_out():
    reply = Response(Meter().start())
    known = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": None}]}
    unknown = {"token": "b", "logprob": None, "top_logprobs": []}
    said = {"type": "response.output_text.delta", "delta": "ab", "logprobs": [known, unknown]}
    assert reply.read(json.dumps(said).encode()) == "ab"
    assert reply.generation().logprobs == (TokenLogprob("a", -0.5, ()),)
