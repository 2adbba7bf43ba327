"""Handing slices to hooks and to the progress callback, beside the call and never in its way."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

import anyio

from mellea_like.core.backend import RequestMeta
from mellea_like.core.current import ITERATION
from mellea_like.hooks.types import HookType
from mellea_like.runtime.native import cancel_requested, split_cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.slice import Slice
    from mellea_like.sampling.call import Call

__all__ = ["Delivery"]


class Delivery:
    """A queue of slices and the task that hands them over, in the order recorded.

    Args:
        call: the call.
        on_slice: the user's progress callback, sync or async, or None.
    """

    def __init__(
        self, call: Call, on_slice: Callable[[Slice], Awaitable[None] | None] | None
    ) -> None:
        self._call = call
        self._on_slice = on_slice
        self._send, self._receive = anyio.create_memory_object_stream["Slice"](math.inf)
        self._scope = anyio.CancelScope(shield=True)
        self._ended = anyio.Event()
        self._waiting = 0

    def put(self, slice_: Slice) -> None:
        """Queue a slice; never waits.

        Args:
            slice_: the slice.
        """
        self._waiting += 1
        if not self._ended.is_set():
            self._send.send_nowait(slice_)

    async def run(self) -> None:
        """Hand slices over until the queue is closed and empty; a cancellation does not stop it."""
        try:
            with self._scope, self._receive:
                async for slice_ in self._receive:
                    await self._hand_over(slice_)
                    self._waiting -= 1
        finally:
            self._ended.set()

    async def _hand_over(self, slice_: Slice) -> None:
        call = self._call
        ITERATION.set(RequestMeta(call.sampling_id, slice_.iteration, slice_.subsample))
        try:
            if HookType.SAMPLING_ITERATION in call.hooks:
                from mellea_like.hooks.payloads import SamplingIterationPayload  # noqa: PLC0415

                ids = call.ids(slice_.iteration, slice_.subsample)
                await call.fire(SamplingIterationPayload(**ids, slice=slice_))
            if self._on_slice is not None:
                answer = self._on_slice(slice_)
                if inspect.isawaitable(answer):
                    await answer
        except BaseException as exc:
            if split_cancellation(exc)[0] is not None and cancel_requested():
                raise
            # It is raised again by the call, outside its tasks.
            call.abort(exc, "on_slice")

    async def drain(self) -> None:
        """Close the queue and wait until everything is handed over."""
        self._send.close()
        await self._ended.wait()

    def stop(self) -> int:
        """Give up on what is still waiting.

        Returns:
            How many slices were not handed over.
        """
        self._send.close()
        self._scope.cancel()
        return self._waiting
