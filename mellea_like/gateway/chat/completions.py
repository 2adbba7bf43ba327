"""``/v1/chat/completions``."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mellea_like.gateway.chat.answer import (
    Answer,
    finish_reason,
    message_of,
    tokens_of,
    told,
    usage_of,
)
from mellea_like.gateway.chat.endpoint import Endpoint, Reading, event_of
from mellea_like.gateway.chat.request import read_chat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.fields import FieldRules
    from mellea_like.gateway.refusal import Refusal

__all__ = ["ChatCompletions", "Completion"]


class ChatCompletions(Endpoint):
    """The endpoint."""

    def read(self, body: Mapping[str, Any], rules: FieldRules) -> Reading:
        """Read a request, or refuse it."""
        request = read_chat(body, rules)
        write = partial(Completion, include_usage=request.stream_options.include_usage)
        return Reading(request, write, _failed)


def _failed(refusal: Refusal) -> bytes:
    return b"data: " + refusal.body() + b"\n\n"


class Completion(Answer):
    """What OpenAI calls a chat completion."""

    end: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(self, *given: Any, include_usage: bool) -> None:
        super().__init__(*given)
        self._include_usage = include_usage
        self._frame = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": self.created,
            "model": self.model,
        }

    def whole(self) -> dict[str, Any]:
        """Write a completion."""
        choices = [
            {
                "index": index,
                "message": message_of(choice.reply),
                "logprobs": _logprobs(choice.reply),
                "finish_reason": finish_reason(choice.reply),
                "mellea_like": told(choice),
            }
            for index, choice in enumerate(self.shown)
        ]
        known = {"usage": usage_of(self.usage), "mellea_like": self.summary}
        return {"object": "chat.completion", **self._frame, "choices": choices, **known}

    def events(self) -> Iterator[bytes]:
        """Write the chunks of a streamed completion."""
        return map(event_of, self._chunks())

    def _chunks(self) -> Iterator[dict[str, Any]]:
        for index, choice in enumerate(self.shown):
            yield self._chunk(index, {"role": "assistant", "content": ""})
            for delta in _deltas(choice.reply):
                chunk = self._chunk(index, delta)
                if "content" in delta:
                    chunk["choices"][0]["logprobs"] = _logprobs(choice.reply)
                yield chunk
            last = self._chunk(index, {}, finish_reason(choice.reply))
            last["choices"][0]["mellea_like"] = told(choice)
            if index == len(self.shown) - 1:
                last["mellea_like"] = self.summary
            yield last
        if self._include_usage:
            yield {**self._chunk(0, {}), "choices": [], "usage": usage_of(self.usage)}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {"object": "chat.completion.chunk", **self._frame, "choices": [choice]}


def _deltas(reply: Slice) -> Iterator[dict[str, Any]]:
    message = message_of(reply)
    for kind in ("reasoning_content", "content", "refusal"):
        if text := message.get(kind):
            yield {kind: text}
    for index, call in enumerate(message.get("tool_calls", ())):
        # The first piece of a call names it, the next has what it is called with.
        function = call["function"]
        named = {**call, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": index, **named}]}
        arguments = {"arguments": function["arguments"]}
        yield {"tool_calls": [{"index": index, "function": arguments}]}


def _logprobs(reply: Slice) -> dict[str, Any] | None:
    tokens = tokens_of(reply)
    return {"content": tokens, "refusal": None} if tokens else None
