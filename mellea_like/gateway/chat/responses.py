"""The endpoint ``/v1/responses``: text, function calls and typed output. It stores nothing."""

from __future__ import annotations

import secrets
import time
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
from mellea_like.gateway.chat.responses_request import name_of, read_response
from mellea_like.gateway.chat.responses_tools import called_as
from mellea_like.gateway.chat.strict_fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mellea_like.core.backend import Options
    from mellea_like.core.generation import Usage
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.responses_request import ResponsesRequest
    from mellea_like.gateway.chat.served_model import PreparedRequest, ReplyOutcome
    from mellea_like.gateway.fields import FieldRules
    from mellea_like.gateway.refusal import Refusal

    Event = tuple[str, dict[str, Any]]

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Maps the finish reason of an incomplete reply to the Responses API's name for this reason."""


class Responses(Endpoint):
    """The endpoint ``/v1/responses``."""

    def read(self, body: Mapping[str, Any], rules: FieldRules) -> Reading:
        """Parse a request; raise a `Refusal` if it is invalid."""
        asked = read_response(body, rules)
        # A text's log-probabilities are known only when it is complete.
        live = None if asked.logprobs else partial(LiveResponse, asked=asked)
        return Reading(asked, partial(Response, asked=asked), _failed, name_of, live)


def _failed(refusal: Refusal, number: int = 0) -> bytes:
    error = refusal.error
    named = {name: error[name] for name in ("code", "message", "param")}
    # This is an event of type error, with the error where OpenAI's clients look for it in any
    # stream.
    return event_of({"type": "error", "sequence_number": number, **named, "error": error}, "error")


# --- the response --------------------------------------------------------------------------------


class _Frame:
    """Builds response objects from the fields that stay the same while the status changes."""

    def __init__(self, model: str, asked: ResponsesRequest, options: Options) -> None:
        penalties = ("presence_penalty", "frequency_penalty")
        choice = asked.tool_choice
        self._fields: dict[str, Any] = {
            "id": _named("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_completion_tokens,
            "max_tool_calls": None,
            "metadata": asked.metadata,
            "model": model,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort, "summary": None},
            "store": False,
            "background": False,
            "service_tier": "default",
            # OpenAI's defaults stand in for missing numbers.
            "temperature": 1.0 if options.temperature is None else options.temperature,
            "top_p": 1.0 if options.top_p is None else options.top_p,
            **{name: options.extra.get(name, 0.0) for name in penalties},
            "top_logprobs": asked.top_logprobs,
            "text": asked.text.echoed,
            "tool_choice": choice.sent if isinstance(choice, Fields) else choice or "auto",
            "tools": [tool.echoed for tool in asked.tools if tool.echoed],
            "truncation": "disabled",
            **asked.labels,
        }

    def written(
        self, status: str, output: Sequence[dict[str, Any]] = (), **known: Any
    ) -> dict[str, Any]:
        """Return the whole response object. Fields in ``known`` replace its default values."""
        done = int(time.time()) if status == "completed" else None
        by_now: dict[str, Any] = {"status": status, "completed_at": done, "output": [*output]}
        return {**self._fields, **by_now, "incomplete_details": None, "usage": None, **known}

    def begun(self) -> Iterator[Event]:
        """Yield the events with which a stream begins."""
        response = self.written("in_progress")
        yield "response.created", {"response": response}
        yield "response.in_progress", {"response": response}


class _Numbered:
    """Formats events, and numbers them within the stream."""

    def __init__(self) -> None:
        self.next = 0

    def __call__(self, events: Iterable[Event]) -> Iterator[bytes]:
        for kind, fields in events:
            yield event_of({"type": kind, "sequence_number": self.next, **fields}, kind)
            self.next += 1


class Response(Answer):
    """An answer in the format of OpenAI's Responses API."""

    def __init__(
        self,
        model: str,
        prepared: PreparedRequest,
        outcomes: Sequence[ReplyOutcome],
        *,
        asked: ResponsesRequest,
        frame: _Frame | None = None,
        shown: str | None = None,
    ) -> None:
        super().__init__(model, prepared, outcomes)
        self._frame = frame or _Frame(model, asked, prepared.options)
        [choice] = self.shown
        self._why = INCOMPLETE.get(finish_reason(choice.reply))
        self._status = "completed" if self._why is None else "incomplete"
        self._output = _items(choice.reply, self._status, asked, shown)

    def whole(self) -> dict[str, Any]:
        """Return the response."""
        return self._frame.written(
            self._status,
            self._output,
            incomplete_details=None if self._why is None else {"reason": self._why},
            usage=_usage(self.usage),
            mellea_like=self.summary,
        )

    def events(self) -> Iterator[bytes]:
        """Return the events of a streamed response."""
        return _Numbered()([*self._frame.begun(), *self._events()])

    def rest(self) -> Iterator[Event]:
        """Yield the events that remain once the text has been sent piece by piece."""
        item, part = self._output[0], self._output[0]["content"][0]
        yield from _ended_part({**_place(0, item), "content_index": 0}, part)
        yield from _ended_item(0, item, after=1)
        yield from self._events(after=1)

    def _events(self, after: int = 0) -> Iterator[Event]:
        for index, item in enumerate(self._output[after:], after):
            yield from _begun_item(index, item)
            yield from _ended_item(index, item)
        yield f"response.{self._status}", {"response": self.whole()}


class LiveResponse:
    """A response that is sent while its reply arrives."""

    def __init__(self, model: str, prepared: PreparedRequest, *, asked: ResponsesRequest) -> None:
        self._given = (model, prepared)
        self._asked = asked
        self._frame = _Frame(model, asked, prepared.options)
        self._numbered = _Numbered()
        self._item = _message(_named("msg"), "in_progress", _text_part(""))
        self._where = {**_place(0, self._item), "content_index": 0}

    @property
    def begun(self) -> bool:
        """Whether anything has been sent."""
        return self._numbered.next > 0

    def piece(self, text: str) -> bytes:
        """Return the events for a piece of the text. The first piece also begins the response."""
        return b"".join(self._numbered(self._piece(text)))

    def _piece(self, text: str) -> Iterator[Event]:
        if not self.begun:
            yield from self._frame.begun()
            yield from _begun_item(0, self._item)
            yield from _begun_part(self._where, self._item["content"][0])
        yield "response.output_text.delta", {**self._where, "delta": text, "logprobs": []}

    def end(self, outcomes: Sequence[ReplyOutcome]) -> bytes:
        """Return the events after the text, or raise a `Refusal` if there is no reply to show."""
        shown = self._item["id"]
        answer = Response(*self._given, outcomes, asked=self._asked, frame=self._frame, shown=shown)
        return b"".join(self._numbered(answer.rest()))

    def failed(self, refusal: Refusal) -> bytes:
        """Format a refusal as the last event of the stream."""
        return _failed(refusal, self._numbered.next)


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
    reply: Slice, status: str, asked: ResponsesRequest, shown: str | None
) -> list[dict[str, Any]]:
    """Convert a reply to the items of a response.

    ``shown`` is the id of the message whose text was already sent, or None if nothing was sent. A
    message that was already sent is the first item.
    """
    made, said = generated(reply), message_of(reply)
    items: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    text, refusal = said["content"], said["refusal"]
    if shown is not None:
        text, refusal = made.text, None if refusal == made.text else refusal
    if text is not None:
        content.append(_text_part(text, tokens_of(reply)))
    if refusal is not None:
        content.append({"type": "refusal", "refusal": refusal})
    if thought := made.reasoning:
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


def _ended_item(index: int, item: dict[str, Any], after: int = 0) -> Iterator[Event]:
    """Yield the events for an item's parts, without the first ``after`` parts, and for its end."""
    where = _place(index, item)
    if item["type"] in WRITTEN:
        field, kind = WRITTEN[item["type"]]
        named = {"name": item["name"]} if field == "arguments" else {}
        yield f"{kind}.delta", {**where, "delta": item[field]}
        yield f"{kind}.done", {**where, **named, field: item[field]}
    else:
        for position, part in enumerate(item["content"][after:], after):
            place = {**where, "content_index": position}
            name, tokens = _said_in(part)
            yield from _begun_part(place, part)
            yield f"response.{part['type']}.delta", {**place, "delta": part[name], **tokens}
            yield from _ended_part(place, part)
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


def _ended_part(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    name, tokens = _said_in(part)
    yield f"response.{part['type']}.done", {**place, name: part[name], **tokens}
    yield "response.content_part.done", {**place, "part": part}
