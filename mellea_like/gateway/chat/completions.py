"""The endpoint ``/v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.chat.answer import (
    Answer,
    finish_reason,
    further_of,
    message_of,
    tokens_of,
    told,
    usage_of,
)
from mellea_like.gateway.chat.endpoint import event_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.chat.served_model import Choice, PreparedRequest, ReplyOutcome
    from mellea_like.gateway.refusal import Refusal


END = b"data: [DONE]\n\n"
"""The end of a streamed completion."""


class Completion(Answer):
    """An answer in the format of OpenAI's chat completions."""

    def __init__(self, request: ChatRequest, model: str, prepared: PreparedRequest) -> None:
        super().__init__(request, model, prepared)
        name = f"chatcmpl-{secrets.token_hex(12)}"
        self._frame: dict[str, Any] = {"id": name, "created": int(time.time()), "model": model}
        self._begun = False

    def take(self, outcomes: Sequence[ReplyOutcome]) -> None:
        """Take the replies, or raise a `Refusal` if there is none to show."""
        super().take(outcomes)
        if len(self.shown) == 1:
            self._frame = {**self._further(self.shown[0], "reply"), **self._frame}

    def whole(self) -> dict[str, Any]:
        """Return the completion."""
        choices = [
            {
                **self._further(choice, "choice"),
                "index": index,
                "message": message_of(choice.reply, further=self.prepared.carries),
                "logprobs": _logprobs(choice.reply),
                "finish_reason": finish_reason(choice.reply),
                "mellea_like": told(choice),
            }
            for index, choice in enumerate(self.shown)
        ]
        known = {"usage": self._spent(), "mellea_like": self.summary}
        return {**self._frame, "object": "chat.completion", "choices": choices, **known}

    def _further(self, choice: Choice, place: str) -> dict[str, Any]:
        return further_of(choice.reply, place) if self.prepared.carries else {}

    def _spent(self) -> dict[str, Any]:
        # The upstream's details are about one request, so they are used only if there was one.
        alone = self.usage.requests == 1
        return usage_of(self.usage, self._further(self.shown[0], "usage") if alone else {})

    def piece(self, text: str) -> bytes:
        """Return the chunk for a piece of the text. The first chunk also has the role."""
        role = {} if self._begun else {"role": "assistant"}
        self._begun = True
        return event_of(_chunk(self._frame, 0, {**role, "content": text}))

    def rest(self) -> bytes:
        """Return the chunks after the pieces, and the end of the stream."""
        return b"".join([*map(event_of, self._chunks()), END])

    def failed(self, refusal: Refusal) -> bytes:
        """Format a refusal as the last event of a stream that has begun."""
        return b"data: " + refusal.body() + b"\n\n"

    def _chunks(self) -> Iterator[dict[str, Any]]:
        for index, choice in enumerate(self.shown):
            if not self._begun:
                yield _chunk(self._frame, index, {"role": "assistant", "content": ""})
            message = message_of(choice.reply, further=self.prepared.carries, sent=self._begun)
            for delta in _deltas(message):
                chunk = _chunk(self._frame, index, delta)
                if "content" in delta:
                    if self._begun:
                        continue
                    chunk["choices"][0]["logprobs"] = _logprobs(choice.reply)
                yield chunk
            end = _chunk(self._frame, index, {}, finish_reason(choice.reply))
            [ended] = end["choices"]
            further = {**self._further(choice, "choice"), "mellea_like": told(choice)}
            ended |= {**further, **ended}
            if index == len(self.shown) - 1:
                end["mellea_like"] = self.summary
            yield end
        if self.request.stream_options.include_usage:
            yield {**_chunk(self._frame, 0, {}), "choices": [], "usage": self._spent()}


def _chunk(
    frame: Mapping[str, Any], index: int, delta: dict[str, Any], finish_reason: str | None = None
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**frame, "object": "chat.completion.chunk", "choices": [choice]}


DELTAS = ("reasoning_content", "reasoning", "content", "refusal")


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in DELTAS:
        if text := message.get(kind):
            yield {kind: text}
    if more := {n: v for n, v in message.items() if n not in (*DELTAS, "role", "tool_calls")}:
        yield more
    for index, call in enumerate(message.get("tool_calls", ())):
        # The first piece of a call has its name, and the next one its arguments.
        function = call["function"]
        named = {**call, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **named}]}
        arguments = {"arguments": function["arguments"]}
        yield {"tool_calls": [{"index": index, "function": arguments}]}


def _logprobs(reply: Slice) -> dict[str, Any] | None:
    tokens = tokens_of(reply)
    return {"content": tokens, "refusal": None} if tokens else None
