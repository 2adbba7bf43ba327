"""Requests in the form of Codex's command line: tools of all its types, in several turns."""

from __future__ import annotations

import json
import re
from typing import Any, get_args, get_type_hints

import pytest
from gateway_kit import calling
from http_server import Answer
from open_responses import OPENAI_EVENT
from openai.types.responses import response_input_item_param
from strict_upstream import calls, strict_upstream

from mellea_like.gateway.chat.responses_request import ITEMS
from mellea_like.gateway.chat.responses_tools import HOSTED_ITEMS, function_name

pytestmark = pytest.mark.usefixtures("warm_checks")

LITERAL = re.compile(r"'(\w+)'")


def function(name: str, **properties: str) -> dict[str, Any]:
    typed = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": typed, "additionalProperties": False}
    return {
        "type": "function",
        "name": name,
        "description": f"Runs {name}.",
        "strict": False,
        "parameters": {**parameters, "required": list(properties)},
    }


PATCH = "*** Begin Patch\n*** Add File: a.txt\n+a\n*** End Patch"
SHELL = function("exec_command", cmd="string")
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [function("close", target="string"), {"type": "custom", "name": "tell"}],
}
HOSTED = [{"type": "web_search", "external_web_access": True}, {"type": "local_shell"}]


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": content}


BEGUN = [
    message("developer", "You are a coding agent."),
    message("user", "<environment_context><cwd>/tmp</cwd></environment_context>"),
    message("user", "Write a.txt."),
]
ASKED: dict[str, Any] = {
    "model": "mine",
    "instructions": "Be brief.",
    "tools": [SHELL, APPLY_PATCH, AGENTS],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "a-thread",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "an-installation", "turn": "{}"},
}


async def turn(caller, items, *more, **fields) -> list[dict[str, Any]]:
    """Ask for the next turn, and return the items of the response."""
    body = {**ASKED, "input": [*items, *more], **fields}
    answer = await caller.ask("/v1/responses", body)
    assert answer.status == 200, answer.json
    for event in answer.events:
        OPENAI_EVENT.validate_python(event)
    assert answer.events[-1]["type"] == "response.completed", answer.events[-1]
    done = [e["item"] for e in answer.events if e["type"] == "response.output_item.done"]
    assert answer.events[-1]["response"]["output"] == done
    return done


def item(kind: str, name: str, **fields: str) -> dict[str, Any]:
    return {"type": kind, "name": name, **fields}


LS, CLOSE, TELL = '{"cmd":"ls"}', '{"target":"b"}', '{"input": ""}'
CALLED = {
    "a function": (("exec_command", LS), item("function_call", "exec_command", arguments=LS)),
    "a custom tool": (
        ("apply_patch", json.dumps({"input": PATCH})),
        item("custom_tool_call", "apply_patch", input=PATCH),
    ),
    "a function of a namespace": (
        ("agents__close", CLOSE),
        item("function_call", "close", namespace="agents", arguments=CLOSE),
    ),
    "a custom tool of a namespace": (
        ("agents__tell", TELL),
        item("custom_tool_call", "tell", namespace="agents", input=""),
    ),
}


@pytest.mark.anyio
@pytest.mark.parametrize("release", ["passed", "prefix"])
@pytest.mark.parametrize(("called", "item"), CALLED.values(), ids=CALLED)
async def test_a_turn_with_a_call_and_the_one_after_it(called, item, release):
    with strict_upstream(calls(called, text="I call it."), Answer("Done.")) as upstream:
        config = {"url": upstream.url, "streaming": {"release": release}}
        async with calling(**config) as caller:
            said, made = await turn(caller, BEGUN)
            assert {name: made.get(name) for name in item} == item
            assert said["content"][0]["text"] == "I call it."
            thought = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
            answered = {"call_id": made["call_id"], "output": "It ran."}
            answered["type"] = f"{item['type']}_output"
            [last] = await turn(caller, BEGUN, thought, said, made, answered)
    assert last["content"][0]["text"] == "Done."
    first, second = upstream.requests
    names = [tool["function"]["name"] for tool in first["tools"]]
    assert names == ["exec_command", "apply_patch", "agents__close", "agents__tell"]
    patch = first["tools"][1]["function"]
    assert patch["description"].startswith("Changes files.")
    assert 'start: "x"' in patch["description"]
    assert list(patch["parameters"]["properties"]) == ["input"]
    *_, again, result = second["messages"]
    [sent_back] = again["tool_calls"]
    assert (sent_back["function"]["name"], again["content"]) == (called[0], "I call it.")
    assert json.loads(sent_back["function"]["arguments"]) == json.loads(called[1])
    assert (result["content"], result["tool_call_id"]) == ("It ran.", sent_back["id"])
    sent = json.dumps(upstream.requests)
    assert "client_metadata" not in sent
    assert "an-installation" not in sent
    assert (first["prompt_cache_key"], first["verbosity"]) == ("a-thread", "low")


@pytest.mark.anyio
async def test_a_custom_tool_that_is_called_wrongly_is_asked_for_again():
    wrong, right = calls(("apply_patch", "{}")), calls(("apply_patch", json.dumps({"input": "x"})))
    with strict_upstream(wrong, right) as upstream:
        async with calling(url=upstream.url, attempts=2) as caller:
            [made] = await turn(caller, BEGUN)
    assert (made["name"], made["input"]) == ("apply_patch", "x")


@pytest.mark.anyio
async def test_hosted_tools_are_refused_with_what_to_write_or_left_out():
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "custom", "name": "tell"}],
    }
    past = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "local_shell_call", "call_id": "c", "action": {}, "status": "completed"},
        {"type": "local_shell_call_output", "call_id": "c", "output": "x"},
    ]
    tools = {"tools": [*HOSTED, APPLY_PATCH], "include": ["web_search_call.results"]}
    refused = {
        "tools.0": tools,
        "input.3": {"input": [*BEGUN, past[0]]},
        "include.0": {"include": tools["include"]},
    }
    with strict_upstream(Answer("Done.")) as upstream:
        async with calling(url=upstream.url) as caller:
            for param, fields in refused.items():
                answer = await caller.ask("/v1/responses", {**ASKED, "input": BEGUN, **fields})
                assert (answer.status, answer.error["param"]) == (400, param)
                assert "hosted_tools: drop" in answer.error["message"]
        assert upstream.requests == []
        overrides = {"hosted_tools": "drop"}
        async with calling(url=upstream.url, overrides=overrides) as caller:
            [said] = await turn(caller, BEGUN[:2], *past, BEGUN[2], **tools)
            wrong = {**ASKED, **tools, "input": BEGUN, "tool_choice": choice}
            answer = await caller.ask("/v1/responses", wrong)
            assert (answer.status, answer.error["param"]) == (400, "tool_choice")
            odd = {**ASKED, **tools, "input": BEGUN}
            odd["tools"] = [*HOSTED, {**SHELL, "parameters": {"type": "nonsense"}}]
            answer = await caller.ask("/v1/responses", odd)
            assert (answer.status, answer.error["param"]) == (400, "tools.2.parameters")
    assert said["content"][0]["text"] == "Done."
    [sent] = upstream.requests
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["apply_patch"]
    assert [m["role"] for m in sent["messages"]] == ["system", "system", "user", "user"]


def test_every_item_of_the_sdk_is_read_or_hosted_or_has_no_place_here():
    known = {
        text
        for item in get_args(response_input_item_param.ResponseInputItemParam)
        for text in LITERAL.findall(str(get_type_hints(item)["type"]))
    }
    assert set(ITEMS) | HOSTED_ITEMS < known
    assert known - set(ITEMS) - HOSTED_ITEMS == {
        "additional_tools",
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "item_reference",
    }


def test_names_of_functions_are_short_enough_and_differ():
    assert function_name("a") == "a"
    assert function_name("close", "agents") == "agents__close"
    long = {function_name(f"{'n' * 60}{i}", "s" * 60) for i in range(9)}
    assert (len(long), {len(name) for name in long}) == (9, {64})
