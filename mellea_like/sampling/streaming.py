"""A call that yields the text of a reply while the reply arrives, once it is certain to pass.

A draw's text may be shown once no check can reject it any more, and shown text can't be taken
back. So from the first shown piece on, only that draw can win. The engine starts no other draw,
and cancels those under way. If one of them passes nevertheless, it counts as cancelled.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import anyio
from anyio import AsyncContextManagerMixin
from anyio.lowlevel import checkpoint

from mellea_like.errors import ReplyBroken
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.runtime.task_scope import task_scope
from mellea_like.sampling.call import RunningCall
from mellea_like.sampling.exclusions import check_together, features_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Self

    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import CallInputs

__all__ = ["Release", "StreamedReply"]

T = TypeVar("T")

Release = Literal["prefix", "passed"]
"""When text is yielded: as soon as its draw is certain to pass, or when the reply has passed."""


class StreamedReply(AsyncContextManagerMixin, Generic[T]):
    """The reply of a call that is under way; `BaseSamplingStrategy.stream` makes it.

    Enter it with ``async with`` and iterate over it there, once. It yields the text of the winning
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
        check_together(features_of(strategy.settings), {"stream": "stream()"})
        self._strategy = strategy
        self._inputs = inputs
        self._on_slice = on_slice
        self._release: Release = release
        self._pieces: deque[str] = deque()
        self._shown = ""
        self._news = anyio.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._result: SamplingResult[T] | None = None
        self._entered = False

    @property
    def released(self) -> str:
        """The text released so far, including pieces that the iteration has not yielded yet."""
        return self._shown

    @property
    def result(self) -> SamplingResult[T]:
        """The call's result, once the iteration has ended.

        Raises:
            RuntimeError: the reply has not ended.
            Exception: the error of the call.
        """
        if self._error is not None:
            raise self._error
        if self._result is None:
            msg = "the reply has not ended: its result is available after the iteration"
            raise RuntimeError(msg)
        return self._result

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._entered:
            msg = "a reply can be entered only once: create another one with stream(...)"
            raise RuntimeError(msg)
        self._entered = True
        show = self._take if self._release == "prefix" else None
        call = RunningCall(self._strategy, self._inputs, self._on_slice, show=show)
        async with task_scope() as tasks:
            tasks.start_soon(self._run, call, name="runs a streamed call")
            yield self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Wait for the next piece of the text.

        Returns:
            The piece.

        Raises:
            RuntimeError: the reply was not entered with ``async with``.
            StopAsyncIteration: the text has ended, or no draw has passed: see ``result``.
            ReplyBroken: the reply failed after some of it was yielded.
            Exception: the error of the call.
        """
        if not self._entered:
            msg = "this reply has not been entered: use async with strategy.stream(...) as reply"
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
        """Queue a piece of the winner's text for `__anext__`, and add it to `released`."""
        if piece:
            self._shown += piece
            self._pieces.append(piece)
            self._news.set()

    async def _run(self, call: RunningCall) -> None:
        try:
            result = await call.run()
            self._conclude(result)
        except Exception as exc:  # noqa: BLE001 (whoever iterates gets it)
            self._error = exc
            if self._shown:
                why = f"{type(exc).__name__}: {exc}"
                self._error = self._broken(getattr(exc, "result", None), why)
                self._error.__cause__ = exc
        except BaseException as exc:
            if split_cancellation(exc)[0] is not None:
                raise
            self._error = exc  # An interrupt: this task's group would wrap it.
        self._ended = True
        self._news.set()

    def _conclude(self, result: SamplingResult[T]) -> None:
        """Queue the rest of the winner's text, or note that the shown text isn't its beginning."""
        self._result = result
        text = None
        if result.success and result.best.generation is not None:
            text = result.best.generation.text
        if text is not None and text.startswith(self._shown):
            self._take(text[len(self._shown) :])
        elif self._shown:
            self._error = self._broken(result, "; ".join(result.best.problems))

    def _broken(self, result: Any, why: str) -> ReplyBroken:
        """Make the error for text that was shown but does not begin a passing reply."""
        return ReplyBroken(
            f"the reply failed after {len(self._shown)} characters of it had been handed on:"
            f" {why or 'it did not pass in the end'}",
            result,
            self._shown,
        )
