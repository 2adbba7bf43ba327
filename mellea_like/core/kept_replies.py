"""Requests and replies as JSON, for files that keep replies so that no request is sent twice."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import Options, innermost
from mellea_like.core.extra import NO_EXTRA, as_extra
from mellea_like.core.format import json_schema
from mellea_like.core.generation import Generation, TokenLogprob
from mellea_like.core.tools import ToolCall

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Usage

_OPTIONS = tuple(Options.__dataclass_fields__)


def described_backend(backend: Backend) -> str:
    """Return a string that identifies a backend. Interchangeable backends have the same string."""
    inside: Any = innermost(backend)
    if several := getattr(inside, "backends", None):  # They replace each other in outages.
        return " or ".join(map(described_backend, several))
    provider = getattr(inside, "provider", type(inside).__name__)
    # Our llama.cpp server has another port each time.
    url = "" if provider == "llama.cpp" else getattr(inside, "base_url", "")
    return f"{provider} {getattr(inside, 'model', None)} {url}"


def described_request(request: Request, defaults: Options) -> dict[str, Any]:
    """Return everything that shapes the reply to a request, except the backend and the draw."""
    options = request.options.over(defaults)
    asked: dict[str, Any] = {
        "messages": [message.as_dict() for message in request.messages],
        "options": {**{name: getattr(options, name) for name in _OPTIONS}, "extra": None},
        "extra": dict(options.extra),
        "format": None if request.format is None else json_schema(request.format),
        "purpose": request.meta.purpose,
    }
    if request.tools:
        tools = [tool.as_dict() for tool in request.tools]
        asked |= {"tools": tools, "tool_choice": request.tool_choice}
    return asked


def written_reply(reply: Generation) -> str | None:
    """Return a reply as JSON; None if JSON can't express it."""
    plain: dict[str, Any] = {
        "text": reply.text,
        "model": reply.model,
        "finish_reason": reply.finish_reason,
    }
    if reply.has_value:
        plain |= {"value": reply.value, "parsed": reply.parsed}
    plain |= {n: said for n in ("refusal", "reasoning") if (said := getattr(reply, n)) is not None}
    if reply.tool_calls:
        plain["tool_calls"] = [[c.id, c.name, c.arguments] for c in reply.tool_calls]
        if any(c.extra for c in reply.tool_calls):
            plain["call_extras"] = [dict(c.extra) for c in reply.tool_calls]
    if extra := {place: its for place, its in reply.extra.items() if place != "usage"}:
        plain["extra"] = extra
    if reply.logprobs:
        plain["logprobs"] = [
            [text, logprob, [list(other) for other in alternatives]]
            for text, logprob, alternatives in reply.logprobs
        ]
    with suppress(TypeError, ValueError, RecursionError):
        written = json.dumps(plain)
        if json.loads(written) == plain:
            return written
    return None


def read_reply(written: str, usage: Usage) -> Generation:
    """Read a reply that `written_reply` wrote, and give it the cost ``usage``."""
    plain = json.loads(written)
    text, model, ended = plain["text"], plain["model"], plain["finish_reason"]
    if not isinstance(text, str):
        raise TypeError(text)
    value, parsed = plain.get("value"), plain.get("parsed", False)
    logprobs = tuple(
        TokenLogprob(token, logprob, tuple((other, its) for other, its in alternatives))
        for token, logprob, alternatives in plain.get("logprobs", ())
    )
    named = plain.get("tool_calls", ())
    extras = plain.get("call_extras") or [NO_EXTRA] * len(named)
    calls = tuple(ToolCall(*c, extra=its) for c, its in zip(named, extras, strict=True))
    kept: dict[str, Any] = {"parsed": parsed, "logprobs": logprobs, "tool_calls": calls}
    kept |= {name: plain.get(name) for name in ("refusal", "reasoning")}
    kept["extra"] = as_extra(plain.get("extra", NO_EXTRA), "a reply")
    return Generation(text, value, usage, model, ended, **kept)
