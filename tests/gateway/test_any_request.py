"""Any request is either read, or refused with the name of the wrong field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from mellea_like.gateway.chat.request import read_chat
from mellea_like.gateway.chat.responses_request import read_response
from mellea_like.gateway.chat.tools import tools_of
from mellea_like.gateway.fields import FieldRules
from mellea_like.gateway.refusal import Refusal

PIXEL = "data:image/png;base64,iVBORw0KGgo="
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
FORMAT = {"name": "x", "schema": {"type": "object"}}

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "a"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "b"},
                {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a.pdf"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "c"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    },
    "response_format": {"type": "json_schema", "json_schema": FORMAT},
    "logprobs": True,
    "top_logprobs": 2,
    "stream_options": {"include_usage": True},
    "reasoning_effort": "low",
    "mellea_like": {"checks": ["words<=2"], "attempts": 2},
}

RESPONSE: dict[str, Any] = {
    "model": "m",
    "instructions": "a",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "b"},
                {"type": "input_image", "image_url": PIXEL},
                {"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf"},
            ],
        },
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "c"},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", **FORMAT}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
}


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = [place] if place else []
    for step, part in inside:
        here = (*place, step)
        found += places(part, here) if isinstance(part, dict | list) else [here]
    return found


def changed(body: dict[str, Any], place: tuple[Any, ...], value: object) -> dict[str, Any]:
    made = copy.deepcopy(body)
    *way, last = place
    inside: Any = made
    for step in way:
        inside = inside[step]
    inside[last] = value
    return made


WORDS = st.sampled_from(["type", "text", "function", "role", "tool", "assistant", "data:,", "f"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | WORDS
FLAT = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(WORDS, PLAIN, max_size=2)
JSON = FLAT | st.lists(FLAT, max_size=2) | st.dictionaries(WORDS | st.text(), FLAT, max_size=2)


@pytest.mark.parametrize(("body", "read"), [(CHAT, read_chat), (RESPONSE, read_response)])
@examples(50, 500)
@given(data=st.data())
def test_a_request_is_read_or_refused(body, read, data):
    place = data.draw(st.sampled_from(places(body)))
    given_ = changed(body, place, data.draw(JSON))
    refusal = request = None
    try:
        request = read(given_, FieldRules("forward"))
    except Refusal as exc:
        refusal = exc
    if refusal is not None:
        assert refusal.param.split(".")[0] in body
        assert refusal.message.startswith(f"{refusal.param}: ")
        return
    assert request.conversation
    assert len(tools_of(request)) <= 1


@pytest.mark.parametrize(("body", "read"), [(CHAT, read_chat), (RESPONSE, read_response)])
def test_the_request_that_is_changed_is_a_right_one(body, read):
    assert len(read(body).conversation) == 4
