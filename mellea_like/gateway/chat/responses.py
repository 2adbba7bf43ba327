"""The endpoint ``/v1/responses``: text, function calls and typed output. It stores nothing."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.chat.answer import (
    Answer,
    finish_reason,
    generated,
    message_of,
    tokens_of,
)
from mellea_like.gateway.chat.endpoint import event_of
from mellea_like.gateway.chat.responses_tools import called_as
from mellea_like.gateway.chat.strict_fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mellea_like.core.generation import Usage
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.chat.responses_request import ResponsesRequest
    from mellea_like.gateway.chat.served_model import PreparedRequest, ReplyOutcome
    from mellea_like.gateway.refusal import Refusal

    Event = tuple[str, dict[str, Any]]

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Maps the finish reason of an incomplete reply to the Responses API's name for this reason."""


class ModelResponse(Answer):
    """An answer in the format of OpenAI's Responses API."""

    def __init__(self, request: ResponsesRequest, model: str, prepared: PreparedRequest) -> None:
        super().__init__(request, model, prepared)
        self._next = 0  # The number of the next event; 0 if nothing was sent.
        self._item = _message(_named("msg"), "in_progress", _text_part(""))
        self._where = {**_place(0, self._item), "content_index": 0}
        options, choice = prepared.options, request.tool_choice
        penalties = ("presence_penalty", "frequency_penalty")
        self._fields: dict[str, Any] = {
            "id": _named("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_completion_tokens,
            "max_tool_calls": None,
            "metadata": request.metadata,
            "model": model,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning.effort, "summary": None},
            "store": False,
            "background": False,
            "service_tier": "default",
            # OpenAI's defaults stand in for missing numbers.
            "temperature": 1.0 if options.temperature is None else options.temperature,
            "top_p": 1.0 if options.top_p is None else options.top_p,
            **{name: options.extra.get(name, 0.0) for name in penalties},
            "top_logprobs": request.top_logprobs,
            "text": request.text.echoed,
            "tool_choice": choice.sent if isinstance(choice, Fields) else choice or "auto",
            "tools": [tool.echoed for tool in request.tools if tool.echoed],
            "truncation": "disabled",
            **request.labels,
        }

    def _written(
        self, status: str, output: Sequence[dict[str, Any]] = (), **known: Any
    ) -> dict[str, Any]:
        """Return the whole response object. Fields in ``known`` replace its default values."""
        done = int(time.time()) if status == "completed" else None
        by_now: dict[str, Any] = {"status": status, "completed_at": done, "output": [*output]}
        return {**self._fields, **by_now, "incomplete_details": None, "usage": None, **known}

    def take(self, outcomes: Sequence[ReplyOutcome]) -> None:
        """Take the only reply, or raise a `Refusal` if there is none to show."""
        super().take(outcomes)
        [choice] = self.shown
        self._why = INCOMPLETE.get(finish_reason(choice.reply))
        self._status = "completed" if self._why is None else "incomplete"
        shown = self._item["id"] if self._next else None
        self._output = _items(choice.reply, self._status, self.request, shown)

    def whole(self) -> dict[str, Any]:
        """Return the response."""
        return self._written(
            self._status,
            self._output,
            incomplete_details=None if self._why is None else {"reason": self._why},
            usage=_usage(self.usage),
            mellea_like=self.summary,
        )

    def piece(self, text: str) -> bytes:
        """Return the events for a piece of the text. The first piece also begins the response."""
        events: list[Event] = []
        if not self._next:
            events += self._begun()
            events += _begun_item(0, self._item)
            events += _begun_part(self._where, self._item["content"][0])
        said = {"delta": text, "logprobs": list[Any]()}
        events.append(("response.output_text.delta", {**self._where, **said}))
        return self._numbered(events)

    def rest(self) -> bytes:
        """Return the events after the pieces."""
        sent = self._next > 0
        events: list[Event] = [] if sent else [*self._begun()]
        for index, item in enumerate(self._output):
            events += _rest_of_item(index, item, sent=sent and index == 0)
        events.append((f"response.{self._status}", {"response": self.whole()}))
        return self._numbered(events)

    def failed(self, refusal: Refusal) -> bytes:
        """Format a refusal as the last event of a stream that has begun."""
        error = refusal.error
        named = {name: error[name] for name in ("code", "message", "param")}
        # The event has the error where OpenAI's clients look for it in any stream, too.
        return self._numbered([("error", {**named, "error": error})])

    def _begun(self) -> Iterator[Event]:
        response = self._written("in_progress")
        yield "response.created", {"response": response}
        yield "response.in_progress", {"response": response}

    def _numbered(self, events: Iterable[Event]) -> bytes:
        """Format events, and number them within the stream."""
        lines: list[bytes] = []
        for kind, fields in events:
            lines.append(event_of({"type": kind, "sequence_number": self._next, **fields}, kind))
            self._next += 1
        return b"".join(lines)


def _usage(usage: Usage) -> dict[str, Any]:
    cached, thought = usage.cached_input_tokens, usage.reasoning_tokens
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.total_tokens,
    }


# --- its items -----------------------------------------------------------------------------------


def _named(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def _message(name: str, status: str, *content: dict[str, Any]) -> dict[str, Any]:
    item = {"id": name, "type": "message", "status": status, "role": "assistant"}
    return {**item, "content": [*content]}


def _text_part(text: str, tokens: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*tokens]}


def _items(
    reply: Slice, status: str, asked: ChatRequest, shown: str | None
) -> list[dict[str, Any]]:
    """Convert a reply to items. A message whose text was sent, with the id ``shown``, is first."""
    said = message_of(reply, sent=shown is not None)
    items: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    text, refusal = said["content"], said["refusal"]
    if text is not None:
        content.append(_text_part(text, tokens_of(reply)))
    if refusal is not None:
        content.append({"type": "refusal", "refusal": refusal})
    if thought := generated(reply).reasoning:
        parts = [{"type": "reasoning_text", "text": thought}]
        begun = {"id": _named("rs"), "type": "reasoning", "status": status}
        items.append({**begun, "summary": [], "content": parts})
    if content:
        message = _message(shown or _named("msg"), status, *content)
        items.insert(len(items) if shown is None else 0, message)
    for call in said.get("tool_calls", ()):
        fields = called_as(asked.all_functions, **call["function"])
        name = _named("fc" if fields["type"] == "function_call" else "ctc")
        items.append({"id": name, "status": status, "call_id": call["id"], **fields})
    return items


WRITTEN = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""Maps a call's type to the field that is streamed, and to the prefix of the event names."""


def _place(index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": index}


def _begun_item(index: int, item: dict[str, Any]) -> Iterator[Event]:
    """Yield the event that adds an item, with its content still empty."""
    field, _ = WRITTEN.get(item["type"], ("content", ""))
    nothing: Any = [] if field == "content" else ""
    begun = {**item, "status": "in_progress", field: nothing}
    yield "response.output_item.added", {"output_index": index, "item": begun}


def _rest_of_item(index: int, item: dict[str, Any], *, sent: bool) -> Iterator[Event]:
    """Yield an item's events, except for those of a text that was already ``sent``."""
    where = _place(index, item)
    if not sent:
        yield from _begun_item(index, item)
    if item["type"] in WRITTEN:
        field, kind = WRITTEN[item["type"]]
        named = {"name": item["name"]} if field == "arguments" else {}
        yield f"{kind}.delta", {**where, "delta": item[field]}
        yield f"{kind}.done", {**where, **named, field: item[field]}
    else:
        for position, part in enumerate(item["content"]):
            place = {**where, "content_index": position}
            name, tokens = _said_in(part)
            if position or not sent:
                yield from _begun_part(place, part)
                yield f"response.{part['type']}.delta", {**place, "delta": part[name], **tokens}
            yield f"response.{part['type']}.done", {**place, name: part[name], **tokens}
            yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _said_in(part: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the field with a part's text, and the part's ``logprobs``, if any."""
    name = "refusal" if part["type"] == "refusal" else "text"
    return name, {"logprobs": part["logprobs"]} if "logprobs" in part else {}


def _begun_part(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    name, tokens = _said_in(part)
    begun = {**part, name: ""}
    if tokens:
        begun["logprobs"] = []
    yield "response.content_part.added", {**place, "part": begun}
