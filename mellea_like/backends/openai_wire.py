"""What is sent to a server of OpenAI's chat protocol, as plain data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.backend import TOOL_CHOICES
from mellea_like.core.format import json_schema

if TYPE_CHECKING:
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message

__all__ = ["request_body", "response_format", "tool_choice"]

MAX_SEED = 2**31
"""Seeds are folded into 31 bits: llama.cpp reads 32 and takes the highest as "random"."""

_DROPPED = ("default", "discriminator", "minLength", "maxLength", "examples", "title")


def request_body(
    request: Request, options: Options, model: str, *, official: bool, choices: int | None = None
) -> dict[str, Any]:
    """Write the fields of a chat completion request."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, official=official) for message in request.messages],
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
    if request.format is not None:
        body["response_format"] = response_format(request.format, official=official)
    return {**body, **options.extra}


def tool_choice(request: Request) -> Any:
    """Write whether, and which, tool is to be called."""
    choice = request.tool_choice
    if choice in TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _message(message: Message, *, official: bool) -> dict[str, Any]:
    written = message.as_dict()
    if message.tool_calls and not message.content:
        written["content"] = None  # As the servers write it themselves; some refuse empty texts.
    if official:
        written.pop("reasoning_content", None)  # A field that OpenAI's own servers do not know.
    return written


def response_format(format: Any, *, official: bool) -> dict[str, Any]:
    """Write the ``response_format`` that makes a server keep to a type.

    OpenAI's own servers take ``strict`` schemas of a subset of JSON Schema: each object closed,
    each property required, and some keywords not at all. The type's schema is narrowed to that; a
    type that does not fit (such as a mapping with free keys) goes without ``strict``. Other servers
    (llama.cpp, vLLM) compile the whole schema into a grammar and get it as it is.
    """
    schema = json_schema(format)
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", getattr(format, "__name__", "reply"))[:64] or "reply"
    strict = True
    if official:
        try:
            schema = _narrowed(schema)
        except _NoFit:
            strict = False
    described = {"name": name, "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": described}


class _NoFit(Exception):
    """A schema is outside OpenAI's strict subset."""


def _narrowed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    old = cast("dict[str, Any]", schema)
    if "$ref" in old:
        # The subset takes no keywords beside a reference, but the root keeps its definitions.
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
