"""The model of an MCP client: sampling requests over the Model Context Protocol.

A tool of an MCP server may ask its client to sample, and the client shows the request to a person.
Since the protocol's revision 2026-07-28, a server no longer sends requests to its client. Instead,
a tool returns its questions, and the client calls the tool again with the answers. Between the two
calls, `SamplingRounds` keeps the tool's work waiting; the second call continues the work.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import count
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeAlias, TypeVar, cast

import anyio
from pydantic import ValidationError

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import Options, is_backend, texts_only
from mellea_like.core.backend import can_judge as judges
from mellea_like.core.format import json_schema
from mellea_like.core.generation import Generation
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    ShutdownError,
)
from mellea_like.lazy import needs_extra

with needs_extra("mcp", "MCPSamplingBackend needs the official SDK"):
    import mcp_types as types
    from mcp.shared.exceptions import MCPError, NoBackChannelError
    from mcp.shared.message import ServerMessageMetadata
    from mcp_types.version import is_version_at_least

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup
    from mcp.server.context import ServerRequestContext
    from mcp.server.mcpserver import Context
    from mcp.server.session import ServerSession

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Usage

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "MCPSamplingBackend",
    "SamplingRounds",
    "SamplingWay",
    "ToolContext",
]

T = TypeVar("T")

# --- requests and replies as the protocol writes them ---------------------------------------------

REFUSED = -1
"""The error code with which a client reports that its user refused."""

EXTRA = ("metadata", "model_preferences", "include_context")
"""The keys of ``options.extra`` that can be sent."""

FINISH_REASONS = {"endTurn": "stop", "stopSequence": "stop", "maxTokens": "length"}

FORM = "Reply with JSON that fits this JSON Schema, and with nothing else:\n"


def sampling_params(request: Request, options: Options) -> types.CreateMessageRequestParams:
    """Return the parameters of a sampling request, whose protocol has no field for seeds."""
    texts_only(request, "MCPSamplingBackend")
    system = [message.text for message in request.messages if message.role == "system"]
    wanted: Any = request.format
    if wanted is not None:
        schema = json.dumps(json_schema(wanted), ensure_ascii=False)
        system.append(FORM + schema)
    others = [message for message in request.messages if message.role != "system"]
    if not others:
        msg = "a sampling request over MCP needs at least one message that isn't a system message"
        raise InvalidRequest(msg)
    if options.top_p is not None:
        msg = "MCP has no top_p: leave it out, or pass what the client understands in metadata"
        raise InvalidRequest(msg)
    unknown = sorted(options.extra.keys() - set(EXTRA))
    if unknown:
        msg = (
            f"MCPSamplingBackend can't send {', '.join(unknown)}: in options.extra it supports"
            " only metadata, model_preferences and include_context"
        )
        raise InvalidRequest(msg)
    said: dict[str, Any] = {"include_context": "none", **options.extra}
    if options.model is not None:
        preferences = dict(said.get("model_preferences") or {})
        preferences["hints"] = [{"name": options.model}, *(preferences.get("hints") or ())]
        said["model_preferences"] = preferences
    said["messages"] = [
        {"role": message.role, "content": {"type": "text", "text": message.text}}
        for message in others
    ]
    said["max_tokens"] = options.max_tokens
    said["system_prompt"] = "\n\n".join(system) or None
    said["temperature"] = options.temperature
    said["stop_sequences"] = list(options.stop) or None
    try:
        return types.CreateMessageRequestParams.model_validate(said, by_name=True)
    except ValidationError as exc:
        msg = f"MCP doesn't accept the values in options.extra: {_places(exc)}"
    raise InvalidRequest(msg)


def _places(exc: ValidationError) -> str:
    return ", ".join(sorted({".".join(map(str, error["loc"])) for error in exc.errors()}))


def generation_of(result: object, usage: Usage) -> Generation:
    """Return a client's reply as a generation; raise `MalformedResponse` for anything but text."""
    match result:
        case types.CreateMessageResult():
            blocks: list[Any] = [result.content]
        case types.CreateMessageResultWithTools():
            blocks = list(result.content_as_list)
        case _:
            _refuse(f"{type(result).__name__} instead of a sampled message")
    if result.role != "assistant":
        _refuse(f"a message with the role {result.role!r} instead of 'assistant'")
    for block in blocks:
        if not isinstance(block, types.TextContent):
            _refuse(f"content of type {block.type!r}, but only text is supported")
    reason = result.stop_reason
    finish = None if reason is None else FINISH_REASONS.get(reason, reason)
    return Generation("".join(block.text for block in blocks), None, usage, result.model, finish)


def _refuse(what: str) -> NoReturn:
    msg = f"the MCP client sent {what}"
    raise MalformedResponse(msg, retryable=False)


def error_of(exc: Exception) -> BackendError:
    """Translate the exception of a failed sampling request into an error that isn't retryable."""
    kind: type[BackendError] = BackendUnavailable
    match exc:
        case ValidationError():
            kind = MalformedResponse
            said = f"the MCP client sent an invalid reply to a sampling request: {_places(exc)}"
        case NoBackChannelError():
            said = "this backend was made for an MCP tool call that has ended"
        case MCPError(code=types.REQUEST_TIMEOUT):
            kind = BackendTimeout
            said = "the MCP client did not answer a sampling request in time (timeout=)"
        case MCPError(code=types.CONNECTION_CLOSED):
            said = "the MCP client disconnected before it answered a sampling request"
        case MCPError():
            if exc.code in {types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.INVALID_PARAMS}:
                kind = InvalidRequest
            said = f"the MCP client failed a sampling request: {exc.message} (code {exc.code})"
        case _:
            said = f"the connection to the MCP client broke: {type(exc).__name__}: {exc}"
    return kind(said, retryable=False)


# --- the backend ----------------------------------------------------------------------------------

DEFAULT_MAX_TOKENS = 1000
"""The default length limit of a reply in tokens, because the protocol requires a limit."""

ROUNDS_VERSION = "2026-07-28"
"""The first protocol revision in which a tool returns its requests instead of sending them."""

SamplingWay = Literal["request", "rounds"]
"""How a client is asked to sample: the server sends the requests to the client (``"request"``), or
the tool returns the requests to the client (``"rounds"``)."""

ToolContext: TypeAlias = "Context[Any, Any] | ServerRequestContext[Any, Any]"

BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class MCPSamplingBackend:
    """Samples with the model of the MCP client that called a server's tool.

    Make a new backend in the tool, from the tool's context, for each call of the tool. On
    connections before the protocol's revision 2026-07-28, each request is sent to the client while
    the tool runs. From that revision on, a tool returns its requests instead, so run the tool's
    work through `SamplingRounds`. If the client can be asked in neither way, ``fallback`` answers.
    Without a fallback, each request raises `InvalidRequest`.

    A client shows each request to a person. If the person refuses (error code -1), the reply has
    the ``finish_reason`` ``"refusal"``. No error is ``retryable``, so nobody is asked the same
    question again. The protocol doesn't report the cost of a reply, so the usage is one request of
    unknown cost.

    Args:
        context: the tool's context: the SDK's ``Context`` or ``ServerRequestContext``.
        fallback: a backend that answers if the client can't be asked.
        max_tokens: the longest reply in tokens, unless the options set ``max_tokens``.
        timeout: how long to wait for the client's answer, in seconds; None for no limit.
        options: defaults for the options that a request leaves open. A model is only a hint to the
            client.
        can_judge: whether the model may judge requirements.

    Attributes:
        provider: ``"mcp"``, for telemetry.
        defaults: ``options``, with ``max_tokens``.
        model: the model suggested to the client, or None.
        way: how this connection samples: ``"request"`` or ``"rounds"``, or None if the client can't
            sample or can't be reached.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: a number is out of range, or an option is unknown.
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
            msg = f"MCPSamplingBackend: fallback must be a backend, not {fallback!r}"
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
        self.way: SamplingWay | None = _way_of(context.session)
        self._rounds: _Work[Any] | None = None
        self.model = self.defaults.model

    @property
    def can_judge(self) -> bool:
        """Whether the backend that answers, this one or the fallback, may judge requirements."""
        if self._fallback is not None and not self.can_coalesce:
            return judges(self._fallback)
        return self._can_judge

    @property
    def can_coalesce(self) -> bool:
        """Whether requests may be combined: true if the client answers them, otherwise false."""
        return self.way == "request" or self._rounds is not None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._session.protocol_version} {self.way}>"

    async def generate(self, request: Request) -> Generation:
        """Answer one request, with the client or the fallback.

        Raises:
            InvalidRequest: the protocol can't express the request, or the connection offers no
                sampling and there is no fallback.
            BackendError: there is no reply.
        """
        if not self.can_coalesce:
            if self._fallback is not None:
                return await self._fallback.generate(request)
            request.meter.sent_nothing()
            raise InvalidRequest(self._nothing_offered())
        params = sampling_params(request, request.options.over(self.defaults))
        counted = request.meter.start()
        if self._rounds is not None:
            return generation_of(await self._rounds.ask(params), counted.usage)
        # This is what the SDK's create_message does, which is deprecated and takes no timeout.
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
        # Raising outside the handler keeps the SDK's exception from becoming the context.
        raise error

    def _nothing_offered(self) -> str:
        version = self._session.protocol_version
        if self.way == "rounds":
            return (
                f"this MCP connection uses revision {version}, where tools return their sampling"
                " requests: run the tool's work through SamplingRounds, or pass a fallback"
            )
        return (
            f"this MCP connection (revision {version}) doesn't support sampling: the client doesn't"
            " declare the capability, or the transport can't carry requests to it; pass a fallback"
            " to MCPSamplingBackend"
        )


def _way_of(session: ServerSession) -> SamplingWay | None:
    wanted = types.ClientCapabilities(sampling=types.SamplingCapability())
    if not session.check_client_capability(wanted):
        return None
    if is_version_at_least(session.protocol_version, ROUNDS_VERSION):
        return "rounds"
    return "request" if session.can_send_request else None


# --- tools that return their requests -------------------------------------------------------------

TOKEN_BYTES = 32
"""The number of random bytes in the name of a waiting call, enough to make the name unguessable."""


class SamplingRounds:
    """Runs MCP tools that sample, over connections of any revision of the protocol.

    Since the revision 2026-07-28, a tool returns its sampling requests to the client, which calls
    the tool again with the answers. Each such exchange is a round. Between the two calls, this
    object keeps the tool's work waiting in this process, so both calls must reach the same process.

    Enter this object with ``async with`` in the server's ``lifespan``, so that it stays open as
    long as the server runs.

    ```text
    rounds = SamplingRounds()  # Entered in the server's lifespan.

    @server.tool()
    async def summary(context: Context) -> str | InputRequiredResult:
        async def work(backend):
            result = await RejectionSamplingStrategy(backend).sample("Sum up.", [short])
            return result.unwrap()

        return await rounds.run(MCPSamplingBackend(context), context, work)
    ```

    By default, the client's SDK gives up after ten rounds, so make requests concurrently if
    possible. A client that has left, or whose user refuses, doesn't call the tool again. Its
    requests then fail with `BackendTimeout` after ``patience`` seconds.

    Args:
        patience: how long the work waits for the client's next call, in seconds; over 0.
        gather: how long a tool with a request waits for further ones before it returns them, in
            seconds; at least 0.

    Raises:
        TypeError: an argument isn't a number.
        ValueError: a number is out of range.
    """

    def __init__(self, *, patience: float = 600.0, gather: float = 0.01) -> None:
        real_number("patience", patience, over=0)
        real_number("gather", gather, least=0)
        self._patience = patience
        self._gather = gather
        self._tasks: TaskGroup | None = None
        self._waiting: dict[str, _Work[Any]] = {}

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:  # noqa: PYI036 (passed on)
        tasks, self._tasks = cast("TaskGroup", self._tasks), None
        tasks.cancel_scope.cancel()
        return await tasks.__aexit__(*exc_info)

    @property
    def waiting(self) -> int:
        """The number of tool calls that wait for their client to come back."""
        return len(self._waiting)

    async def run(
        self,
        backend: MCPSamplingBackend,
        context: Context[Any, Any],
        work: Callable[[MCPSamplingBackend], Awaitable[T]],
    ) -> T | types.InputRequiredResult:
        """Run a tool's work, and return the tool's return value.

        If the connection needs tools that return their requests, the work runs until it needs the
        client, and continues when the client calls the tool again. On any other connection, the
        work runs to its end within this call.

        Args:
            backend: the backend made from the tool's context.
            context: the tool's context.
            work: an async function that takes the backend to sample from. It is called once,
                however often the client calls the tool again. It must not use the context, which
                may belong to a call that has ended.

        Returns:
            The work's result, or the questions that the client must answer first.

        Raises:
            InvalidRequest: the client came back to work that no longer exists.
            ShutdownError: this `SamplingRounds` isn't open.
            BaseException: the work's exception.
        """
        if backend.way != "rounds":
            return await work(backend)
        if self._tasks is None:
            msg = "these SamplingRounds aren't open: enter them in the server's lifespan"
            raise ShutdownError(msg)
        state = context.request_state
        if state is None:
            call: _Work[T] = _Work(self._patience)
            backend._rounds = call  # pyright: ignore[reportPrivateUsage]
            self._tasks.start_soon(self._run_work, call, work, backend)
        else:
            known = self._waiting.pop(state, None)
            if known is None:
                msg = (
                    "the work of this tool call no longer exists: its client took longer than"
                    f" {self._patience:g} s, or the server was restarted; call the tool again"
                )
                raise InvalidRequest(msg)
            call = known
            call.token = None
            call.take(context.input_responses or {})
        return await self._next(call)

    async def _run_work(
        self,
        call: _Work[T],
        work: Callable[[MCPSamplingBackend], Awaitable[T]],
        backend: MCPSamplingBackend,
    ) -> None:
        try:
            with call.scope:
                call.result.append(await work(backend))
        except Exception as exc:  # noqa: BLE001 (the tool's call raises it)
            call.error = exc
        finally:
            call.done.set()
            call.changed.set()
        if call.token is not None:
            # The work has ended, but the client still comes back for the result.
            with anyio.move_on_after(self._patience):
                await call.fetched.wait()
            self._waiting.pop(call.token or "", None)

    async def _next(self, call: _Work[T]) -> T | types.InputRequiredResult:
        try:
            await call.until_it_asks(self._gather)
        except anyio.get_cancelled_exc_class():
            call.scope.cancel()
            with anyio.CancelScope(shield=True):
                await call.done.wait()
            raise
        if call.done.is_set():
            if not call.result:
                raise call.error
            return call.result[0]
        token = call.token = token_urlsafe(TOKEN_BYTES)
        self._waiting[token] = call
        return types.InputRequiredResult(input_requests=call.give_out(), request_state=token)


@dataclass
class _Question:
    """One request to a client, and the client's answer."""

    params: types.CreateMessageRequestParams
    given_out: bool = False
    settled: anyio.Event = field(default_factory=anyio.Event)
    answer: object = None


class _Work(Generic[T]):
    """The work of a tool, which may continue over several calls of the tool."""

    def __init__(self, patience: float) -> None:
        self.scope = anyio.CancelScope()
        self.token: str | None = None
        self.done = anyio.Event()
        self.changed = anyio.Event()
        self.fetched = anyio.Event()
        self.result: list[T] = []
        self.error: Exception = BackendUnavailable(
            "the work of this tool call was stopped when its SamplingRounds closed", retryable=False
        )
        self._patience = patience
        self._questions: dict[str, _Question] = {}
        self._numbers = count(1)

    async def ask(self, params: types.CreateMessageRequestParams) -> object:
        """Put a request to the client, wait for the client's answer, and return the answer."""
        key = f"sampling-{next(self._numbers)}"
        question = self._questions[key] = _Question(params)
        self.changed.set()
        try:
            with anyio.move_on_after(self._patience):
                await question.settled.wait()
        finally:
            del self._questions[key]
        if not question.settled.is_set():
            msg = (
                f"the MCP client did not return an answer within {self._patience:g} s: it may have"
                " left, or its user refused"
            )
            raise BackendTimeout(msg, retryable=False)
        if question.answer is None:
            msg = "the MCP client returned without an answer to a sampling request"
            raise MalformedResponse(msg, retryable=False)
        return question.answer

    async def until_it_asks(self, gather: float) -> None:
        """Wait for a question and then ``gather`` seconds for others, or until the work ends."""
        while not self.done.is_set():
            if self._open():
                with anyio.move_on_after(gather):
                    await self.done.wait()
                if self._open():
                    return
            else:
                self.changed = anyio.Event()
                await self.changed.wait()

    def give_out(self) -> types.InputRequests:
        """Return the questions that the client hasn't been asked yet, and mark them as asked."""
        given: types.InputRequests = {}
        for key, question in self._open().items():
            question.given_out = True
            given[key] = types.CreateMessageRequest(params=question.params)
        return given

    def take(self, answers: Mapping[str, object]) -> None:
        """Pass the client's answers to the work; fail each asked question that has no answer."""
        if self.done.is_set():
            self.fetched.set()
        for key, question in self._questions.items():
            if question.given_out:
                question.answer = answers.get(key)
                question.settled.set()

    def _open(self) -> dict[str, _Question]:
        return {key: each for key, each in self._questions.items() if not each.given_out}
