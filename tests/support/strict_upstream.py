"""An upstream as strict as OpenAI's own: it answers 400 to unknown fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from http_server import Answer, OpenAIServer
from openai.types.chat import completion_create_params

FIELDS = {"stream", *completion_create_params.CompletionCreateParamsBase.__annotations__}
CALL = {"id": None, "type": None, "function": {"name": None, "arguments": None}}
FUNCTION = {"name": None, "description": None, "parameters": None, "strict": None}
MESSAGES: Mapping[str, Mapping[str, Any]] = {
    "system": {"content": None, "name": None},
    "user": {"content": None, "name": None},
    "assistant": {"content": None, "name": None, "refusal": None, "tool_calls": [CALL]},
    "tool": {"content": None, "tool_call_id": None},
}


def strict_upstream(*answers: Answer) -> OpenAIServer:
    """Make a server that answers valid requests in turn, and repeats the last answer."""
    left = list(answers)

    def choose(number: int, body: dict[str, Any]) -> Answer:
        if unknown := list(strange_in(body)):
            return Answer.error(400, f"Unrecognized request argument supplied: {unknown}")
        return left.pop(0) if len(left) > 1 else left[0]

    return OpenAIServer(choose=choose)


def strange_in(body: Mapping[str, Any]) -> Iterator[str]:
    """List unknown fields, and calls that no tool has answered."""
    yield from body.keys() - FIELDS
    asked: list[str] = []
    for place, message in enumerate(body["messages"]):
        known = MESSAGES[message["role"]]
        yield from _unknown(f"messages.{place}", message, {"role": None, **known})
        if message["role"] == "tool":
            if message["tool_call_id"] not in asked:
                yield f"messages.{place}.tool_call_id"
            asked.remove(message["tool_call_id"])
        elif asked:
            yield f"messages.{place}: {asked} are not answered"
        asked += [call["id"] for call in message.get("tool_calls", ())]
    if asked:
        yield f"{asked} are not answered"
    for place, tool in enumerate(body.get("tools", ())):
        yield from _unknown(f"tools.{place}", tool, {"type": None, "function": FUNCTION})


def _unknown(place: str, value: Any, known: Any) -> Iterator[str]:
    if isinstance(known, list):
        for each in value:
            yield from _unknown(place, each, known[0])
    elif isinstance(known, Mapping):
        for name, inside in value.items():
            if name not in known:
                yield f"{place}.{name}"
            else:
                yield from _unknown(f"{place}.{name}", inside, known[name])


def calls(*made: tuple[str, str], text: str = "", model: str = "m") -> Answer:
    """Make a reply with a text and calls, each given as a tool's name and the arguments."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text}]
    for index, (name, arguments) in enumerate(made):
        function = {"name": name, "arguments": ""}
        begun = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        deltas.append({"tool_calls": [begun]})
        piece = {"index": index, "function": {"arguments": arguments}}
        deltas.append({"tool_calls": [piece]})
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    choices = [({"index": 0, "delta": delta, "finish_reason": None}) for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    return Answer(events=tuple(json.dumps({**frame, "choices": [choice]}) for choice in choices))
