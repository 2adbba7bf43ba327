"""Requests of OpenAI's chat protocol, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.backend import MAX_SEED
from mellea_like.core.tools import TOOL_CHOICES

if TYPE_CHECKING:
    from mellea_like.backends.output_mode import Demand, OutputTool
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message

_DROPPED = ("default", "discriminator", "minLength", "maxLength", "examples", "title")

LENGTHS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The two names of the field that limits a reply's length, each with the other one."""


def request_body(
    request: Request,
    options: Options,
    model: str,
    *,
    official: bool,
    choices: int | None = None,
    output: Demand | None = None,
) -> dict[str, Any]:
    """Return the body of a request; ``official`` means OpenAI's own server or Azure's."""
    messages = request.messages if output is None else output.messages
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, official=official) for message in messages],
        "stream": True,
        "stream_options": {},
    }
    if choices is not None:
        body["n"] = choices
    body |= request_fields(request, options, official=official, output=output)
    body |= options.extra
    if isinstance(streaming := body["stream_options"], dict):
        body["stream_options"] = {"include_usage": True, **streaming}
    return body


def request_fields(
    request: Request, options: Options, *, official: bool, output: Demand | None = None
) -> dict[str, Any]:
    """Return the fields for a request's options, tools and typed output, without ``extra``."""
    choice = request.tool_choice
    given = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_completion_tokens" if official else "max_tokens": options.max_tokens,
        "stop": list(options.stop) or None,
        "seed": None if options.seed is None else options.seed % MAX_SEED,
        "tools": [tool.as_dict() for tool in request.tools] or None,
        "tool_choice": choice if choice in {None, *TOOL_CHOICES} else _call_of(choice),
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if output is not None:
        _demand(fields, output, official=official)
    return fields


def with_other_length(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's body with the other name of the field that limits a reply's length."""
    return {LENGTHS.get(name, name): value for name, value in body.items()}


def _call_of(name: str | None) -> dict[str, Any]:
    """Return the tool choice that demands a call of one tool."""
    return {"type": "function", "function": {"name": name}}


def _message(message: Message, *, official: bool) -> dict[str, Any]:
    written = message.as_dict()
    if message.tool_calls and not message.content:
        written["content"] = None  # Servers write it so, and some refuse empty texts.
    if official:
        for name in ("reasoning_content", "reasoning"):
            written.pop(name, None)  # OpenAI's own servers don't know these fields.
    return written


def _demand(fields: dict[str, Any], output: Demand, *, official: bool) -> None:
    """Add to ``fields`` the fields that ask for typed output."""
    match output.mode:
        case "json_schema":
            fields["response_format"] = response_format(output, official=official)
        case "json_object":
            fields["response_format"] = {"type": "json_object"}
        case "tool" if (tool := output.tool) is not None:
            fields["tools"] = [*fields.get("tools", ()), _output_tool(tool, official=official)]
            fields["tool_choice"] = _call_of(tool.name) if tool.forced else "required"
        case _:
            pass


def _output_tool(tool: OutputTool, *, official: bool) -> dict[str, Any]:
    """Return, in the protocol's form, the output tool whose arguments are the reply."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function["parameters"] = tool.parameters
    if official:  # Other servers may not know "strict", and enforce the schema anyway.
        function["parameters"], function["strict"] = _strict(tool.parameters, official=True)
    return {"type": "function", "function": function}


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
        return _fitted(schema, official=official), True
    except _NoFit:
        return schema, False


class _NoFit(Exception):
    """Raised for a schema that can't be sent with ``strict``."""


def _can_be_closed(schema: dict[str, Any], *, optional: bool) -> bool:
    """Return whether an object lists its properties and, unless ``optional``, requires them all."""
    if "properties" not in schema or schema.get("additionalProperties"):
        return False
    return optional or set(schema.get("required", ())) == schema["properties"].keys()


def _fitted(schema: Any, *, official: bool) -> Any:
    """Return a schema whose objects are closed; if ``official``, in OpenAI's strict subset."""
    if not isinstance(schema, dict):
        return schema
    old = cast("dict[str, Any]", schema)
    if official and "$ref" in old:
        # In the subset, a reference has no other keywords. The root keeps its definitions.
        old = {key: value for key, value in old.items() if key in ("$ref", "$defs")}
    if old.get("type") == "object" and not _can_be_closed(old, optional=official):
        raise _NoFit
    new: dict[str, Any] = {}
    for key, value in old.items():
        if key in ("properties", "$defs"):
            new[key] = {name: _fitted(part, official=official) for name, part in value.items()}
        elif key == "anyOf" or (key == "oneOf" and official):
            new["anyOf"] = [_fitted(part, official=official) for part in value]
        elif key in ("allOf", "oneOf", "prefixItems"):
            raise _NoFit
        elif not (official and key in _DROPPED):
            new[key] = _fitted(value, official=official)
    if "properties" in new:
        new["additionalProperties"] = False
        new["required"] = list(new["properties"])
    return new
