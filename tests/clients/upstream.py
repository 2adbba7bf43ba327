"""A server of OpenAI's chat protocol, with a model that does what it is asked to, for the clients.

It prints the port that it listens on, and is strict where OpenAI's own server is: a field that
isn't in the protocol is a 400. Its model calls the tools it is given, once each, with arguments
that fit their schemas; writes JSON of a schema, be it in ``response_format`` or in the prompt;
fills in the fields that a prompt marks as DSPy's do; and else says a sentence. Asked as
``careless``, it is wrong the first time that it reads a conversation, wherever it can be: a number
is a text then.

``GET /requests?containing=TEXT`` says how many chat requests had a text in their conversation.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import uvicorn
from openai.types.chat import completion_create_params
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

FIELDS = {"stream", *completion_create_params.CompletionCreateParamsBase.__annotations__}
SENTENCE = "It is 21 degrees in Paris and the sky is clear, so leave the umbrella at home today."
INTEGER = {"type": "integer"}
MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")

seen: Counter[str] = Counter()


# --- the model -----------------------------------------------------------------------------------


def fit(schema: Any, defs: dict[str, Any], name: str = "") -> Any:
    """Make a value that a JSON Schema takes."""
    if "$ref" in schema:
        return fit(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    several = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if key in schema), None)
    if several is not None:
        return fit(several[0], defs, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        return {key: fit(of, defs, key) for key, of in schema.get("properties", {}).items()}
    if kind == "array":
        return [fit(schema.get("items", {}), defs, name)]
    text = "Paris" if name in {"city", "name", "location", "place"} else "clear"
    return {"integer": 21, "number": 21.5, "boolean": True, "null": None}.get(kind, text)


def spoil(value: Any) -> Any:
    """Make a text of each number."""
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
    """Choose a tool that has not been called yet, and its arguments' schema."""
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    choice = body.get("tool_choice", "auto")
    if choice == "none":
        return None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        return name, tools[name]["parameters"]
    called = {
        call["function"]["name"]
        for message in body["messages"]
        for call in message.get("tool_calls") or ()
    }
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
        return json.dumps(spoil(value) if wrong else value)

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


async def complete(request: Request) -> Response:
    """Answer ``/v1/chat/completions``."""
    body = await request.json()
    if unknown := body.keys() - FIELDS:
        return refused(f"Unrecognized request argument supplied: {', '.join(unknown)}")
    for message in body["messages"]:
        if message["role"] == "tool" and not message.get("tool_call_id"):
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
    reason = "stop" if call is None else "tool_calls"
    if body.get("stream"):
        with_usage = (body.get("stream_options") or {}).get("include_usage")
        events = stream(frame, message, reason, usage if with_usage else None)
        return StreamingResponse(events, media_type="text/event-stream")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    whole = {"object": "chat.completion", **frame, "choices": [choice], "usage": usage}
    return JSONResponse(whole)


async def stream(
    frame: dict[str, Any], message: dict[str, Any], reason: str, usage: dict[str, int] | None
) -> AsyncIterator[str]:
    """Write a reply in pieces."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": part} for part in re.findall(r"\S+\s*", message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        deltas = [{"role": "assistant", "content": None, "tool_calls": [begun]}]
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
    """Say how many requests had a text in their conversation."""
    text = request.query_params["containing"]
    return JSONResponse({"requests": sum(n for each, n in seen.items() if text in each)})


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
