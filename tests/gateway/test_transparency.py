"""A gateway passes on its upstream's and its caller's fields, and adds none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from gateway_kit import calling, config_for, running, serving, user
from http_server import Answer, OpenAIServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("warm_checks")]

SENT_ALWAYS = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields that let the gateway cancel a request and count its tokens."""

CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "clock"}}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "9:00"}
CACHED = {"cache_control": {"type": "ephemeral"}}
THOUGHT = [{"type": "reasoning.text", "text": "Hm.", "index": 0, "format": "anthropic-claude-v1"}]


def said(content: object = "a", **more: Any) -> dict[str, Any]:
    """Make a reply as clients send it back."""
    return {"role": "assistant", "content": content, **more}


NOTHING = {"tool_calls": None, "function_call": None, "annotations": [], "audio": None}
OF_LITELLM = {"refusal": None, "reasoning": {}}
SIGNED_CALL = {**CALL, "extra_content": {"google": {"thought_signature": "s"}}}
DEEP_CALL = {**CALL, "function": {**CALL["function"], "provider_id": "p"}}
DEEP_TOOL = {**TOOL, **CACHED, "function": {**TOOL["function"], "defer": True}}
PARSED_CALL = {**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {"a": 1}}}
TOOLS = {"tools": [TOOL]}

SENT_BACK = {
    "litellm": (said(**NOTHING, provider_specific_fields=OF_LITELLM), said(), {}),
    "citations": (said(annotations=[{"url": "x"}]), None, {}),
    "openrouter": (said(reasoning="Hm.", reasoning_details=THOUGHT), None, {}),
    "anthropic": (said(thinking_blocks=[{"signature": "s"}]), None, {}),
    "gemini": (said(None, tool_calls=[SIGNED_CALL]), None, TOOLS),
    "deep": (said(None, tool_calls=[DEEP_CALL]), None, {"tools": [DEEP_TOOL]}),
    "openai, parsed": (said('{"a": 1}', refusal=None, parsed={"a": 1}), said('{"a": 1}'), {}),
    "openai, parsed calls": (
        said(None, tool_calls=[PARSED_CALL]),
        said(None, tool_calls=[CALL]),
        TOOLS,
    ),
    "instructor": (said([], tool_calls=[CALL]), said(None, tool_calls=[CALL]), TOOLS),
    "cached": (said([{"type": "text", "text": "a", **CACHED}], **CACHED), None, {}),
}


@pytest.mark.parametrize(("reply", "sent", "more"), SENT_BACK.values(), ids=SENT_BACK)
async def test_a_reply_that_is_sent_back_goes_to_the_upstream_as_it_is(reply, sent, more):
    answered = [ANSWERED] if reply.get("tool_calls") else []
    talk = [*user(), reply, *answered, *user("And now?")]
    async with serving(Answer("a b")) as (caller, upstream):
        answer = await caller.chat(messages=talk, **more)
    assert answer.status == 200, answer.body
    body = upstream.requests[0]
    assert body["messages"][1] == (sent or reply)
    assert body.get("tools") == more.get("tools")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

MARKED_PART = {"type": "text", "text": "a", "x": 1}
MARKED_IMAGE = {**IMAGE, "image_url": {**IMAGE["image_url"], "x": 1}}
MARKED_CALL = [*user(), said(None, tool_calls=[{**CALL, "x": 1}]), ANSWERED]
MARKED_FUNCTION = {"type": "function", "function": {"name": "f", "x": 1}}

PLACES = {
    "top level": ({"x": 1}, "x"),
    "message": ({"messages": [{**user()[0], "x": 1}]}, "messages.0.x"),
    "part": ({"messages": user([MARKED_PART])}, "messages.0.content.0.x"),
    "inside a part": ({"messages": user([MARKED_IMAGE])}, "messages.0.content.0.image_url.x"),
    "call": ({"messages": MARKED_CALL}, "messages.1.tool_calls.0.x"),
    "tool": ({"tools": [{**TOOL, "x": 1}]}, "tools.0.x"),
    "function": ({"tools": [MARKED_FUNCTION]}, None),
    "format": ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
}


@pytest.mark.parametrize("use", ["forward", "drop", "refuse", None])
@pytest.mark.parametrize(("fields", "param"), PLACES.values(), ids=PLACES)
async def test_one_policy_holds_for_unknown_fields_at_every_depth(fields, param, use):
    async with serving(Answer("{}"), overrides={"unknown_fields": use}) as (caller, upstream):
        answer = await caller.chat(**fields)
        plain = await caller.chat(**json.loads(json.dumps(fields).replace(', "x": 1', "")))
    if use == "refuse":
        assert (answer.status, answer.error["code"]) == (400, "unknown_parameter")
        assert answer.error["param"] == (param or "tools.0.function.x")
        return
    assert (answer.status, plain.status) == (200, 200)
    body = json.dumps(upstream.requests[0])
    assert body.count('"x": 1') == (use != "drop")


@pytest.mark.parametrize(("fields", "param"), PLACES.values(), ids=PLACES)
async def test_with_an_upstream_of_another_protocol_only_a_field_of_its_own_is_refused(
    fields, param
):
    async with calling(upstream={"kind": "markov"}) as caller:
        answer = await caller.chat(mellea_like={"when_nothing_passed": "best"}, **fields)
    if param == "x":
        assert (answer.status, answer.error["param"]) == (400, "x")
    else:
        assert answer.error["code"] != "unknown_parameter" if answer.status != 200 else True


SECOND = {"type": "text", "text": "a", "image_url": {"url": "http://10.0.0.1"}}
THEIRS = {**IMAGE, "uuid": "theirs"}
CALLED = [said("", function_call=CALL), *user()]

DECIDED = {
    "a hosted tool": ({"tools": [{**TOOL, "googleSearch": {"a": 1}}]}, "tools.0.googleSearch"),
    "a second picture": ({"messages": user([SECOND])}, "messages.0.content.0.image_url"),
    "another caller's picture": ({"messages": user([THEIRS])}, "messages.0.content.0.uuid"),
    "a call of old": ({"messages": CALLED}, "messages.0.function_call"),
    "a format by another name": ({"guided_json": {"type": "object"}}, "guided_json"),
    "a search": ({"web_search_options": {}}, "web_search_options"),
    "an address": ({"api_base": "http://10.0.0.1"}, "api_base"),
}


@pytest.mark.parametrize(("fields", "param"), DECIDED.values(), ids=DECIDED)
async def test_a_field_by_which_a_caller_would_decide_what_the_gateway_does_is_refused(
    fields, param
):
    async with serving(overrides={"unknown_fields": "forward"}) as (caller, upstream):
        answer = await caller.chat(**fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert upstream.requests == []


async def test_another_name_of_a_format_goes_on_where_the_configuration_says_so():
    with OpenAIServer(Answer("a b")) as upstream:
        fields = {"guided_regex": "forward"}
        async with calling(url=upstream.url, overrides={"fields": fields}) as caller:
            assert (await caller.chat(guided_regex="[ab ]+")).status == 200
    assert upstream.requests[0]["guided_regex"] == "[ab ]+"


# --- how long a reply may be ---------------------------------------------------------------------


async def test_nothing_is_sent_that_neither_the_caller_nor_the_configuration_asked_for():
    async with serving(Answer("a b")) as (caller, upstream):
        await caller.chat("Hi.")
        await caller.chat("Hi.", max_completion_tokens=8000)
    plain, asked = upstream.requests
    assert plain == {"model": "m", "messages": user("Hi."), **SENT_ALWAYS}
    assert asked == {**plain, "max_tokens": 8000}


@pytest.mark.parametrize(
    ("limits", "model"),
    [
        ({"budget": {"output_tokens": 100}}, {}),
        ({}, {"budget": {"output_tokens": 100}}),
        ({"budget": {"money": 1}}, {}),
    ],
    ids=["a key's", "a model's", "money"],
)
def test_a_budget_that_needs_to_know_how_long_a_reply_may_get_says_so_at_the_start(limits, model):
    def read(limits: dict[str, Any], **more: Any) -> None:
        upstream = {"price": [1, 2]}
        config_for("http://127.0.0.1:9", upstream=upstream, server={"limits": limits}, **more)

    with pytest.raises(ValueError, match=r"budget\.\w+: .* write max_tokens: 4096 for each key"):
        read(limits, **model)
    read({**limits, "max_tokens": 100}, **model)
    read(limits, options={"max_tokens": 100}, **model)


# --- what comes back ----------------------------------------------------------------------------


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
    frame = {"id": "upstreams-own", "model": "m", "system_fingerprint": "fp_1", "obfuscation": "z"}
    return {**frame, "service_tier": "default", "choices": [choice]}


SIGNED = {"google": {"thought_signature": "c2ln"}}
DETAILS = {"cached_tokens": 0, "audio_tokens": 3}

CHUNKS = [
    chunk({"role": "assistant", "content": "", "reasoning": "Let me "}),
    chunk({"reasoning": "see.", "reasoning_details": [{**THOUGHT[0], "text": "Let me "}]}),
    chunk({"reasoning_details": [{**THOUGHT[0], "text": "see."}]}),
    chunk({"content": "a", "annotations": [{"type": "url_citation", "title": "T"}]}),
    chunk({"content": " b", "annotations": [{"type": "url_citation", "title": "U"}]}),
    chunk({"tool_calls": [{"index": 0, **CALL, "extra_content": SIGNED}]}, token_ids=[1, 2]),
    chunk({}, "tool_calls", token_ids=[3], content_filter_results={"hate": {"filtered": False}}),
    {
        **chunk({}),
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 4,
            "total_tokens": 11,
            "prompt_tokens_details": DETAILS,
            "cost": 0.25,
        },
        "kv_transfer_params": {"remote_host": "10.0.0.1"},
    },
]

EVENTS = Answer(events=(*map(json.dumps, CHUNKS),), finish_reason=None, usage=None)

MESSAGE = {
    "reasoning": "Let me see.",
    "reasoning_details": [{**THOUGHT[0], "text": "Let me see."}],
    "annotations": [{"type": "url_citation", "title": "T"}, {"type": "url_citation", "title": "U"}],
}
ENDED = {"token_ids": [1, 2, 3], "content_filter_results": {"hate": {"filtered": False}}}
TURN = {"model": "mine", "messages": user(), "tools": [TOOL]}


@pytest.fixture(scope="module")
def gateway():
    with OpenAIServer(EVENTS) as upstream, running(config_for(upstream.url)) as gateway:
        yield gateway, upstream


def shown(completion: Any) -> None:
    """Check the upstream's fields that the gateway only passes on."""
    reply = completion.to_dict()
    assert (reply["system_fingerprint"], reply["service_tier"]) == ("fp_1", "default")
    assert reply["id"].startswith("chatcmpl-")
    assert reply.keys().isdisjoint({"obfuscation", "kv_transfer_params"})
    [choice] = reply["choices"]
    message = choice["message"]
    assert message["reasoning_details"] == MESSAGE["reasoning_details"]
    assert message["reasoning"] == MESSAGE["reasoning"]
    assert [one["title"] for one in message["annotations"]] == ["T", "U"]
    [call] = message["tool_calls"]
    assert (call["id"], call["extra_content"]) == ("c1", SIGNED)
    assert reply["usage"]["cost"] == 0.25
    details = reply["usage"]["prompt_tokens_details"]
    assert {name: details[name] for name in DETAILS} == DETAILS


def test_further_fields_of_a_reply_come_back(gateway):
    with gateway[0].client() as client:
        reply = client.chat.completions.create(**TURN)
    shown(reply)
    assert reply.choices[0].model_extra.items() >= ENDED.items()


def test_further_fields_of_a_streamed_reply_come_back(gateway):
    with (
        gateway[0].client() as client,
        client.chat.completions.stream(**TURN, stream_options={"include_usage": True}) as stream,
    ):
        # The SDK shows a choice's further fields only in its chunks.
        ends = [
            event.chunk.choices[0]
            for event in stream
            if event.type == "chunk" and event.chunk.choices
        ]
        shown(stream.get_final_completion())
    assert ends[-1].model_extra.items() >= ENDED.items()


def test_a_second_turn_gives_the_upstream_back_its_own_fields(gateway):
    running_gateway, upstream = gateway
    with running_gateway.client() as client:
        reply = client.chat.completions.create(**TURN).choices[0].message
        talk = [*user(), reply, ANSWERED]
        client.chat.completions.create(**{**TURN, "messages": talk})
    sent = upstream.requests[-1]["messages"][1]
    calls = [{**CALL, "extra_content": SIGNED}]
    assert sent == {"role": "assistant", "content": "a b", "tool_calls": calls, **MESSAGE}


@pytest.mark.parametrize("stream", [False, True])
async def test_numbers_that_json_lacks_do_not_come_back(stream):
    token = {"token": "a", "logprob": -math.inf, "top_logprobs": []}
    said = chunk({"content": "a"}, "stop", logprobs={"content": [token]}, score=math.nan)
    answer = Answer(events=(json.dumps(said),), finish_reason=None, usage=None)
    async with serving(answer) as (caller, _):
        answered = await caller.chat(logprobs=True, stream=stream)
    assert answered.status == 200
    for name in (b"NaN", b"Infinity"):
        assert name not in answered.body
    assert b'"score":null' in answered.body
    assert b'"logprob":-9999.0' in answered.body


@pytest.mark.parametrize("use", ["drop", "refuse"])
async def test_what_would_not_go_forward_does_not_come_back(use):
    async with serving(EVENTS, overrides={"unknown_fields": use}) as (caller, _):
        body = (await caller.chat(tools=[TOOL])).body
    for name in ("annotations", "extra_content", "token_ids", "system_fingerprint", "audio_tokens"):
        assert name not in body.decode()


async def test_nothing_of_the_chat_protocol_comes_through_in_a_response():
    async with serving(EVENTS) as (caller, _):
        tool = {"type": "function", "name": "clock"}
        given = {"model": "mine", "input": "Hi.", "tools": [tool]}
        answer = await caller.ask("/v1/responses", given)
    assert answer.status == 200
    for name in ("reasoning_details", "extra_content", "token_ids", "system_fingerprint"):
        assert name not in answer.body.decode()


async def test_details_of_a_usage_are_those_of_one_request():
    async with serving(EVENTS, checks=["words<=1"], attempts=2) as (caller, _):
        best = {"when_nothing_passed": "best"}
        reply = (await caller.chat(mellea_like=best)).json
    assert reply["usage"] == {"prompt_tokens": 14, "completion_tokens": 8, "total_tokens": 22}


async def test_a_judges_schema_is_closed_where_it_is_strict():
    scored = json.dumps({"reason": "so", "score": 9})
    with OpenAIServer(Answer("a"), Answer("b"), Answer(scored)) as upstream:
        chosen = {"select": "best:judge:Kind?", "n": 2, "attempts": 2}
        async with calling(url=upstream.url, **chosen) as caller:
            assert (await caller.chat()).status == 200
    formats = [body["response_format"] for body in upstream.requests if "response_format" in body]
    assert formats
    for described in (format["json_schema"] for format in formats):
        assert described["strict"] is True
        assert described["schema"]["additionalProperties"] is False
