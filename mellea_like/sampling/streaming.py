"""A call whose reply is handed on while it arrives, as soon as it is certain that it will pass.

The text of a draw may be shown once nothing that is checked can reject it any more, and what was
shown can't be taken back. So from the first shown piece on, that draw alone can win: the engine
starts no other, cancels those under way, and counts as cancelled what passes in spite of that.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.core.backend import BackendWrapper, CallPiece
from mellea_like.core.conversation import Instruction, Message
from mellea_like.errors import BackendError, ReplyBroken
from mellea_like.hooks.types import HookType
from mellea_like.runtime.task_scope import task_scope
from mellea_like.sampling.call import Call
from mellea_like.sampling.early_rejection import EarlyWatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.call_state import Recorder
    from mellea_like.sampling.prepare import CallInputs

__all__ = ["Release", "StreamedReply"]

T = TypeVar("T")

Release = Literal["prefix", "passed"]
"""When text is handed on: as soon as it is certain, or when the reply has passed."""


class StreamedReply(Generic[T]):
    """The reply of a call that is under way; `BaseSamplingStrategy.stream` makes it.

    Enter it with ``async with`` and iterate over it there, once: it gives the text of the winning
    reply, piece by piece. Leaving the block ends the call and closes its requests.
    """

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        inputs: CallInputs,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None,
        release: Release,
    ) -> None:
        if release not in get_args(Release):
            msg = f"release is one of {', '.join(map(repr, get_args(Release)))}, not {release!r}"
            raise ValueError(msg)
        # Imported lazily: most calls are not streamed.
        from mellea_like.selections.votes import Collect  # noqa: PLC0415

        if isinstance(strategy.settings.selection, Collect):
            msg = "a stream has one reply, and Collect selects several: use sample()"
            raise ValueError(msg)  # noqa: TRY004 (its type is right)
        self._strategy = strategy
        self._inputs = inputs
        self._on_slice = on_slice
        self._release: Release = release
        self._pieces: deque[str] = deque()
        self._shown = ""
        self._news = anyio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._result: SamplingResult[T] | None = None
        self._scope: AbstractAsyncContextManager[Any] | None = None

    @property
    def released(self) -> str:
        """The text that was handed on so far, or waits to be."""
        return self._shown

    @property
    def result(self) -> SamplingResult[T]:
        """The call's result, once the iteration has ended.

        Raises:
            RuntimeError: the reply has not ended.
            Exception: what the call raised.
        """
        if self._error is not None:
            raise self._error
        if self._result is None:
            msg = "the reply has not ended: its result is there when all of it was iterated over"
            raise RuntimeError(msg)
        return self._result

    async def __aenter__(self) -> Self:
        if self._scope is not None:
            msg = "a reply is entered once: make another one with stream(...)"
            raise RuntimeError(msg)
        strategy, inputs = self._strategy, self._inputs
        draws = None
        if self._release == "prefix" and hasattr(inputs.backend, "stream"):
            draws = ShownDraws(inputs.backend, inputs.requirements, self._take)
            inputs = replace(inputs, backend=draws)
        call = Call(strategy, inputs, self._on_slice)
        if draws is not None and may_show(call, inputs):
            draws.recorder = call.context.recorder
            draws.recorder.streams = True
        self._scope = task_scope()
        tasks = await self._scope.__aenter__()
        tasks.start_soon(self._run, call, name="runs a streamed call")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._scope is not None  # noqa: S101 (it was entered)
        return await self._scope.__aexit__(kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Wait for the next piece of the text.

        Returns:
            The piece.

        Raises:
            RuntimeError: the reply is not entered.
            StopAsyncIteration: that was all, or no draw has passed: see ``result``.
            ReplyBroken: the reply failed after some of it was handed on.
            Exception: what the call raised.
        """
        if self._scope is None:
            msg = "this reply is not entered: async with strategy.stream(...) as reply"
            raise RuntimeError(msg)
        await checkpoint()
        while not self._pieces:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        return self._pieces.popleft()

    def _take(self, piece: str) -> None:
        """Hand a piece on; it is part of the winner's text from now on."""
        if piece:
            self._shown += piece
            self._pieces.append(piece)
            self._news.set()

    async def _run(self, call: Call) -> None:
        try:
            result = await call.run()
            self._conclude(result)
        except Exception as exc:  # noqa: BLE001 (whoever iterates gets it)
            self._error = self._broken(exc) if self._shown else exc
        self._ended = True
        self._news.set()

    def _conclude(self, result: SamplingResult[T]) -> None:
        """Hand on the rest of the winner's text."""
        self._result = result
        text = None
        if result.success and result.best.generation is not None:
            text = result.best.generation.text
        if text is not None and text.startswith(self._shown):
            self._take(text[len(self._shown) :])
        elif self._shown:
            self._error = self._broken(None, result)

    def _broken(self, cause: Exception | None, result: Any = None) -> ReplyBroken:
        """Say that what was shown is not the beginning of a reply that has passed."""
        if result is None:
            result = getattr(cause, "result", None)
        why = f"{type(cause).__name__}: {cause}" if cause is not None else ""
        if not why and result is not None:
            why = "; ".join(result.best.problems)
        error = ReplyBroken(
            f"the reply failed after {len(self._shown)} characters of it had been handed on:"
            f" {why or 'it did not pass in the end'}",
            result,
            self._shown,
        )
        error.__cause__ = cause
        return error


def may_show(call: Call, inputs: CallInputs) -> bool:
    """Tell whether a draw of a call may be certain to pass before it has ended.

    It never is where something looks at the whole reply: a format, a parser, a judge, a plugin; nor
    where draws are compared, or others may take their places for other reasons; nor where a draw
    runs tools itself, or has to call one. A text is certain before the calls that follow it are.
    """
    settings, hooks = call.context.settings, call.context.events.hooks
    parse = getattr(type(inputs.action), "parse", None)
    return (
        settings.selection == "first"
        and settings.schedule is None
        and not inputs.stages
        and inputs.format is None
        and (inputs.tools is None or inputs.tools.leaves_texts)
        and parse in (Instruction.parse, Message.parse)
        and all(_certain_in_time(requirement) for requirement in inputs.requirements)
        and not hooks.decides(HookType.VALIDATION_PRE_CHECK)
        and not hooks.decides(HookType.VALIDATION_POST_CHECK)
    )


def _certain_in_time(requirement: Requirement) -> bool:
    return requirement.streams and not requirement.judged


class ShownDraws(BackendWrapper):
    """A backend that hands on the text of the first draw that is certain to pass.

    Args:
        inner: the backend inside, which streams.
        requirements: all that a draw must meet.
        take: is given the text.
    """

    def __init__(
        self, inner: Backend, requirements: Sequence[Requirement], take: Callable[[str], None]
    ) -> None:
        super().__init__(inner)
        self._requirements = requirements
        self._take = take
        self.recorder: Recorder | None = None
        """The call's; None where no draw of it may be shown."""

    async def generate(self, request: Request) -> Generation:
        """Answer one request."""
        if self.recorder is None or request.meta.purpose != "generate":
            return await self.inner.generate(request)
        return await self._whole(request)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        recorder = self.recorder
        async with super()._stream(request) as pieces:
            if recorder is None or request.meta.purpose != "generate":
                yield pieces
                return
            async with aclosing(self._watched(pieces, request, recorder)) as watched:
                yield watched

    async def _watched(
        self, pieces: AsyncIterator[str | Generation], request: Request, recorder: Recorder
    ) -> AsyncGenerator[str | Generation]:
        watch, meta = EarlyWatch(self._requirements), request.meta
        text, shown = "", False
        try:
            async for piece in pieces:
                if isinstance(piece, str) and not isinstance(piece, CallPiece):
                    text += piece
                    if shown:
                        self._take(piece)
                    elif _certain(watch, text, piece):
                        shown = recorder.show(meta.iteration, meta.subsample)
                        self._take(text if shown else "")
                yield piece
        except BackendError as exc:
            if shown:
                exc.retryable = False  # Another reply can't go on from what was shown of this one.
            raise


def _certain(watch: EarlyWatch, text: str, piece: str) -> bool:
    """Tell whether a reply will pass, whatever follows."""
    try:
        watch.feed(text, piece)
    except Exception:  # noqa: BLE001 (the engine's own watch asks once more, and raises it)
        return False
    return watch.certain and not (not text or text.isspace())  # So far, it may end empty.
