"""A server of OpenAI's chat protocol for the clients, with a model that does what it is told.

It prints the port that it listens on, and is strict as OpenAI's own server is: a field that isn't
in the protocol, of a request or of a message, is a 400. Its model calls the tools it is given, once
each in a turn, with arguments that fit their schemas; writes JSON of a schema, be it in
``response_format`` or in the prompt; fills in the fields that a prompt marks as DSPy's do; and else
says a sentence. Asked as ``careless``, it is wrong the first time that it reads a conversation,
wherever it can be: a number is a text then.

If a conversation contains ``TALKATIVE``, it is another kind of server: its replies have the fields
that others than OpenAI add, and it takes any field in the messages that are sent back.

``GET /requests?containing=TEXT&containing=...`` counts the chat requests with all these texts in
their messages, and the wrong replies to them.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import sys
import typing
from collections import Counter
from typing import TYPE_CHECKING, Any

import uvicorn
from openai.types.chat import (
    ChatCompletionMessage,
    chat_completion_message_param,
    completion_create_params,
)
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

FIELDS = {"stream", *completion_create_params.CompletionCreateParamsBase.__annotations__}
MESSAGES = (
    ChatCompletionMessage,
    *typing.get_args(chat_completion_message_param.ChatCompletionMessageParam),
)
MESSAGE_FIELDS = {name for kind in MESSAGES for name in kind.__annotations__}
CALL_FIELDS = {"id", "type", "function"}
TEXTS = {"city": "Paris", "cmd": "echo 21 degrees"}
TALKATIVE = "a talkative server"
EXTRAS: dict[str, Any] = {
    "reasoning_content": "They ask for the weather.",
    "reasoning_details": [{"type": "reasoning.text", "text": "They ask.", "signature": "c2ln"}],
    "annotations": [],
    "audio": None,
    "function_call": None,
    "provider_specific_fields": {"thought": "c2ln"},
}
EXTRA_CONTENT = {"google": {"thought_signature": "c2ln"}}
SENTENCE = "It is 21 degrees in Paris and the sky is clear, so leave the umbrella at home today."
INTEGER = {"type": "integer"}
OBSERVED = re.compile(r"Observation:(?!.*New task:)", re.DOTALL)
"""Where smolagents tells the result of a call; it writes calls and results as texts."""

WANTED = re.compile(r"Call (only (?P<name>\w+)|no tool)\.")
"""What a prompt may say where a client brings tools of its own."""

MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")

seen: Counter[str] = Counter()
spoiled: set[str] = set()


# --- the model -----------------------------------------------------------------------------------


def fit(schema: Any, defs: dict[str, Any], name: str = "") -> Any:
    """Make a value that is valid against a JSON Schema."""
    if "$ref" in schema:
        return fit(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    several = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if key in schema), None)
    if several is not None:
        return fit(several[0], defs, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        of_each = schema.get("properties", {})
        return {name: fit(of_each[name], defs, name) for name in schema.get("required", of_each)}
    if kind == "array":
        return [fit(schema.get("items", {}), defs, name)]
    values = {"integer": 21, "number": 21.5, "boolean": True, "null": None}
    return values.get(kind, TEXTS.get(name, "clear"))


def spoil(value: Any) -> Any:
    """Replace each number by a text."""
    if isinstance(value, dict):
        return {key: spoil(of) for key, of in value.items()}
    if isinstance(value, list):
        return [spoil(each) for each in value]
    return value if isinstance(value, bool | str | None) else f"about {value}"


def texts(body: dict[str, Any]) -> Iterator[str]:
    """The texts of a conversation."""
    for message in body["messages"]:
        content = message.get("content") or ""
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content if part["type"] == "text")


def schema_in(prompt: str, after: str = "") -> dict[str, Any] | None:
    """Find a JSON Schema of an object in a prompt, or on the line after a text in it."""
    text = prompt
    if after:
        text = prompt.partition(after)[2].partition("\n")[0]
    for brace in re.finditer(r"\{", text):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, brace.start())
        except ValueError:
            continue
        if isinstance(found, dict) and "properties" in found:
            return found
    return None


def call_for(body: dict[str, Any]) -> tuple[str, Any] | None:
    """Choose a tool that has not been called in this turn, and its arguments' schema."""
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    choice = body.get("tool_choice", "auto")
    wanted = WANTED.search("\n".join(texts(body)))
    if wanted is not None:
        tools = {name: tool for name, tool in tools.items() if name == wanted["name"]}
    if choice == "none":
        return None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        return name, tools[name]["parameters"]
    called = set[str]()
    for message in body["messages"]:
        said = json.dumps(message.get("content"))
        if message["role"] == "user" and not OBSERVED.search(said):
            called.clear()
        elif message["role"] == "assistant":
            called |= {call["function"]["name"] for call in message.get("tool_calls") or ()}
            called |= {name for name in tools if f"'name': '{name}'" in said}
    for name, tool in tools.items():
        if name not in called:
            return name, tool.get("parameters", {})
    return None


def reply_to(body: dict[str, Any]) -> tuple[str | None, tuple[str, str] | None]:
    """Say something, or call a tool with arguments."""
    conversation = json.dumps([body["messages"], body.get("tools"), body.get("response_format")])
    seen[conversation] += 1
    wrong = body["model"] == "careless" and seen[conversation] == 1

    def written(schema: dict[str, Any]) -> str:
        value = fit(schema, schema.get("$defs", {}))
        if not wrong:
            return json.dumps(value)
        spoiled.add(conversation)
        return json.dumps(spoil(value))

    call = call_for(body)
    if call is not None:
        return None, (call[0], written(call[1]))
    form = body.get("response_format") or {"type": "text"}
    if form["type"] == "json_schema":
        return written(form["json_schema"]["schema"]), None
    prompt = "\n".join(texts(body))
    _, asked, how = prompt.rpartition("Respond with the corresponding output fields")
    if asked:
        parts = [
            f"[[ ## {name} ## ]]\n{written(schema_in(prompt, after=f'{{{name}}}') or INTEGER)}"
            for name in MARKER.findall(how)
            if name != "completed"
        ]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"]), None
    schema = schema_in(prompt)
    if schema is not None:
        return written(schema), None
    return ('{"city": "Paris"}' if form["type"] == "json_object" else SENTENCE), None


# --- the protocol --------------------------------------------------------------------------------


def refused(message: str) -> Response:
    """An error, as OpenAI's server writes it."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status_code=400)


def unknown_in(message: dict[str, Any]) -> set[str]:
    """The fields of a message that aren't in the protocol."""
    calls = message.get("tool_calls") or ()
    return (message.keys() - MESSAGE_FIELDS).union(*(call.keys() - CALL_FIELDS for call in calls))


async def complete(request: Request) -> Response:
    """Answer ``/v1/chat/completions``."""
    body = await request.json()
    if unknown := body.keys() - FIELDS:
        return refused(f"Unrecognized request argument supplied: {', '.join(unknown)}")
    talkative = any(TALKATIVE in text for text in texts(body))
    if not talkative and (unknown := set().union(*map(unknown_in, body["messages"]))):
        return refused(f"Additional properties are not allowed: {', '.join(unknown)}")
    if any(each["role"] == "tool" and not each.get("tool_call_id") for each in body["messages"]):
        return refused("Missing parameter 'tool_call_id': messages with role 'tool' need one.")
    text, call = reply_to(body)
    number = next(requests)
    frame = {"id": f"chatcmpl-{number}", "created": 1, "model": body["model"]}
    received = len((text or call[1] if call else text or "").split())
    usage = {"prompt_tokens": 20, "completion_tokens": received, "total_tokens": 20 + received}
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    if talkative:
        message |= EXTRAS
        for each in message.get("tool_calls", ()):
            each["extra_content"] = EXTRA_CONTENT
    reason = "stop" if call is None else "tool_calls"
    if body.get("stream"):
        with_usage = (body.get("stream_options") or {}).get("include_usage")
        events = stream(frame, message, reason, usage if with_usage else None)
        return StreamingResponse(events, media_type="text/event-stream")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    whole = {"object": "chat.completion", **frame, "choices": [choice], "usage": usage}
    if talkative:
        choice |= {"stop_reason": None, "token_ids": None}
        whole |= {"service_tier": None, "system_fingerprint": "fp_1", "prompt_logprobs": None}
    return JSONResponse(whole)


async def stream(
    frame: dict[str, Any], message: dict[str, Any], reason: str, usage: dict[str, int] | None
) -> AsyncIterator[str]:
    """Write a reply in pieces."""
    extras = {name: value for name, value in message.items() if name in EXTRAS}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None, **extras}]
    deltas += [{"content": part} for part in re.findall(r"\S+\s*", message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        deltas = [{"role": "assistant", "content": None, **extras, "tool_calls": [begun]}]
        pieces = re.findall(r".{1,8}", function["arguments"], re.DOTALL)
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces
        ]
    common = {"object": "chat.completion.chunk", **frame}
    for delta, ended in [*((each, None) for each in deltas), ({}, reason)]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ended}
        yield f"data: {json.dumps({**common, 'choices': [choice]})}\n\n"
    if usage is not None:
        yield f"data: {json.dumps({**common, 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


async def counted(request: Request) -> Response:
    """Count the requests whose messages contain all these texts."""
    texts = request.query_params.getlist("containing")
    found = [each for each in seen if all(text in each for text in texts)]
    counts = {"requests": sum(map(seen.get, found)), "wrong": len(spoiled.intersection(found))}
    return JSONResponse(counts)


requests = itertools.count(1)
app = Starlette(
    routes=[
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/requests", counted),
    ]
)

if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
