"""OpenAI's Responses API: writing requests, and reading streamed responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mellea_like.backends.openai_chat import request_fields
from mellea_like.backends.openai_events import ServerError, from_event
from mellea_like.backends.openai_reply import Gathered, as_text, as_tokens, is_end, read_usage
from mellea_like.core.conversation import joined_text
from mellea_like.core.parts import File, Image, Text
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mellea_like.backends.output_mode import Demand
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message
    from mellea_like.core.parts import Part

USAGE = ("input_tokens", "output_tokens")

FINISH_REASONS = {"max_output_tokens": "length"}
"""The reasons why a response is incomplete, with their names in the chat protocol."""

# --- what is sent ---------------------------------------------------------------------------------


def responses_body(
    request: Request,
    options: Options,
    model: str,
    *,
    official: bool,
    output: Demand | None = None,
) -> dict[str, Any]:
    """Return the body of a Responses API request, without the seed."""
    if options.stop:
        msg = "the Responses API has no stop texts: leave out the option stop, or use api='chat'"
        raise InvalidRequest(msg)
    messages = request.messages if output is None else output.messages
    body: dict[str, Any] = {
        "model": model,
        "input": [item for message in messages for item in _items(message)],
        "stream": True,
        "store": False,
    }
    fields = request_fields(request, options, official=official, output=output)
    extra = dict(options.extra)
    for name, value in fields.items():
        match name:
            case "max_tokens" | "max_completion_tokens":
                body["max_output_tokens"] = value
            case "response_format":
                text: Any = extra.pop("text", None) or {}
                known = isinstance(text, Mapping)
                body["text"] = {"format": _flat(value), **text} if known else text
            case "tools":
                # By default, the chat protocol's tools aren't strict, but these are.
                body["tools"] = [{"strict": False, **_flat(tool)} for tool in value]
            case "tool_choice":
                body["tool_choice"] = value if isinstance(value, str) else _flat(value)
            case "seed":
                pass
            case _:
                body[name] = value
    return {**body, **extra}


def _flat(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``{"type": "function", "function": {...}}`` to ``{"type": "function", ...}``."""
    kind = typed["type"]
    return {"type": kind, **typed.get(kind, {})}


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message as input items of the Responses API, without its name and its reasoning."""
    content = message.content
    if message.role == "tool":
        output = content if isinstance(content, str) else [_part(part) for part in content]
        yield {
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": output,
        }
        return
    if message.role == "assistant" and not isinstance(content, str):
        content = joined_text(content)
    if content or not message.tool_calls:
        written = content if isinstance(content, str) else [_part(part) for part in content]
        yield {"role": message.role, "content": written}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            url = part.as_dict()["image_url"]["url"]
            return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
        case File():
            return {"type": "input_file", **part.as_dict()["file"]}
        case _:
            msg = "the Responses API doesn't support audio: use api='chat'"
            raise InvalidRequest(msg)


# --- what comes -----------------------------------------------------------------------------------


class Response(Gathered):
    """Collects a response of the Responses API while the response is received."""

    _summary = 0
    """The index of the latest part of the reasoning summary."""

    def read(self, data: bytes) -> str:
        """Read one event; return the text that it adds to the reply."""
        if is_end(data):  # Servers other than OpenAI's send this.
            return ""
        event = from_event(data)
        try:
            if event.get("error") or event["type"] == "error":
                raise ServerError(event.get("error") or event)
            return self._take(event["type"], event)
        except (AttributeError, TypeError, KeyError) as exc:
            msg = "it isn't an event of a response"
            raise ValueError(msg) from exc

    def take_whole(self, response: Mapping[str, Any]) -> None:
        """Read a response that wasn't streamed."""
        try:
            status = response["status"]
            if response.get("error") or status not in ("completed", "incomplete"):
                raise ServerError(response.get("error") or {"message": f"it is {status}"})
            self._end(response, "stop" if status == "completed" else "length")
        except (AttributeError, TypeError, KeyError) as exc:
            msg = "it isn't a response"
            raise ValueError(msg) from exc

    def _take(self, kind: str, event: Mapping[str, Any]) -> str:
        match kind:
            case "response.output_text.delta":
                self._logprobs += as_tokens(event.get("logprobs") or ())
                return self._said(as_text(event["delta"]))
            case "response.refusal.delta":
                return self._said("", as_text(event["delta"]))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                part = event.get("summary_index", 0)
                parted = "\n\n" if part != self._summary else ""
                self._summary = part
                self._said("", "", parted + as_text(event["delta"]))
            case "response.function_call_arguments.delta":
                return self._called(event["output_index"], "", "", as_text(event["delta"]))
            case "response.output_item.added" | "response.output_item.done":
                return self._take_item(event["output_index"], event["item"])
            case "response.completed":
                return self._end(event["response"], "stop")
            case "response.incomplete":
                return self._end(event["response"], "length")
            case "response.failed" | "response.cancelled":
                failed: Mapping[str, Any] = event["response"]
                read_usage(self._meter, failed.get("usage"), final=True, names=USAGE)
                raise ServerError(failed.get("error") or {"message": kind})
            case "response.created":
                self._model = as_text(event["response"].get("model")) or self._model
            case _:
                pass
        return ""

    def _take_item(self, index: int, item: Mapping[str, Any]) -> str:
        """Read an output item, which is either just begun or complete; return the text it adds."""
        self.began = True
        if item["type"] != "function_call":
            return ""
        call = self._call_of(index, "", "")
        call.id = call.id or as_text(item.get("call_id"))
        # These are all of the arguments, or none yet. The pieces received so far are their
        # beginning.
        rest = as_text(item.get("arguments"))[call.received :]
        return self._called(index, "", as_text(item["name"]), rest)

    def _end(self, response: Mapping[str, Any], reason: str) -> str:
        """Read the whole response, which repeats earlier pieces; return the text that is new."""
        if response.get("error"):  # Some servers mark every response as completed.
            read_usage(self._meter, response.get("usage"), final=True, names=USAGE)
            raise ServerError(response["error"])
        piece = ""
        self._model = as_text(response.get("model")) or self._model
        spoke, thought = self._text.tell(), self._reasoning.tell()
        called = {call.id for call in self._calls}
        output: Any = response.get("output") or ()
        for index, item in enumerate(output):
            if item["type"] == "message" and not spoke:
                for part in item["content"]:
                    piece += self._said(as_text(part.get("text")), as_text(part.get("refusal")))
            elif item["type"] == "reasoning" and not thought:
                parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
                self._said("", "", "\n\n".join(as_text(part.get("text")) for part in parts))
            elif not called or (item.get("call_id") or "") not in {"", *called}:
                piece += self._take_item(index, item)
        details: Mapping[str, Any] = response.get("incomplete_details") or {}
        told = as_text(details.get("reason"))
        piece += self._finish(FINISH_REASONS.get(told, told) or reason)
        self.began = self.done = True
        read_usage(self._meter, response.get("usage"), final=True, names=USAGE)
        return piece
