"""``/v1/responses``: OpenAI's Responses API for text, functions and typed output; no store."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.chat.answer import (
    Answer,
    finish_reason,
    generated,
    message_of,
    tokens_of,
)
from mellea_like.gateway.chat.endpoint import Endpoint, Reading, event_of
from mellea_like.gateway.chat.responses_request import chat_name, read_response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mellea_like.core.generation import Usage
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.fields import FieldRules
    from mellea_like.gateway.chat.responses_request import ResponsesRequest
    from mellea_like.gateway.refusal import Refusal

__all__ = ["Response", "Responses"]

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response isn't whole, by the finish reason."""


class Responses(Endpoint):
    """The endpoint."""

    def read(self, body: Mapping[str, Any], rules: FieldRules) -> Reading:
        """Read a request, or refuse it."""
        own, chat = read_response(body, rules)
        return Reading(chat, partial(Response, asked=own), _failed, chat_name)


def _failed(refusal: Refusal) -> bytes:
    error = refusal.error
    named = {name: error[name] for name in ("code", "message", "param")}
    # An event of type error, and the error as OpenAI's clients look for it in any stream.
    return event_of({"type": "error", "sequence_number": 0, **named, "error": error}, "error")


class Response(Answer):
    """What OpenAI calls a response."""

    def __init__(self, *given: Any, asked: ResponsesRequest) -> None:
        super().__init__(*given)
        self._asked = asked
        self._id = f"resp_{secrets.token_hex(24)}"
        [choice] = self.shown
        self._why = INCOMPLETE.get(finish_reason(choice.reply))
        self._status = "completed" if self._why is None else "incomplete"
        self._output = _items(choice.reply, self._status)

    def whole(self) -> dict[str, Any]:
        """Write the response."""
        return self._response(self._status, self._output)

    def events(self) -> Iterator[bytes]:
        """Write the events of a streamed response."""
        for number, (kind, fields) in enumerate(self._events()):
            yield event_of({"type": kind, "sequence_number": number, **fields}, kind)

    def _events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        begun = self._response("in_progress", [])
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        for index, item in enumerate(self._output):
            yield from _events_of(index, item)
        yield f"response.{self._status}", {"response": self.whole()}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        asked = self._asked
        begun = status == "in_progress"
        cut = None if begun or self._why is None else {"reason": self._why}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort, "summary": None},
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": {"type": "text"}, **asked.text.sent},
            "tool_choice": asked.sent.get("tool_choice", "auto"),
            "tools": [{"parameters": {}, "strict": None, **tool.sent} for tool in asked.tools],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None if begun else _usage(self.usage),
            **({} if begun else {"mellea_like": self.summary}),
        }


def _usage(usage: Usage) -> dict[str, Any]:
    cached, thought = usage.cached_input_tokens, usage.reasoning_tokens
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.total_tokens,
    }


def _items(reply: Slice, status: str) -> list[dict[str, Any]]:
    """Write what a reply says as the items of a response."""

    def item(prefix: str, kind: str, **fields: Any) -> dict[str, Any]:
        made = {"id": f"{prefix}_{secrets.token_hex(24)}", "type": kind, "status": status}
        return {**made, **fields}

    said, items = message_of(reply), list[dict[str, Any]]()
    if thought := generated(reply).reasoning:
        content = [{"type": "reasoning_text", "text": thought}]
        items.append(item("rs", "reasoning", summary=[], content=content))
    if said["refusal"] is not None:
        part = {"type": "refusal", "refusal": said["refusal"]}
        items.append(item("msg", "message", role="assistant", content=[part]))
    elif said["content"] is not None:
        tokens = tokens_of(reply)
        part = {"type": "output_text", "text": said["content"]}
        part |= {"annotations": [], "logprobs": tokens}
        items.append(item("msg", "message", role="assistant", content=[part]))
    for call in said.get("tool_calls", ()):
        items.append(item("fc", "function_call", call_id=call["id"], **call["function"]))
    return items


def _events_of(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Write the events of one item, from its beginning to its end."""
    where: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    begun = {**item, "status": "in_progress"}
    match item["type"]:
        case "function_call":
            begun["arguments"] = ""
        case _:
            begun["content"] = []
    yield "response.output_item.added", {"output_index": index, "item": begun}
    if item["type"] == "function_call":
        arguments = item["arguments"]
        kind = "response.function_call_arguments"
        yield f"{kind}.delta", {**where, "delta": arguments}
        yield f"{kind}.done", {**where, "name": item["name"], "arguments": arguments}
    else:
        for position, part in enumerate(item["content"]):
            yield from _events_of_part({**where, "content_index": position}, part)
    yield "response.output_item.done", {"output_index": index, "item": item}


def _events_of_part(
    where: dict[str, Any], part: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = part["type"]
    name = "refusal" if kind == "refusal" else "text"
    begun, tokens = {**part, name: ""}, {}
    if kind == "output_text":
        begun["logprobs"] = []
        tokens = {"logprobs": part["logprobs"]}
    yield "response.content_part.added", {**where, "part": begun}
    yield f"response.{kind}.delta", {**where, "delta": part[name], **tokens}
    yield f"response.{kind}.done", {**where, name: part[name], **tokens}
    yield "response.content_part.done", {**where, "part": part}
