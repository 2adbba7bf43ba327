"""Requests and replies of Mistral's chat API as plain data, converted from and to OpenAI's form.

Mistral refuses fields that it doesn't know (https://docs.mistral.ai/api/endpoint/chat).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from mellea_like.backends.openai_chat import request_fields
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.backends.output_mode import Demand
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message
    from mellea_like.core.parts import Part

CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
"""The ids of tool calls that Mistral accepts. It answers any other id with 400 "Tool call id has to
be defined" or "was ... but must be a-z, A-Z, 0-9, with a length of 9"."""

MOST_TEMPERATURE = 1.5


def _refuse(what: str) -> NoReturn:
    msg = f"Mistral would refuse this request when its job runs: {what}"
    raise InvalidRequest(msg)


def mistral_body(
    request: Request, options: Options, *, output: Demand | None = None
) -> dict[str, Any]:
    """Return the body of a request, without the model; refuse what the API would refuse."""
    messages = request.messages if output is None else output.messages
    if options.temperature is not None and options.temperature > MOST_TEMPERATURE:
        _refuse(f"temperature must be at most {MOST_TEMPERATURE}, not {options.temperature}")
    _check(messages)
    fields = request_fields(request, options, official=False, output=output)
    if "seed" in fields:
        fields["random_seed"] = fields.pop("seed")
    return {**fields, **options.extra, "messages": [_message(message) for message in messages]}


def _check(messages: tuple[Message, ...]) -> None:
    """Raise `InvalidRequest` for a sequence of messages that the API would refuse."""
    if not messages:
        _refuse("it has no messages")
    for number, (message, following) in enumerate(
        zip(messages, (*messages[1:], None), strict=True), 1
    ):
        where = f"message {number} ({message.role})"
        for call in message.tool_calls:
            if not CALL_ID.fullmatch(call.id):
                _refuse(
                    f"{where} has a call with the id {call.id!r}; ids must be 9 letters or digits"
                )
        if message.role == "tool" and following is not None and following.role == "user":
            _refuse(f"{where} can't be followed by a message with the role 'user'")
    if messages[-1].role == "assistant":
        _refuse("the last message can't have the role 'assistant'")


def _message(message: Message) -> dict[str, Any]:
    """Return a message in Mistral's form, without reasoning; only tool messages keep their name."""
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if not isinstance(message.content, str):
        written["content"] = [_part(part) for part in message.content]
    if message.tool_calls:
        written["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            written["name"] = message.name
    return {**message.extra, **written}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text() | Image():
            return part.as_dict()
        case Audio():
            return {"type": "input_audio", "input_audio": part.as_dict()["input_audio"]["data"]}
        case File(data=None):
            return {"type": "file", "file_id": part.file_id}
        case File():
            url = part.as_dict()["file"]["file_data"]
            named = {"document_name": part.filename} if part.filename else {}
            return {"type": "document_url", "document_url": url, **named}


def readable(completion: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a completion to OpenAI's form, whose text and thoughts are one string each."""
    choices: list[dict[str, Any]] = []
    for choice in completion["choices"]:
        message = dict(choice["message"])
        if isinstance(message.get("content"), list):
            parts: Sequence[Any] = message["content"]
            message["content"] = "".join(p["text"] for p in parts if p["type"] == "text")
            thoughts = [t for p in parts if p["type"] == "thinking" for t in p["thinking"]]
            message["reasoning_content"] = "".join(str(t.get("text") or "") for t in thoughts)
        if message.get("tool_calls"):
            message["tool_calls"] = [
                _call(number, call) for number, call in enumerate(message["tool_calls"])
            ]
        choices.append({**choice, "message": message})
    return {**completion, "choices": choices}


def _call(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "index": number, "function": {**function, "arguments": arguments}}
