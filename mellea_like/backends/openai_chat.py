"""Requests of OpenAI's chat protocol, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.backend import MAX_SEED
from mellea_like.core.tools import TOOL_CHOICES

if TYPE_CHECKING:
    from mellea_like.backends.output_mode import Demand, OutputTool
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message

__all__ = ["output_tool", "request_body", "response_format", "tool_choice"]

_DROPPED = ("default", "discriminator", "minLength", "maxLength", "examples", "title")


def request_body(
    request: Request,
    options: Options,
    model: str,
    *,
    official: bool,
    choices: int | None = None,
    output: Demand | None = None,
) -> dict[str, Any]:
    """Return the body of a chat completion request.

    ``official`` means that the server is OpenAI's own or Azure's.
    """
    messages = request.messages if output is None else output.messages
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, official=official) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if choices is not None:
        body["n"] = choices
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.top_p is not None:
        body["top_p"] = options.top_p
    if options.max_tokens is not None:
        body["max_completion_tokens" if official else "max_tokens"] = options.max_tokens
    if options.stop:
        body["stop"] = list(options.stop)
    if options.seed is not None:
        body["seed"] = options.seed % MAX_SEED
    if request.tools:
        body["tools"] = [tool.as_dict() for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = tool_choice(request)
    if output is not None:
        _demand(body, output, official=official)
    return {**body, **options.extra}


def tool_choice(request: Request) -> Any:
    """Return the request's tool choice in the protocol's form."""
    choice = request.tool_choice
    if choice in TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _message(message: Message, *, official: bool) -> dict[str, Any]:
    written = message.as_dict()
    if message.tool_calls and not message.content:
        written["content"] = None  # Servers write it so, and some refuse empty texts.
    if official:
        for name in ("reasoning_content", "reasoning"):
            written.pop(name, None)  # OpenAI's own servers don't know these fields.
    return written


def _demand(body: dict[str, Any], output: Demand, *, official: bool) -> None:
    """Add to ``body`` the fields that ask for typed output."""
    match output.mode:
        case "json_schema":
            body["response_format"] = response_format(output, official=official)
        case "json_object":
            body["response_format"] = {"type": "json_object"}
        case "tool" if (tool := output.tool) is not None:
            body["tools"] = [*body.get("tools", ()), output_tool(tool, official=official)]
            forced = {"type": "function", "function": {"name": tool.name}}
            body["tool_choice"] = forced if tool.forced else "required"
        case _:
            pass


def output_tool(tool: OutputTool, *, official: bool) -> dict[str, Any]:
    """Return, in the protocol's form, the output tool whose arguments are the reply."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if not official:
        # Other servers may not know "strict", and enforce the schema anyway.
        return {"type": "function", "function": {**function, "parameters": tool.parameters}}
    schema, strict = _strict(tool.parameters, official=official)
    return {"type": "function", "function": {**function, "parameters": schema, "strict": strict}}


def response_format(output: Demand, *, official: bool) -> dict[str, Any]:
    """Return the ``response_format`` that makes a server enforce a type."""
    schema, strict = _strict(output.schema, official=official)
    described = {"name": output.name, "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": described}


def _strict(schema: dict[str, Any], *, official: bool) -> tuple[dict[str, Any], bool]:
    """Return a schema in the form that a server accepts, and whether to ask for ``strict``.

    OpenAI's own servers take ``strict`` schemas in a subset of JSON Schema: each object is closed
    (it has no properties but the listed ones), each property is required, and some keywords are
    missing. The schema is narrowed to this subset. If that is impossible (for example for a mapping
    with free keys), the schema is sent unchanged, without ``strict``.

    Other servers (llama.cpp, vLLM) compile the whole schema into a grammar, so they get all its
    keywords. But some of these servers read ``strict`` as OpenAI does. So the schema's objects are
    closed, and a schema with an optional property is sent without ``strict``.
    """
    try:
        return (_narrowed(schema) if official else _closed(schema)), True
    except _NoFit:
        return schema, False


class _NoFit(Exception):
    """Raised for a schema that can't be expressed in OpenAI's strict subset."""


def _closed(schema: Any) -> Any:
    """Return a schema whose objects are closed, that is, have no properties but the listed ones.

    Raises:
        _NoFit: the schema has free or optional properties, or keywords such as ``allOf``.
    """
    if not isinstance(schema, dict):
        return schema
    old = cast("dict[str, Any]", schema)
    if old.get("type") == "object":
        required = set(old.get("required", ()))
        if not old.get("properties") or old.get("additionalProperties"):
            raise _NoFit
        if required != old["properties"].keys():
            raise _NoFit
        old = cast("dict[str, Any]", {**old, "additionalProperties": False})
    new: dict[str, Any] = {}
    for key, value in old.items():
        if key in ("properties", "$defs"):
            new[key] = {name: _closed(part) for name, part in value.items()}
        elif key == "anyOf":
            new[key] = [_closed(part) for part in value]
        elif key in ("allOf", "oneOf", "prefixItems"):
            raise _NoFit
        else:
            new[key] = _closed(value) if key == "items" else value
    return new


def _narrowed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    old = cast("dict[str, Any]", schema)
    if "$ref" in old:
        # In the subset, a reference has no other keywords. The root keeps its definitions.
        old = {key: value for key, value in old.items() if key in ("$ref", "$defs")}
    free = "properties" not in old or old.get("additionalProperties")
    if old.get("type") == "object" and free:
        raise _NoFit
    new: dict[str, Any] = {}
    for key, value in old.items():
        if key in ("properties", "$defs"):
            new[key] = {name: _narrowed(part) for name, part in value.items()}
        elif key in ("anyOf", "oneOf"):
            new["anyOf"] = [_narrowed(part) for part in value]
        elif key in ("allOf", "prefixItems"):
            raise _NoFit
        elif key not in _DROPPED:
            new[key] = _narrowed(value)
    if "properties" in new:
        new["additionalProperties"] = False
        new["required"] = list(new["properties"])
    return new
