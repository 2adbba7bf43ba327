"""Chat requests are read strictly: a field that the gateway can't honour is refused by name."""

from __future__ import annotations

import pytest

from mellea_like.core.conversation import Message
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.core.tools import ToolCall
from mellea_like.gateway.chat.request import read_chat
from mellea_like.gateway.chat.responses_request import read_response
from mellea_like.gateway.fields import FieldRules
from mellea_like.gateway.refusal import Refusal

REFUSE = FieldRules("refuse")
USER = [{"role": "user", "content": "Hi."}]
FIRST = "messages.0.content.0"
CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def image(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "clock")
]
CACHED = {"verbosity": "low", "prompt_cache_key": "k"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def schema(**described) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def choice(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


MANY_ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [choice("clock")] * 129},
}


def says(content: object, role: str = "user", **more) -> dict:
    return {"role": role, "content": content, **more}


def read(rules: FieldRules = REFUSE, **fields):
    return read_chat({"model": "m", "messages": USER, **fields}, rules)


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
        ({"logit_bias": {"50256": -100}}, "passed_on", {"logit_bias": {"50256": -100}}),
        (CACHED, "forwarded", CACHED),
        ({"logprobs": True, "top_logprobs": 3}, "passed_on", {"logprobs": True, "top_logprobs": 3}),
        ({"tools": TOOLS, "tool_choice": "required"}, "wanted_call", "required"),
        ({"tools": TOOLS, "tool_choice": choice("clock")}, "wanted_call", "clock"),
        ({"tools": TOOLS}, "wanted_call", None),
        ({"tool_choice": "none", "parallel_tool_calls": True}, "wanted_call", "none"),
    ],
)
def test_a_field_is_read(fields, name, value):
    assert getattr(read(**fields), name) == value


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u-17"},
        {"metadata": {"a": "b"}},
        {"safety_identifier": "x"},
        {"store": True},
        {"tools": None, "functions": [], "logit_bias": {}},
        {"logprobs": False, "top_logprobs": 0},
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
        (schema(schema={}), "response_format.json_schema.name"),
        (schema(name="x"), "response_format.json_schema.schema"),
        (schema(name="x", schema={}, more=1), "response_format.json_schema.more"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "auto"}}]}, "tools.0.function.name"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tools": TOOLS, "tool_choice": MANY_ALLOWED}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "weather"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": choice("x")}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"web_search_options": {"a": 1}}, "web_search_options"),
        ({"top_k": 20}, "top_k"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"mellea_like": []}, "mellea_like"),
        ({"mellea_like": {"lop": 3}}, "mellea_like.lop"),
        ({"mellea_like": {"attempts": 0}}, "mellea_like.attempts"),
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


def test_a_message_with_too_many_parts_is_refused_before_they_are_looked_at():
    part = {"type": "text", "text": "x"}
    assert read(messages=[says([part] * 2000)]).conversation[0].text == "x" * 2000
    with pytest.raises(Refusal) as caught:
        read(messages=[*USER, says(["not a part"] * 2001)])
    what = "there are 2,001 parts: at most 2,000 are supported in a message"
    assert (caught.value.status, caught.value.message) == (400, f"messages.1.content: {what}")


@pytest.mark.parametrize(("old", "new"), [("loop", "attempts"), ("concurrency", "lanes")])
def test_a_field_that_was_renamed_says_its_name(old, new):
    with pytest.raises(Refusal, match=rf"mellea_like\.{old}: {old} is now called {new}$"):
        read(mellea_like={old: 2})


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([USER[0]] * 2001, "messages"),
        (["Hi."], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([says("x", "robot")], "messages.0.role"),
        ([says("x", "function", name="f"), *USER], "messages.0.role"),
        ([*USER, says("x", "tool")], "messages.1.tool_call_id"),
        ([says("x", tool_call_id="1")], "messages.0.tool_call_id"),
        ([says("x", tool_calls=[CALL])], "messages.0.tool_calls"),
        ([{"role": "user"}], "messages.0.content"),
        ([says(None)], "messages.0.content"),
        ([says([])], "messages.0.content"),
        ([says([{"type": "text"}])], f"{FIRST}.text"),
        ([says([{"type": "text", "text": "x", "y": 1}])], f"{FIRST}.y"),
        (
            [*USER, says([{"type": "text", "text": "x"}, image("http://127.0.0.1/x.png")])],
            "messages.1.content.1.image_url.url",
        ),
        ([says([image("file:///x.png")])], f"{FIRST}.image_url.url"),
        ([says([image("data:image/png;base64,?")])], FIRST),
        ([says([{"type": "input_audio"}])], f"{FIRST}.input_audio"),
        ([says([{"type": "file", "file": {}}])], FIRST),
        ([says([{"type": "video_url", "video_url": {}}])], FIRST),
        (
            [says("", "assistant", tool_calls=[{"id": "1"}]), *USER],
            "messages.0.tool_calls.0.function",
        ),
        ([*USER, says("Once upon", "assistant")], "messages.1.role"),
    ],
)
def test_a_message_that_is_wrong_is_named(messages, param):
    with pytest.raises(Refusal) as caught:
        _ = read(messages=messages).conversation
    assert (caught.value.status, caught.value.param) == (400, param)


def test_all_roles_and_parts_of_text_are_read():
    request = read(
        messages=[
            says("Be brief.", "developer"),
            says("", "system"),
            says([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            says("c", "assistant"),
            says(None, "assistant", refusal="I can't."),
            says("d"),
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


def test_parts_and_calls_are_carried():
    wav, pdf = {"data": "AAAA", "format": "wav"}, {"file_data": "JVBERi0=", "filename": "a.pdf"}
    parts = [
        {"type": "text", "text": "What is this?"},
        image(PIXEL),
        {"type": "input_audio", "input_audio": wav},
        {"type": "file", "file": pdf},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
    request = read(
        messages=[
            says(parts),
            says(None, "assistant", reasoning_content="Hm.", tool_calls=[CALL]),
            says([{"type": "text", "text": "9:00"}], "tool", tool_call_id="1"),
        ]
    )
    asked, called, answered = request.conversation
    data = bytes.fromhex("89504e470d0a1a0a")
    assert asked.content == (
        Text("What is this?"),
        Image(data=data, media_type="image/png", detail="low"),
        Audio(b"\0\0\0", "wav"),
        File(b"%PDF-", filename="a.pdf"),
        File(file_id="file-1"),
    )
    calls = (ToolCall("1", "clock", "{}"),)
    assert called == Message("assistant", "", tool_calls=calls, reasoning="Hm.")
    assert answered == Message("tool", "9:00", tool_call_id="1")


def test_urls_of_the_web_are_carried_where_the_configuration_says_so():
    messages = [{"role": "user", "content": [image("https://example.org/a.png")]}]
    [message] = read(FieldRules(media_urls=True), messages=messages).conversation
    assert message.content == (Image("https://example.org/a.png", detail="low"),)


def test_a_choice_among_some_of_the_tools_allows_those():
    allowed = {"mode": "required", "tools": [choice("clock")]}
    asked = {"type": "allowed_tools", "allowed_tools": allowed}
    request = read(tools=TOOLS, tool_choice=asked)
    assert [function.name for function in request.functions] == ["clock"]
    assert request.wanted_call == "required"


@pytest.mark.parametrize(
    ("unknown", "named", "sent", "refused"),
    [
        ("refuse", {}, {}, ["logit_bais", "top_k"]),
        ("drop", {}, {}, []),
        ("forward", {}, {"logit_bais": 1, "top_k": 2}, []),
        ("refuse", {"top_k": "forward"}, {"top_k": 2}, ["logit_bais"]),
        ("forward", {"top_k": "drop", "logit_bais": "refuse"}, {}, ["logit_bais"]),
    ],
)
def test_what_becomes_of_unknown_fields_is_configured(unknown, named, sent, refused):
    rules, found = FieldRules(unknown, named), {}
    for field in ({"logit_bais": 1}, {"top_k": 2}):
        [name] = field
        if name in refused:
            with pytest.raises(Refusal) as caught:
                read(rules, **field)
            assert caught.value.code in ("unknown_parameter", "unsupported_parameter")
        else:
            found |= read(rules, **field).passed_on
    assert found == sent


def test_what_becomes_of_known_fields_is_configured():
    named = {"service_tier": "forward", "seed": "drop", "tools": "refuse", "verbosity": "drop"}
    rules = FieldRules(named=named)
    request = read(rules, service_tier="flex", seed=3, verbosity="low")
    assert (request.passed_on, request.seed) == ({"service_tier": "flex"}, None)
    with pytest.raises(Refusal) as caught:
        read(rules, tools=TOOLS)
    assert caught.value.param == "tools"
    assert str(caught.value) == "tools: this model doesn't accept this field"


@pytest.mark.parametrize(
    "name",
    [
        *("api_base", "Base-URL", "bootstrap_host"),
        *("n_predict", "n_cmpl", "search_parameters"),
        *("id_slot", "session_params", "custom_logit_processor"),
        *("input", "prompt"),
    ],
)
def test_some_unknown_fields_are_never_forwarded(name):
    with pytest.raises(Refusal) as caught:
        read(FieldRules("forward"), **{name: "x"})
    assert caught.value.param == name


@pytest.mark.parametrize(
    "fields",
    [{"x" * 9000: 1}, {"mellea_like": {"x" * 9000: 1}}, {"metadata": {"x" * 9000: 1}}],
    ids=["unknown", "deep", "response"],
)
def test_a_name_of_any_length_is_not_said_again_in_full(fields):
    with pytest.raises(Refusal) as caught:
        if "metadata" in fields:
            read_response({"model": "m", "input": "Hi.", **fields})
        else:
            read(**fields)
    assert len(caught.value.body()) < 1000
