"""The seven checks of the compliance tests of Open Responses, and further fields."""

from __future__ import annotations

import pytest
from gateway_kit import calling
from http_server import Answer
from messages import PNG_BASE64
from open_responses import EVENT, RESPONSE
from strict_upstream import calls, strict_upstream

from mellea_like.backends.function import FunctionBackend
from mellea_like.core.generation import Generation

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("warm_checks")]

HEART = f"data:image/png;base64,{PNG_BASE64}"
FORECAST = {
    "type": "function",
    "name": "forecast",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
}


def says(role: str, content: object) -> dict[str, object]:
    return {"type": "message", "role": role, "content": content}


COLOUR = [
    {"type": "input_text", "text": "Which colour is it?"},
    {"type": "input_image", "image_url": HEART},
]
TURNS = [says("user", "I am Ada."), says("assistant", "Hello, Ada."), says("user", "Who am I?")]
RAIN = {"input": [says("user", "Rain in Oslo?")], "tools": [FORECAST]}
SAILOR = [says("system", "Speak like a sailor."), says("user", "Greet me.")]

SEVEN = {
    "a text": ({"input": [says("user", "Greet me in two words.")]}, "message"),
    "a stream": ({"input": [says("user", "Count to three.")], "stream": True}, "message"),
    "a system message": ({"input": SAILOR}, "message"),
    "a call": (RAIN, "function_call"),
    "a call in a stream": ({**RAIN, "stream": True}, "function_call"),
    "an image": ({"input": [says("user", COLOUR)]}, "message"),
    "several turns": ({"input": TURNS}, "message"),
}


@pytest.mark.parametrize("release", ["passed", "prefix"])
@pytest.mark.parametrize(("asked", "kind"), SEVEN.values(), ids=SEVEN)
async def test_what_the_open_specification_asks_for_is_there(asked, kind, release):
    reply = calls(("forecast", '{"town": "Oslo"}')) if kind == "function_call" else Answer("a b")
    with strict_upstream(reply) as upstream:
        config = {"url": upstream.url, "streaming": {"release": release}}
        async with calling(**config) as caller:
            answer = await caller.ask("/v1/responses", {"model": "mine", **asked})
    assert answer.status == 200, answer.json
    if not asked.get("stream"):
        whole = answer.json
    else:
        for event in answer.events:
            EVENT.validate_python(event)
        assert [e["sequence_number"] for e in answer.events] == list(range(len(answer.events)))
        kinds = [event["type"] for event in answer.events]
        field = "output_text" if kind == "message" else "function_call_arguments"
        assert {f"response.{field}.delta", f"response.{field}.done"} <= set(kinds)
        for end in ("added", "done"):
            items = [e["item"] for e in answer.events if e["type"].endswith(f"output_item.{end}")]
            assert [item["type"] for item in items] == [kind]
        assert items == answer.events[-1]["response"]["output"]
        written = [e for e in answer.events if e["type"].endswith("function_call_arguments.done")]
        assert {event["name"] for event in written} <= {"forecast"}
        begun, whole = answer.events[0]["response"], answer.events[-1]["response"]
        assert begun["status"] == "in_progress"
        assert begun["completed_at"] is begun["usage"] is None
    response = RESPONSE.model_validate(whole)
    assert (response.status, [item.type for item in response.output]) == ("completed", [kind])
    assert response.completed_at >= response.created_at


async def test_a_response_repeats_what_was_asked_and_has_defaults_for_the_rest():
    backend = FunctionBackend(lambda _: Generation("a"), inline=True)
    labels = {"safety_identifier": "s", "prompt_cache_key": "k"}
    asked = {"top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1, "top_logprobs": 2}
    plain = {"model": "mine", "input": "Hi."}
    async with calling(backend, options={"temperature": 0.25}) as caller:
        first = (await caller.ask("/v1/responses", plain)).json
        second = (await caller.ask("/v1/responses", {**plain, **labels, **asked})).json
    RESPONSE.model_validate(first)
    RESPONSE.model_validate(second)
    names = (*labels, *asked, "temperature", "service_tier", "background", "max_tool_calls")
    assert {name: first[name] for name in names} == {
        **dict.fromkeys(labels),
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": 0,
        "temperature": 0.25,  # From the model's options.
        "service_tier": "default",
        "background": False,
        "max_tool_calls": None,
    }
    assert {name: second[name] for name in (*labels, *asked)} == {**labels, **asked}
