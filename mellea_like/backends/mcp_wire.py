"""Requests and replies as the Model Context Protocol writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

try:
    import mcp_types as types
    from mcp.shared.exceptions import MCPError, NoBackChannelError
except ImportError as exc:  # pragma: no cover
    msg = "MCPSamplingBackend needs the official SDK: pip install 'mellea-like[mcp]'"
    raise ImportError(msg) from exc
from pydantic import ValidationError

from mellea_like.core.format import json_schema
from mellea_like.core.generation import Generation
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
)

if TYPE_CHECKING:
    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Usage
    from mellea_like.core.options import Options

__all__ = ["REFUSED", "error_of", "generation_of", "sampling_params"]

REFUSED = -1
"""The error code with which a client says that its user refused."""

EXTRA = {
    "include_context": "include_context",
    "includeContext": "include_context",
    "metadata": "metadata",
    "model_preferences": "model_preferences",
    "modelPreferences": "model_preferences",
}
"""What ``options.extra`` may hold, and what the SDK calls it."""

FINISH_REASONS = {"endTurn": "stop", "stopSequence": "stop", "maxTokens": "length"}

FORM = "Reply with JSON that fits this JSON Schema, and with nothing else:\n"


def sampling_params(request: Request, options: Options) -> types.CreateMessageRequestParams:
    """Write a request for sampling.

    System messages become the system prompt, wherever they stand. A seed is left out: it is a wish
    that this protocol has no word for.

    Args:
        request: what is wanted.
        options: its options, with what was left open filled in; the protocol wants ``max_tokens``.

    Returns:
        The request's parameters.

    Raises:
        InvalidRequest: it can't be said in this protocol.
    """
    system = [message.content for message in request.messages if message.role == "system"]
    wanted: Any = request.format
    if wanted is not None:
        schema = json.dumps(json_schema(wanted), ensure_ascii=False)
        system.append(FORM + schema)
    if len(request.messages) == sum(message.role == "system" for message in request.messages):
        msg = "a request for sampling over MCP needs a message besides those of the system"
        raise InvalidRequest(msg)
    if options.top_p is not None:
        msg = "MCP knows no top_p: leave it out, or put what the client understands into metadata"
        raise InvalidRequest(msg)
    said: dict[str, Any] = {"include_context": "none", **_extra(options)}
    if options.model is not None:
        preferences = dict(said.get("model_preferences") or {})
        preferences["hints"] = [{"name": options.model}, *(preferences.get("hints") or ())]
        said["model_preferences"] = preferences
    said["messages"] = [
        {"role": message.role, "content": {"type": "text", "text": message.content}}
        for message in request.messages
        if message.role != "system"
    ]
    said["max_tokens"] = options.max_tokens
    said["system_prompt"] = "\n\n".join(system) or None
    said["temperature"] = options.temperature
    said["stop_sequences"] = list(options.stop) or None
    try:
        return types.CreateMessageRequestParams.model_validate(said, by_name=True)
    except ValidationError as exc:
        wrong = ", ".join(sorted({".".join(map(str, error["loc"])) for error in exc.errors()}))
    msg = f"MCP does not take what options.extra says: {wrong}"
    raise InvalidRequest(msg)


def _extra(options: Options) -> dict[str, Any]:
    unknown = sorted(name for name in options.extra if name not in EXTRA)
    if unknown:
        msg = (
            f"MCPSamplingBackend can't send {', '.join(unknown)}: of options.extra it takes"
            " metadata, model_preferences and include_context"
        )
        raise InvalidRequest(msg)
    return {EXTRA[name]: value for name, value in options.extra.items()}


def generation_of(result: object, usage: Usage) -> Generation:
    """Read a client's reply.

    Args:
        result: what the client sent.
        usage: what is known of its cost.

    Returns:
        The reply.

    Raises:
        MalformedResponse: it is not the assistant's, or not text.
    """
    if isinstance(result, types.CreateMessageResult):
        blocks: list[Any] = [result.content]
    elif isinstance(result, types.CreateMessageResultWithTools):
        blocks = cast("list[Any]", result.content_as_list)
    else:
        msg = f"the MCP client sent {type(result).__name__} where a sampled message is wanted"
        raise MalformedResponse(msg, retryable=False)
    if result.role != "assistant":
        msg = f"the MCP client sent a message of the {result.role} where the assistant's is wanted"
        raise MalformedResponse(msg, retryable=False)
    for block in blocks:
        if not isinstance(block, types.TextContent):
            msg = f"the MCP client sent content of type {block.type!r}: only text can be read"
            raise MalformedResponse(msg, retryable=False)
    reason = result.stop_reason
    return Generation(
        "".join(block.text for block in blocks),
        None,
        usage,
        result.model,
        None if reason is None else FINISH_REASONS.get(reason, reason),
    )


def error_of(exc: Exception) -> BackendError:
    """Say what a failed request for sampling means.

    None is worth a retry by itself: that would show a person the same prompt again.

    Args:
        exc: what the SDK raised.

    Returns:
        The error to raise.
    """
    if isinstance(exc, ValidationError):
        wrong = ", ".join(sorted({".".join(map(str, error["loc"])) for error in exc.errors()}))
        msg = f"the MCP client's reply to a request for sampling can't be read: {wrong}"
        return MalformedResponse(msg, retryable=False)
    if isinstance(exc, NoBackChannelError):
        msg = "the call of the MCP tool that this backend was made for has ended"
        return BackendUnavailable(msg, retryable=False)
    if not isinstance(exc, MCPError):
        msg = f"the connection to the MCP client broke: {type(exc).__name__}: {exc}"
        return BackendUnavailable(msg, retryable=False)
    if exc.code == types.REQUEST_TIMEOUT:
        msg = "the MCP client did not answer a request for sampling in time (timeout=)"
        return BackendTimeout(msg, retryable=False)
    if exc.code == types.CONNECTION_CLOSED:
        msg = "the MCP client disconnected before it answered a request for sampling"
        return BackendUnavailable(msg, retryable=False)
    msg = f"the MCP client failed a request for sampling: {exc.message} (code {exc.code})"
    if exc.code in {types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.INVALID_PARAMS}:
        return InvalidRequest(msg)
    return BackendUnavailable(msg, retryable=False)
