"""The model of an MCP client: requests for sampling over the Model Context Protocol.

A tool of an MCP server may ask its client to sample; the client shows the request to a person.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import anyio
from pydantic import ValidationError

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import can_judge as judges
from mellea_like.core.backend import is_backend
from mellea_like.core.format import json_schema
from mellea_like.core.generation import Generation
from mellea_like.core.options import Options
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
)

try:
    import mcp_types as types
    from mcp.shared.exceptions import MCPError, NoBackChannelError
    from mcp.shared.message import ServerMessageMetadata
    from mcp_types.version import is_version_at_least
except ImportError as exc:  # pragma: no cover
    msg = "MCPSamplingBackend needs the official SDK: pip install 'mellea-like[mcp]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext
    from mcp.server.mcpserver import Context
    from mcp.server.session import ServerSession

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import RequestMeter, Usage

__all__ = ["DEFAULT_MAX_TOKENS", "MCPSamplingBackend", "SamplingWay", "ToolContext"]

# --- requests and replies as the protocol writes them ---------------------------------------------

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
        msg = "MCP has no top_p: leave it out, or put what the client understands into metadata"
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
    """Read a client's reply."""
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


# --- the backend ----------------------------------------------------------------------------------

DEFAULT_MAX_TOKENS = 1000
"""The longest reply where nobody says: the protocol wants a number."""

ROUNDS_VERSION = "2026-07-28"
"""From this revision on, a server asks by returning its requests from the tool."""

SamplingWay = Literal["request", "rounds"]
"""How a connection samples: the server sends a request, or the tool returns it."""

ToolContext: TypeAlias = "Context[Any, Any] | ServerRequestContext[Any, Any]"


BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class Asker(Protocol):
    """Gets a request to the client by returning it from the tool."""

    async def ask(self, params: types.CreateMessageRequestParams) -> object:
        """Wait for the client's answer to a request."""
        ...


class MCPSamplingBackend:
    """Samples through the client of an MCP server's tool.

    Make one in the tool, of the tool's context, for each call. On connections before the protocol's
    revision 2026-07-28 each request is sent to the client while the tool runs. From that revision
    on, a tool returns its requests instead: run its work through
    `mellea_like.backends.mcp_rounds.SamplingRounds`, which makes this backend. Where a connection
    offers neither, ``fallback`` answers; without one, each request is an `InvalidRequest`.

    A client shows each request to a person. What that person refuses (error code -1) is a reply
    whose ``finish_reason`` is ``"refusal"``. Nothing that fails is ``retryable``, so that no one is
    asked the same again. The protocol does not say what a reply cost: usage counts one request of
    unknown cost.

    Args:
        context: the tool's context: the SDK's ``Context`` or ``ServerRequestContext``.
        fallback: a backend to ask directly where the client can't sample.
        max_tokens: the longest reply where the options say nothing.
        timeout: the longest wait for the client, in seconds; None for no limit.
        options: defaults for what a request's options leave open. A model is a hint to the client.
        can_judge: whether its verdicts on requirements are wanted.

    Attributes:
        provider: ``"mcp"``, for telemetry.
        defaults: ``options``, with ``max_tokens``.
        model: the hint; None where there is none.

    Raises:
        TypeError: the fallback isn't a backend, or a number isn't a number.
        ValueError: a number is out of its range.
    """

    provider = "mcp"

    def __init__(
        self,
        context: ToolContext,
        *,
        fallback: Backend | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        timeout: float | None = 600.0,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
    ) -> None:
        if fallback is not None and not is_backend(fallback):
            msg = f"MCPSamplingBackend: fallback takes a backend, not {fallback!r}"
            raise TypeError(msg)
        whole_number("max_tokens", max_tokens)
        if timeout is not None:
            real_number("timeout", timeout, over=0)
        self._session = context.session
        self._request_id = context.request_id
        self._fallback = fallback
        self._timeout = timeout
        given = Options.of(options)
        self.defaults = replace(given, max_tokens=given.max_tokens or max_tokens)
        self._can_judge = can_judge
        self._asker: Asker | None = None
        self._way: SamplingWay | None = _way_of(context.session)
        self.model = self.defaults.model

    @property
    def can_judge(self) -> bool:
        """Whether it, or the fallback where that answers, decides requirements."""
        if self._fallback is not None and not self.offered:
            return judges(self._fallback)
        return self._can_judge

    @property
    def can_coalesce(self) -> bool:
        """Whether requests go to the client, who approves each: a fallback's need nobody."""
        return self.offered

    @property
    def way(self) -> SamplingWay | None:
        """How this connection samples; None where the client can't, or can't be reached."""
        return self._way

    @property
    def offered(self) -> bool:
        """Whether requests go to the client: the connection can sample, in a way that is set up."""
        return self._way == "request" or (self._way == "rounds" and self._asker is not None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._session.protocol_version} {self._way}>"

    def use(self, asker: Asker) -> None:
        """Ask by way of the tool's result; `SamplingRounds` calls this."""
        self._asker = asker

    async def generate(self, request: Request) -> Generation:
        """Answer one request, by the client or the fallback.

        Raises:
            InvalidRequest: the request can't be said in this protocol, or the connection offers no
                sampling and there is no fallback.
            BackendError: there is no reply.
        """
        if not self.offered:
            return await self._without(request)
        params = sampling_params(request, request.options.over(self.defaults))
        counted = request.meter.start()
        if self._way == "rounds" and self._asker is not None:
            return generation_of(await self._asker.ask(params), counted.usage)
        return await self._send(params, counted)

    async def _send(
        self, params: types.CreateMessageRequestParams, counted: RequestMeter
    ) -> Generation:
        # The SDK's create_message is deprecated, takes no timeout, and does the same.
        try:
            result = await self._session.send_request(
                types.CreateMessageRequest(params=params),
                types.CreateMessageResult,
                self._timeout,
                ServerMessageMetadata(related_request_id=self._request_id),
            )
        except (MCPError, ValidationError, OSError, *BROKEN) as exc:
            if isinstance(exc, MCPError) and exc.code == REFUSED:
                return Generation(exc.message, None, counted.usage, None, "refusal")
            error = error_of(exc)
        else:
            return generation_of(result, counted.usage)
        # Outside the handler, so that the SDK's exception does not hang on as the context.
        raise error

    async def _without(self, request: Request) -> Generation:
        if self._fallback is not None:
            return await self._fallback.generate(request)
        request.meter.sent_nothing()
        raise self._nothing_offered()

    def _nothing_offered(self) -> InvalidRequest:
        version = self._session.protocol_version
        if self._way == "rounds":
            msg = (
                f"this MCP connection speaks revision {version}, where tools return their requests"
                " for sampling: run the tool's work through SamplingRounds, or give a fallback"
            )
            return InvalidRequest(msg)
        msg = (
            f"this MCP connection (revision {version}) offers no sampling: the client does not"
            " declare the capability, or the transport can't carry requests to it; give"
            " MCPSamplingBackend a fallback"
        )
        return InvalidRequest(msg)


def _way_of(session: ServerSession) -> SamplingWay | None:
    wanted = types.ClientCapabilities(sampling=types.SamplingCapability())
    if not session.check_client_capability(wanted):
        return None
    if is_version_at_least(session.protocol_version, ROUNDS_VERSION):
        return "rounds"
    return "request" if session.can_send_request else None
