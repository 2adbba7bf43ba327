"""Tools that return their requests for sampling: their work goes on while the client answers.

From the protocol's revision 2026-07-28 on, a server does not send requests to its client. A tool
returns what it needs to know, and the client calls it again with the answers. The work is not begun
afresh then: it was kept, waiting, and goes on.
"""

from __future__ import annotations

from itertools import count
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import anyio

from mellea_like.core.argument_checks import real_number
from mellea_like.errors import (
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    ShutdownError,
)

try:
    import mcp_types as types
except ImportError as exc:  # pragma: no cover
    msg = "SamplingRounds needs the official SDK: pip install 'mellea-like[mcp]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from anyio.abc import TaskGroup
    from mcp.server.mcpserver import Context

    from mellea_like.backends.mcp import MCPSamplingBackend

__all__ = ["SamplingRounds"]

T = TypeVar("T")

TOKEN_BYTES = 32
"""Random bytes of what names a call that waits: nobody guesses it."""


class SamplingRounds:
    """Runs the work of tools that sample, over connections of any revision of the protocol.

    Enter it for as long as the server runs, in its ``lifespan``. It keeps the work that waits for a
    client in this process, so each call must come back to the process where it began.

    ```text
    @server.tool()
    async def summary(context: Context) -> str | InputRequiredResult:
        async def work(backend):
            result = await RejectionSamplingStrategy(backend).sample("Sum up.", [short])
            return result.unwrap()

        return await rounds.run(MCPSamplingBackend(context), context, work)
    ```

    The client's SDK gives up after ten rounds by default, so let requests that can be made at the
    same time come together. A client whose user refuses does not come back at all, and neither does
    one that left: what it was asked fails with `BackendTimeout` after ``patience`` seconds.

    Args:
        patience: the longest that work waits for its client to come back, in seconds.
        gather: how long further requests are waited for before the tool returns, in seconds.

    Raises:
        TypeError: an argument isn't a number.
        ValueError: a number is out of its range.
    """

    def __init__(self, *, patience: float = 600.0, gather: float = 0.01) -> None:
        real_number("patience", patience, over=0)
        real_number("gather", gather, least=0)
        self._patience = patience
        self._gather = gather
        self._tasks: TaskGroup | None = None
        self._waiting: dict[str, _Call[Any]] = {}

    async def __aenter__(self) -> Self:
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        tasks, self._tasks = cast("TaskGroup", self._tasks), None
        tasks.cancel_scope.cancel()
        return await tasks.__aexit__(kind, error, trace)

    @property
    def waiting(self) -> int:
        """How many calls wait for their client to come back."""
        return len(self._waiting)

    async def run(
        self,
        backend: MCPSamplingBackend,
        context: Context[Any, Any],
        work: Callable[[MCPSamplingBackend], Awaitable[T]],
    ) -> T | types.InputRequiredResult:
        """Do a tool's work; return what the tool should return.

        Where the connection carries requests, or the backend's fallback answers, the work just
        runs. Else it runs until it needs the client, and goes on when the tool is called again.

        Args:
            backend: made of the tool's context.
            context: the same context.
            work: an async function of the backend to sample from. It is called once, however often
                the tool is: it must not use the context, whose call may have ended.

        Returns:
            The work's result; or what the client has to answer first.

        Raises:
            InvalidRequest: the client came back to work that is not there any more.
            ShutdownError: the rounds are closed.
            BaseException: whatever the work raised.
        """
        if backend.way != "rounds":
            return await work(backend)
        if self._tasks is None:
            msg = "these SamplingRounds are not open: enter them in the server's lifespan"
            raise ShutdownError(msg)
        state = context.request_state
        if state is None:
            call: _Call[T] = _Call(self._patience)
            backend.use(call)
            self._tasks.start_soon(self._work, call, work, backend)
        else:
            known = self._waiting.pop(state, None)
            if known is None:
                msg = (
                    "the work of this tool call is not there any more: its client took longer than"
                    f" {self._patience:g} s, or the server was restarted; call the tool again"
                )
                raise InvalidRequest(msg)
            call = known
            call.token = None
            call.take(context.input_responses or {})
        return await self._next(call)

    async def _work(
        self,
        call: _Call[T],
        work: Callable[[MCPSamplingBackend], Awaitable[T]],
        backend: MCPSamplingBackend,
    ) -> None:
        try:
            with call.scope:
                call.result.append(await work(backend))
        except Exception as exc:  # noqa: BLE001 (the tool's call raises it)
            call.error = exc
        finally:
            call.end()
        if call.token is not None:
            # Nothing waits for the client any more, but it comes back for the result.
            with anyio.move_on_after(self._patience):
                await call.fetched.wait()
            self._waiting.pop(call.token or "", None)

    async def _next(self, call: _Call[T]) -> T | types.InputRequiredResult:
        try:
            await call.until_it_asks(self._gather)
        except anyio.get_cancelled_exc_class():
            call.scope.cancel()
            with anyio.CancelScope(shield=True):
                await call.done.wait()
            raise
        if call.done.is_set():
            return call.outcome()
        token = call.token = token_urlsafe(TOKEN_BYTES)
        self._waiting[token] = call
        return types.InputRequiredResult(input_requests=call.give_out(), request_state=token)


class _Question:
    """What a client is asked, and what it answered."""

    def __init__(self, params: types.CreateMessageRequestParams) -> None:
        self.params = params
        self.given_out = False
        self.settled = anyio.Event()
        self.answer: object = None


class _Call(Generic[T]):
    """A tool's work, over all the calls that it takes."""

    def __init__(self, patience: float) -> None:
        self.scope = anyio.CancelScope()
        self.token: str | None = None
        self.done = anyio.Event()
        self.fetched = anyio.Event()
        self.result: list[T] = []
        self.error: Exception | None = None
        self._patience = patience
        self._questions: dict[str, _Question] = {}
        self._numbers = count(1)
        self._changed = anyio.Event()

    async def ask(self, params: types.CreateMessageRequestParams) -> object:
        """Wait for the client's answer to a request."""
        key = f"sampling-{next(self._numbers)}"
        question = self._questions[key] = _Question(params)
        self._changed.set()
        try:
            with anyio.move_on_after(self._patience):
                await question.settled.wait()
        finally:
            del self._questions[key]
        if not question.settled.is_set():
            msg = (
                f"the MCP client did not come back with an answer within {self._patience:g} s: it"
                " left, or its user refused"
            )
            raise BackendTimeout(msg, retryable=False)
        if question.answer is None:
            msg = "the MCP client came back without an answer to a request for sampling"
            raise MalformedResponse(msg, retryable=False)
        return question.answer

    async def until_it_asks(self, gather: float) -> None:
        """Wait until the work needs its client, or has ended."""
        while not self.done.is_set():
            if self._open():
                with anyio.move_on_after(gather):
                    await self.done.wait()
                if self._open():
                    return
            else:
                self._changed = anyio.Event()
                await self._changed.wait()

    def give_out(self) -> types.InputRequests:
        """Return the questions that were not yet asked, for the client."""
        given: types.InputRequests = {}
        for key, question in self._open().items():
            question.given_out = True
            given[key] = types.CreateMessageRequest(params=question.params)
        return given

    def take(self, answers: Mapping[str, object]) -> None:
        """Take what the client answered; what it left out is not asked again."""
        if self.done.is_set():
            self.fetched.set()
        for key, question in self._questions.items():
            if question.given_out:
                question.answer = answers.get(key)
                question.settled.set()

    def end(self) -> None:
        """Say that the work has ended."""
        self.done.set()
        self._changed.set()

    def outcome(self) -> T:
        """Return the work's result."""
        if self.error is not None:
            raise self.error
        if not self.result:
            msg = "the work of this tool call was ended with its SamplingRounds"
            raise BackendUnavailable(msg, retryable=False)
        return self.result[0]

    def _open(self) -> dict[str, _Question]:
        return {key: each for key, each in self._questions.items() if not each.given_out}
