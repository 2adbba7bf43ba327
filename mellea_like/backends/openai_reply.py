"""Streamed replies of OpenAI's chat protocol, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

from mellea_like.backends.openai_events import ReplyTooLongError, ServerError, from_event
from mellea_like.backends.openai_extra import FurtherFields
from mellea_like.backends.output_mode import reply_text
from mellea_like.core.backend import CallPiece
from mellea_like.core.extra import NO_EXTRA, Extra
from mellea_like.core.generation import CALLS, Generation, RequestMeter, TokenLogprob
from mellea_like.core.tools import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mellea_like.backends.output_mode import OutputTool

CHAT_USAGE = ("prompt_tokens", "completion_tokens")
"""The names of the chat protocol's fields for the counts of input and output tokens."""

FAILED = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
"""The finish reasons of replies that the server broke off.

Mistral and vLLM have ``error``, vLLM and SGLang ``abort``, DeepSeek has
``insufficient_system_resource``, and Z.ai has ``network_error``.
"""

FILTERED = "sensitive"
"""Z.ai's name for the finish reason ``content_filter``."""


@dataclass(slots=True)
class _Call:
    """A tool call that is being received."""

    index: int | None
    id: str
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)
    received: int = 0
    """The number of characters of the call's arguments that were received so far.

    Those that were moved to the reply's text are included.
    """
    further: FurtherFields = field(default_factory=FurtherFields)


class Gathered:
    """Collects a reply while it is received; a base class for the readers of all protocols."""

    def __init__(
        self,
        meter: RequestMeter,
        model: str | None = None,
        max_characters: float = math.inf,
        output: OutputTool | None = None,
    ) -> None:
        self._meter = meter
        self._output = output
        self._max_characters = max_characters
        self._calls: list[_Call] = []
        self._characters = 0
        self._text = StringIO()
        self._refusal = StringIO()
        self._reasoning = StringIO()
        self._model = model
        self._finish_reason: str | None = None
        self._logprobs: list[TokenLogprob] = []
        self._further = FurtherFields()
        self.counted = 0
        """The estimated number of tokens received: one for each chunk."""
        self.done = False
        self.began = False
        self.failure: ServerError | None = None
        """The server's error, if the finish reason says that there was one."""
        self.call_pieces: list[CallPiece] | None = None
        """The pieces of tool calls that the caller hasn't taken yet; None if the caller doesn't
        want any."""

    @property
    def ended(self) -> bool:
        """Whether the server has sent the finish reason."""
        return self._finish_reason is not None

    @property
    def whole(self) -> bool:
        """Whether the reply is complete."""
        return self.began and (self.done or self.ended)

    def generation(self) -> Generation:
        """Return the reply received so far."""
        return Generation(
            self._text.getvalue(),
            None,
            self._meter.usage,
            self._model,
            self._finish_reason,
            logprobs=tuple(self._logprobs),
            tool_calls=tuple(
                # Some servers give calls no ids, but the messages that answer calls need them.
                ToolCall(
                    call.id or f"call_{number}",
                    call.name,
                    call.arguments.getvalue(),
                    extra=_of_call(call.further.extra),
                )
                for number, call in enumerate(self._calls)
                if call.name
            ),
            refusal=self._refusal.getvalue() or None,
            reasoning=self._reasoning.getvalue() or None,
            extra=self._further.extra,
        )

    def _said(self, content: str, refusal: str = "", thought: str = "") -> str:
        """Add a piece of text, refusal or reasoning; return the part that counts as text."""
        piece = content + refusal
        if piece or thought:
            self._reasoning.write(thought)
            self._text.write(piece)
            self._refusal.write(refusal)
            self._count(len(piece) + len(thought))
        return piece

    def _called(
        self,
        index: int | None,
        id_: str,
        name: str,
        arguments: str,
        further: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a piece of a tool call; return its text if it is of an unwrapped output tool."""
        self._count(len(name) + len(arguments))
        call = self._call_of(index, id_, name)
        if further is not None:
            call.further.take("call", further)
            call.further.take("function", further.get("function") or {})
        if name != call.name:  # Some servers repeat the name.
            call.name += name
        call.received += len(arguments)
        call.arguments.write(arguments)
        output = self._output
        if output is None or output.wrapped or call.name != output.name:
            if self.call_pieces is not None:
                number = next(i for i, each in enumerate(self._calls) if each is call)
                self.call_pieces.append(CallPiece(number, call.name, arguments))
            return ""
        text = call.arguments.getvalue()
        call.arguments = StringIO()
        self._text.write(text)
        return text

    def _call_of(self, index: int | None, id_: str, name: str) -> _Call:
        """Return the call that a piece belongs to, or a new one.

        Some servers send no index, or the same index for all calls. So a new id begins a new call.
        If a piece has neither an index nor an id, but a name, it also begins a new call.
        """
        for call in reversed(self._calls):
            if call.index == index and (not id_ or call.id in ("", id_)):
                if index is None and not id_ and name:
                    break
                call.id = call.id or id_
                return call
        call = _Call(index, id_)
        self._calls.append(call)
        return call

    def _finish(self, reason: str | None) -> str:
        """Record the finish reason; return the text of a wrapped output tool, known only now."""
        if reason in FAILED:
            self.failure = ServerError(reason)
        elif reason == FILTERED:
            reason = "content_filter"
        text = ""
        if self._output is not None and self._calls:
            tool, calls, self._calls = self._output, self._calls, []
            for call in calls:
                if call.name != tool.name:
                    self._calls.append(call)
                elif tool.wrapped:
                    text += reply_text(tool, call.arguments.getvalue())
            self._text.write(text)
            if reason in CALLS and not self._calls:
                reason = "stop"
        if not all(call.name for call in self._calls):
            msg = "a tool call has no name"
            raise ValueError(msg)
        if self._calls and reason in (None, "stop"):
            # A forced call ends with "stop", and some servers end all calls so.
            reason = "tool_calls"
        self._finish_reason = "refusal" if self._refusal.tell() else reason
        return text

    def _count(self, characters: int) -> None:
        # Servers send about one chunk per token; the usage at the end corrects this.
        self.began = True
        self.counted += 1
        self._meter.update(output_tokens=self.counted)
        self._characters += characters
        if self._characters > self._max_characters:
            msg = f"a reply longer than {self._max_characters:,} characters"
            raise ReplyTooLongError(msg)


class Reply(Gathered):
    """Collects a reply of the chat protocol while it is received."""

    def __init__(
        self,
        meter: RequestMeter,
        model: str | None = None,
        max_characters: float = math.inf,
        output: OutputTool | None = None,
        *,
        index: int = 0,
    ) -> None:
        super().__init__(meter, model, max_characters, output)
        self._index = index
        self._thinks_as: set[str] = set()

    def generation(self) -> Generation:
        """Return the reply received so far."""
        made = super().generation()
        if self._thinks_as != {"reasoning"}:
            return made
        # A server expects reasoning back under the name that it used.
        message = {**made.extra.get("message", {}), "reasoning": made.reasoning}
        return replace(made, extra=Extra({**made.extra, "message": message}))

    def read(self, data: bytes) -> str:
        """Read one event; return the text that it adds to the reply."""
        if is_end(data):
            return self.end()
        return self._take_chunk(from_event(data))

    def take_whole(self, completion: Mapping[str, Any]) -> None:
        """Read a completion that wasn't streamed, as if its message were a single chunk."""
        try:
            choices = [{**choice, "delta": choice["message"]} for choice in completion["choices"]]
        except (TypeError, KeyError) as exc:
            raise _NoChunkError from exc
        self._take_chunk({**completion, "choices": choices})
        if not self.began:
            raise _NoChunkError
        self.end()
        if self.failure is not None:
            raise self.failure

    def _take_chunk(self, chunk: Any) -> str:
        try:
            piece = self.take(chunk)
            if usage := _usage_in(chunk):
                read_usage(self._meter, usage, final=self.ended)
                if isinstance(usage, dict):
                    self._further.take("usage", cast("dict[str, Any]", usage))
        except (AttributeError, TypeError, KeyError) as exc:
            raise _NoChunkError from exc
        return piece

    def end(self) -> str:
        """Record that the stream has ended; return the text that the reply still lacked, or ""."""
        self.done = True
        return self._finish(self._finish_reason)

    def take(self, chunk: Any) -> str:
        """Read the parts of a chunk that belong to this reply; return the text that they add."""
        if chunk.get("error"):
            raise ServerError(chunk["error"])
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        self._further.take("reply", chunk)
        piece = ""
        for choice in chunk["choices"] or ():
            if (choice.get("index") or 0) == self._index:
                self.began = True
                piece += self._read_choice(choice)
        return piece

    def _read_choice(self, choice: Mapping[str, Any]) -> str:
        delta: Mapping[str, Any] = choice.get("delta") or {}
        self._further.take("choice", choice)
        self._further.take("message", delta)
        name = "reasoning_content" if delta.get("reasoning_content") else "reasoning"
        thought = delta.get(name)
        if thought:
            self._thinks_as.add(name)
        content, thoughts = _text_and_thoughts(delta.get("content"))
        piece = self._said(
            content,
            as_text(delta.get("refusal")),
            thought if isinstance(thought, str) else thoughts,
        )
        if known := choice.get("logprobs"):
            self._logprobs += as_tokens(known.get("content") or ())
        for call in delta.get("tool_calls") or ():
            piece += self._read_call(call)
        if delta.get("function_call"):
            piece += self._read_call({"function": delta["function_call"]})
        if reason := choice.get("finish_reason"):  # Before the end, some servers send "".
            piece += self._finish(str(reason))
        return piece

    def _read_call(self, piece: Mapping[str, Any]) -> str:
        part: Mapping[str, Any] = piece.get("function") or {}
        name, arguments = as_text(part.get("name")), as_text(part.get("arguments"))
        index, id_ = piece.get("index"), as_text(piece.get("id"))
        return self._called(index, id_, name, arguments, piece)


class Replies:
    """Collects several replies to one request, whose chunks are interleaved.

    A reply that has ended is handed over at once if another reply is still arriving. Otherwise it
    may be the last reply, so it is kept until the usage arrives at the end of the stream.
    """

    def __init__(
        self,
        meter: RequestMeter,
        model: str | None,
        max_characters: float,
        output: OutputTool | None,
        choices: int,
    ) -> None:
        self._meter = meter
        self._replies = [
            Reply(RequestMeter(), model, max_characters, output, index=index)
            for index in range(choices)
        ]
        self._handed_over: set[int] = set()
        self.done = False

    @property
    def began(self) -> bool:
        """Whether any reply has begun."""
        return any(reply.began for reply in self._replies)

    @property
    def whole(self) -> bool:
        """Whether all replies that have begun are complete."""
        return self.began and all(reply.whole for reply in self._replies if reply.began)

    @property
    def failure(self) -> ServerError | None:
        """The server's error, if the finish reason of a reply says that there was one."""
        return next((reply.failure for reply in self._replies if reply.failure), None)

    def read(self, data: bytes) -> list[tuple[int, str | Generation]]:
        """Read one event; return new pieces and whole replies, each with the reply's index.

        A piece is empty if a reply begins, or continues with its reasoning.
        """
        if is_end(data):
            self.done = True
            return [(i, piece) for i, reply in enumerate(self._replies) if (piece := reply.end())]
        found: list[tuple[int, str | Generation]] = []
        chunk = from_event(data)
        try:
            for index, reply in enumerate(self._replies):
                before = reply.began, reply.counted
                piece = reply.take(chunk)
                if piece or before != (reply.began, reply.counted):
                    found.append((index, piece))
            counted = sum(reply.counted for reply in self._replies)
            self._meter.update(output_tokens=counted)
            final = all(reply.ended for reply in self._replies if reply.began)
            # llama.cpp reports the usage of the last choice only.
            read_usage(self._meter, _usage_in(chunk), final=final and self.began, least=counted)
        except (AttributeError, TypeError, KeyError) as exc:
            raise _NoChunkError from exc
        several = sum(reply.began for reply in self._replies) > 1
        if several and not all(reply.ended for reply in self._replies):
            found += self.generation()
        return found

    def generation(self) -> list[tuple[int, Generation]]:
        """Return the whole replies that have not been handed over yet."""
        ended = [
            (index, replace(reply.generation(), usage=self._meter.usage))
            for index, reply in enumerate(self._replies)
            if reply.whole and not reply.failure and index not in self._handed_over
        ]
        self._handed_over.update(index for index, _ in ended)
        return ended


def is_end(data: bytes) -> bool:
    """Return whether an event marks the end of the stream."""
    return data.strip() == b"[DONE]"


class _NoChunkError(ValueError):
    def __init__(self) -> None:
        super().__init__("it isn't a chunk of a chat reply")


def read_usage(
    meter: RequestMeter,
    usage: Any,
    *,
    final: bool,
    least: int = 0,
    names: tuple[str, str] = CHAT_USAGE,
) -> None:
    """Update or, with ``final``, settle a meter with the usage that a server reports, if valid."""
    if not isinstance(usage, dict):
        return
    counts = cast("dict[str, Any]", usage)
    sent, received = (counts.get(name) for name in names)
    if type(sent) is not int or type(received) is not int or sent < 0 or received < 0:
        return
    if type(total := counts.get("total_tokens")) is int:
        # Thoughts are output, but xAI and Google count them in the total only.
        received = max(received, total - sent)
    received = max(received, least)
    if not final:
        meter.update(input_tokens=sent, output_tokens=received)
        return
    meter.settle(
        input_tokens=sent,
        output_tokens=received,
        cached_input_tokens=_part(counts, f"{names[0]}_details", "cached_tokens", sent)
        or _part({"usage": usage}, "usage", "cached_tokens", sent),  # As Moonshot has it.
        reasoning_tokens=_part(counts, f"{names[1]}_details", "reasoning_tokens", received),
    )


def _usage_in(chunk: Mapping[str, Any]) -> Any:
    """Return a chunk's usage; Moonshot's server has it in the choice."""
    choices: Iterable[Mapping[str, Any]] = chunk["choices"] or ()
    return chunk.get("usage") or next((c["usage"] for c in choices if c.get("usage")), None)


def _part(counts: dict[str, Any], details: str, name: str, whole: int) -> int:
    """Return the number of tokens of one kind, or 0 if it is missing or exceeds ``whole``."""
    said: Any = counts.get(details)
    part = cast("dict[str, Any]", said).get(name) if isinstance(said, dict) else None
    return part if type(part) is int and 0 <= part <= whole else 0


def as_text(value: Any) -> str:
    """Return a text, or "" for None; raise `TypeError` for anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    msg = f"a text is {type(value).__name__}"
    raise TypeError(msg)


def _text_and_thoughts(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning of a content; Mistral's models that reason send parts."""
    if not isinstance(content, list):
        return as_text(content), ""
    parts = cast("list[dict[str, Any]]", content)
    thoughts = (part["thinking"] for part in parts if part["type"] == "thinking")
    return (
        "".join(as_text(part["text"]) for part in parts if part["type"] == "text"),
        "".join(as_text(part.get("text")) for thought in thoughts for part in thought),
    )


def _of_call(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the extra fields of a tool call in their original structure."""
    if not found:
        return NO_EXTRA
    inside = {"function": found["function"]} if "function" in found else {}
    return {**found.get("call", {}), **inside}


def as_tokens(entries: Iterable[Mapping[str, Any]]) -> Iterator[TokenLogprob]:
    """Yield tokens with their log-probabilities; those without one are left out."""
    for entry in filter(_has_logprob, entries):
        top = filter(_has_logprob, entry.get("top_logprobs") or ())
        others = tuple((as_text(other["token"]), float(other["logprob"])) for other in top)
        yield TokenLogprob(as_text(entry["token"]), float(entry["logprob"]), others)


def _has_logprob(entry: Mapping[str, Any]) -> bool:
    return entry.get("logprob") is not None
