"""A chat request is read strictly: what the gateway would not do, it refuses, and names."""

from __future__ import annotations

import pytest

from mellea_like.core.conversation import Message
from mellea_like.gateway.chat.request import read_chat
from mellea_like.gateway.refusal import Refusal

USER = [{"role": "user", "content": "Hi."}]


def read(pass_on: tuple[str, ...] = (), **fields):
    return read_chat({"model": "m", "messages": USER, **fields}, pass_on)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": 2.0}, "temperature", 2.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"max_completion_tokens": 7}, "max_completion_tokens", 7),
        ({"max_tokens": 7, "max_completion_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": None}, "max_tokens", None),
        ({"stop": "END"}, "stop", ["END"]),
        ({"stop": ["a", "\n"]}, "stop", ["a", "\n"]),
        ({"seed": -3}, "seed", -3),
        ({"n": 3}, "n", 3),
        ({"n": None}, "n", 1),
        ({"stream": True}, "stream", True),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, "stream", True),
        ({"response_format": {"type": "text"}}, "format", None),
        ({"presence_penalty": 1}, "passed_on", {"presence_penalty": 1.0}),
    ],
)
def test_a_field_is_read(fields, name, value):
    assert getattr(read(**fields), name) == value


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u-17"},
        {"metadata": {"a": "b"}},
        {"safety_identifier": "x", "prompt_cache_key": "y"},
        {"tools": None, "functions": [], "logit_bias": {}},
        {"logprobs": False, "top_logprobs": 0},
        {"tool_choice": "none", "parallel_tool_calls": True},
        {"store": False, "service_tier": "auto", "modalities": ["text"]},
        {"nonsense": None},
    ],
)
def test_what_asks_for_nothing_is_let_be(fields):
    assert read(**fields) == read()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": " "}, "model"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop.0"),
        ({"seed": 2**63}, "seed"),
        ({"n": 0}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}, "more": 1},
                }
            },
            "response_format.json_schema.more",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"store": True}, "store"),
        ({"top_k": 20}, "top_k"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"mellea_like": []}, "mellea_like"),
        ({"mellea_like": {"lop": 3}}, "mellea_like.lop"),
        ({"mellea_like": {"loop": 0}}, "mellea_like.loop"),
        ({"mellea_like": {"checks": ["x"] * 101}}, "mellea_like.checks"),
        ({"mellea_like": {"requirements": [""]}}, "mellea_like.requirements.0"),
        ({"mellea_like": {"when_nothing_passed": "x"}}, "mellea_like.when_nothing_passed"),
        ({"mellea_like": {"upstream": "x"}}, "mellea_like.upstream"),
    ],
)
def test_a_field_that_is_wrong_or_not_supported_is_named(fields, param):
    with pytest.raises(Refusal) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([USER[0]] * 2001, "messages"),
        (["Hi."], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "robot", "content": "x"}], "messages.0.role"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}],
            "messages.0.content.0.y",
        ),
        (
            [
                *USER,
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}},
                    ],
                },
            ],
            "messages.1.content.1",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "messages.0.content.0"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, *USER],
            "messages.0.tool_calls",
        ),
        ([*USER, {"role": "assistant", "content": "Once upon"}], "messages.1.role"),
    ],
)
def test_a_message_that_is_wrong_is_named(messages, param):
    with pytest.raises(Refusal) as caught:
        read(messages=messages)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_all_roles_and_parts_of_text_are_read():
    request = read(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "system", "content": ""},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": None, "refusal": "I can't."},
            {"role": "user", "content": "d"},
        ]
    )
    assert [(m.role, m.content) for m in request.conversation] == [
        ("system", "Be brief."),
        ("system", ""),
        ("user", "ab"),
        ("assistant", "c"),
        ("assistant", "I can't."),
        ("user", "d"),
    ]


def test_a_reply_can_be_sent_back_as_the_sdk_gives_it():
    given = {
        "role": "assistant",
        "content": "c",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert read(messages=[*USER, given, *USER]).conversation[1] == Message("assistant", "c")


def test_formats_are_kept_as_they_were_sent():
    described = {"name": "a", "schema": {"type": "array"}, "strict": True, "description": "d"}
    sent = {"type": "json_schema", "json_schema": described}
    request = read(response_format=sent)
    assert request.format is not None
    assert request.format.sent == sent
    any_object = read(response_format={"type": "json_object"}).format
    assert any_object is not None
    assert any_object.sent == {"type": "json_object"}


def test_fields_that_the_model_passes_on_are_passed_on():
    request = read(("top_k", "grammar"), top_k=20, presence_penalty=1)
    assert request.passed_on == {"top_k": 20, "presence_penalty": 1.0}
