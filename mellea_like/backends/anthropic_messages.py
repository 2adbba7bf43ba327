"""Anthropic's Messages API as plain data: writing and checking requests, and reading replies.

Anthropic checks a job's requests only when they run. So this module refuses, in advance, each
request that the API would refuse according to its documentation
(https://platform.claude.com/docs/en/api/messages).
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mellea_like.backends.openai_reply import Gathered, as_text
from mellea_like.core.conversation import joined_text
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.core.tools import resendable
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.backends.output_mode import Demand
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message
    from mellea_like.core.generation import RequestMeter
    from mellea_like.core.parts import Part
    from mellea_like.core.tools import ToolCall

IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")

MOST_IMAGE_BYTES = 10 * 2**20
"""The largest image, in base64
(https://platform.claude.com/docs/en/build-with-claude/vision#general-limits)."""

SAMPLING = ("temperature", "top_p", "top_k")
"""Options that the API has refused, whatever their values, since its version 2026-10-21. The SDK
has asked for that version since its own release 2.0
(https://platform.claude.com/docs/en/api/versioning)."""

LACKING = {"seed": "seeds", "speed": "fast mode in batches"}

LEAST_THINKING = 1024
"""The smallest budget for thinking, in tokens
(https://platform.claude.com/docs/en/build-with-claude/extended-thinking)."""

CALL_ID = re.compile(r"[A-Za-z0-9_-]+")

CHOICES = {"auto": "auto", "required": "any", "none": "none"}

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",  # After several calls of a server's own tools.
    "tool_use": "tool_calls",
    "refusal": "refusal",
}


def _refuse(what: str) -> NoReturn:
    msg = f"Anthropic would refuse this request when its job runs: {what}"
    raise InvalidRequest(msg)


# --- what is sent ---------------------------------------------------------------------------------


def messages_body(
    request: Request,
    options: Options,
    model: str,
    *,
    output: Demand | None = None,
    sampling: bool = False,
    narrowed: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Return the body of a request, or raise `InvalidRequest` if the API would refuse it."""
    conversation = _Conversation(request.messages if output is None else output.messages)
    body: dict[str, Any] = {"model": model, "messages": conversation.turns}
    if system := "\n\n".join(filter(str.strip, conversation.system)):
        body["system"] = system
    given = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p")}
    given["stop_sequences"] = list(options.stop) or None
    given["seed"] = options.seed
    body |= {name: value for name, value in given.items() if value is not None}
    if request.tools:
        body["tools"] = [_tool(tool.as_dict()["function"]) for tool in request.tools]
    if (choice := request.tool_choice) is not None:
        kind = CHOICES.get(choice)
        body["tool_choice"] = {"type": kind} if kind else {"type": "tool", "name": choice}
    extra = dict(options.extra)
    if output is not None:
        _demand(body, output, narrowed, extra)
    body |= extra
    _check(body, sampling=sampling)
    return body


def _demand(
    body: dict[str, Any],
    output: Demand,
    narrowed: Callable[[dict[str, Any]], dict[str, Any]],
    extra: dict[str, Any],
) -> None:
    """Add to ``body`` the fields that ask for typed output."""
    match output.mode:
        case "json_schema":
            form = {"type": "json_schema", "schema": narrowed(output.schema)}
            body["output_config"] = {**(extra.pop("output_config", None) or {}), "format": form}
        case "tool" if (tool := output.tool) is not None:
            written = {"name": tool.name, "description": tool.description}
            body["tools"] = [
                *body.get("tools", ()),
                {**written, "input_schema": dict(tool.parameters)},
            ]
            forced = {"type": "tool", "name": tool.name}
            body["tool_choice"] = forced if tool.forced else {"type": "any"}
        case "json_object":
            _refuse(
                "it doesn't support output='json_object'; use 'json_schema', 'tool' or 'prompt'"
            )
        case _:
            pass


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function["parameters"]
    if parameters.get("type") != "object":
        _refuse(f"the parameters of the tool {function['name']} must have the type object")
    named = {key: function[key] for key in ("name", "description", "strict") if key in function}
    return {**named, "input_schema": parameters}


class _Conversation:
    """A conversation in the API's form: the system messages at its start, and then the turns."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.system: list[str] = []
        self.turns: list[dict[str, Any]] = []
        self._open_calls: set[str] = set()
        """The ids of tool calls that have no answers yet."""
        for number, message in enumerate(messages, 1):
            self._take(message, f"message {number} ({message.role})")
        self._refuse_open_calls()
        self._refuse_ends()

    def _take(self, message: Message, where: str) -> None:
        """Add a message; errors refer to it as ``where``."""
        if message.role == "system" and not self.turns:
            self.system.append(message.text)
        elif message.role == "tool":
            self._answer(message, where)
        else:
            self._refuse_open_calls()
            blocks = _blocks(message.content, where, model=message.role == "assistant")
            blocks += (self._call(call, where) for call in message.tool_calls)
            if not blocks:
                _refuse(f"{where} is empty")
            self._add(message.role, blocks)

    def _refuse_ends(self) -> None:
        if not self.turns or self.turns[0]["role"] != "user":
            _refuse("the first message must have the role 'user'")
        last = self.turns[-1]
        text: str = last["content"][-1].get("text", "")
        if last["role"] == "assistant" and text != text.rstrip():
            _refuse("the last message, which the reply continues, ends with whitespace")

    def _answer(self, message: Message, where: str) -> None:
        call = message.tool_call_id or ""
        if call not in self._open_calls:
            _refuse(f"{where} answers the call {call!r}, which isn't in the turn before it")
        self._open_calls.discard(call)
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call}
        if content := _blocks(message.content, where):
            block["content"] = content
        self._add("user", [block])

    def _call(self, call: ToolCall, where: str) -> dict[str, Any]:
        if not CALL_ID.fullmatch(call.id):
            _refuse(f"{where} has a call with the invalid id {call.id!r}")
        self._open_calls.add(call.id)
        arguments = json.loads(resendable(call).arguments)
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}

    def _refuse_open_calls(self) -> None:
        if self._open_calls:
            _refuse(
                f"calls aren't answered in the next turn: {', '.join(sorted(self._open_calls))}"
            )

    def _add(self, role: str, blocks: list[dict[str, Any]]) -> None:
        """Add blocks to the last turn if that turn has this role; otherwise begin a new turn."""
        if self.turns and self.turns[-1]["role"] == role:
            self.turns[-1]["content"] += blocks
        else:
            self.turns.append({"role": role, "content": blocks})


def _blocks(
    content: str | Sequence[Part], where: str, *, model: bool = False
) -> list[dict[str, Any]]:
    """Return a message's content as the API's blocks, without blank texts, which it refuses."""
    if model and not isinstance(content, str):
        content = joined_text(content)
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [
        _block(part, where)
        for part in content
        if not (isinstance(part, Text) and not part.text.strip())
    ]


def _block(part: Part, where: str) -> dict[str, Any]:
    match part:
        case Text():
            return {**part.extra, "type": "text", "text": part.text}
        case Image():
            return {**part.extra, "type": "image", "source": _picture(part, where)}
        case File():
            return {**part.extra, "type": "document", "source": _document(part, where)}
        case Audio():
            _refuse(f"{where} has audio, which isn't supported")


def _picture(image: Image, where: str) -> dict[str, Any]:
    if image.data is None:
        return {"type": "url", "url": image.url}
    kind = image.media_type or ""
    if kind not in IMAGES:
        _refuse(f"{where} has an image of the unsupported type {kind}")
    source = _source(image.data, kind)
    if len(source["data"]) > MOST_IMAGE_BYTES:
        _refuse(f"{where} has an image larger than {MOST_IMAGE_BYTES / 2**20:.0f} MB in base64")
    return source


def _document(file: File, where: str) -> dict[str, Any]:
    if file.data is None:
        return {"type": "file", "file_id": file.file_id}
    kind = file.media_type or ""
    if kind == "application/pdf":
        return _source(file.data, kind)
    if kind.startswith("text/"):
        text = file.data.decode(errors="replace")
        return {"type": "text", "media_type": "text/plain", "data": text}
    _refuse(f"{where} has a file of the type {kind}; only PDF and text files are supported")


def _source(data: bytes, media_type: str) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode("ascii")
    return {"type": "base64", "media_type": media_type, "data": encoded}


def _check(body: Mapping[str, Any], *, sampling: bool) -> None:
    """Raise `InvalidRequest` if Anthropic would refuse the body when the job runs."""
    for name in () if sampling else SAMPLING:
        if name in body:
            _refuse(f"its API has not supported {name} since 2026-10-21; leave the option out")
    most = body.get("max_tokens")
    if type(most) is not int or most < 1:
        _refuse(f"max_tokens must be a positive integer, not {most!r}; set the option max_tokens")
    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= 1:
        _refuse(f"temperature must be between 0 and 1, not {temperature}")
    for text in body.get("stop_sequences") or ():
        if not str(text).strip():
            _refuse(f"stop texts can't be only whitespace, like {text!r}")
    for name, what in LACKING.items():
        if name in body:
            _refuse(f"it doesn't support {what}; leave {name} out of the options")
    _check_thinking(body, most)


def _check_thinking(body: Mapping[str, Any], most: int) -> None:
    thinking = body.get("thinking")
    if not isinstance(thinking, dict):
        return
    told = cast("dict[str, Any]", thinking)
    if told.get("type") == "enabled":
        budget = told.get("budget_tokens")
        if type(budget) is not int or not LEAST_THINKING <= budget < most:
            _refuse(
                f"thinking's budget_tokens must be at least {LEAST_THINKING} and less than"
                f" max_tokens, {most}, not {budget!r}"
            )
    if told.get("type") in ("enabled", "adaptive"):
        choice: Any = body.get("tool_choice") or {}
        if body.get("temperature") not in (None, 1):
            _refuse("thinking works only with a temperature of 1")
        if choice.get("type") in ("any", "tool"):
            _refuse("thinking can't be combined with a tool that must be called")


# --- what comes -----------------------------------------------------------------------------------


class MessageReply(Gathered):
    """Reads a reply that wasn't streamed: one whole message of the API."""

    def take_whole(self, message: Mapping[str, Any]) -> None:
        """Read the text, the tool calls, the reasoning and the usage of a whole message."""
        self._model = as_text(message.get("model")) or self._model
        for index, block in enumerate(message["content"]):
            match block["type"]:
                case "text":
                    self._said(as_text(block["text"]))
                case "thinking":
                    self._said("", "", as_text(block["thinking"]))
                case "tool_use":
                    arguments = json.dumps(block["input"], ensure_ascii=False)
                    self._called(index, as_text(block["id"]), as_text(block["name"]), arguments)
                case _:
                    pass  # Such as thoughts that can't be read.
        reason = message["stop_reason"]
        self._finish(FINISH_REASONS.get(reason, reason))
        self.began = self.done = True
        count_message(message, self._meter)


def count_message(message: Mapping[str, Any], meter: RequestMeter) -> None:
    """Settle a meter with a message's usage; cached tokens count as input tokens, too."""
    usage = message.get("usage")
    counts = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    sent = [counts.get(name) or 0 for name in names]
    received = counts.get("output_tokens")
    if type(received) is not int or not all(type(n) is int and n >= 0 for n in sent):
        return
    details: Any = counts.get("output_tokens_details") or {}
    thought: Any = details.get("thinking_tokens") or 0
    meter.settle(
        input_tokens=sum(sent),
        output_tokens=received,
        cached_input_tokens=sent[2],
        reasoning_tokens=min(thought, received) if type(thought) is int else 0,
    )
