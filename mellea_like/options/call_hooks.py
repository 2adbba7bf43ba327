"""Tell plugins of a call's start and end, and tell plugins and ``on_slice`` of each slice.

A separate task hands the slices over, so the race of the call's lanes never waits for hooks. The
tasks that run hooks are shielded. Only a time limit cuts a hook short, not the end of the race, nor
any cancellation of the caller.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import CURRENT, RequestMeta
from mellea_like.hooks.types import HookType
from mellea_like.kernel.ports import Option, Ruling
from mellea_like.runtime.event_loops import foreign, scope_cancelled, split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.slice import Slice
    from mellea_like.hooks.dispatch import Hooks

__all__ = ["CallHooks"]

DRAIN_SECONDS = 2.0
"""The most seconds that deliveries and background hooks may take in total after the last draw."""


class CallHooks(Option):
    """Fires the hooks for a call's start and end, and hands slices to plugins and ``on_slice``."""

    undelivered = 0
    """How many slices were not handed to plugins and ``on_slice``, because time ran out."""

    def __init__(
        self,
        hooks: Hooks | None,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None,
        settings: Any,
        inputs: Any,
        end: Callable[[bool], dict[str, Any]],
    ) -> None:
        self._hooks = hooks
        self._on_slice = on_slice
        self._settings = settings
        self._inputs = inputs
        self._end = end
        self._listened: Any = () if hooks is None else hooks.types
        self._delivers = on_slice is not None or HookType.SAMPLING_ITERATION in self._listened
        self._waiting: deque[Slice] = deque()
        self._changed = anyio.Event()
        self._closed = False
        self._scope = anyio.CancelScope(shield=True)
        self._ended = anyio.Event()

    async def around(self, loop_budget: int, go: Callable[[int], Awaitable[None]]) -> None:
        """Run the call in a task group for hooks, and wait for those tasks after the call."""
        left: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            if self._hooks is not None:
                self._hooks.tasks = tasks
            if self._delivers:
                tasks.start_soon(self._deliver)
            cancelled = True
            try:
                await go(await self._begin(loop_budget))
                cancelled = False
            except anyio.get_cancelled_exc_class() as exc:
                if not scope_cancelled():
                    left = type(exc)(*exc.args)
                raise
            except BaseException as exc:  # noqa: BLE001 (raised when the tasks have ended)
                self.call.rule(Ruling(fatal=exc))
                cancelled = False
            finally:
                # In a task: a native cancellation passes every shield of the caller's own.
                tasks.start_soon(self._close, cancelled)
        if left is not None:
            # Nothing of ours cancels this task group. If a time limit ran out as well, anyio (4.16)
            # takes a native cancellation for its own.
            try:
                raise left
            finally:
                del left  # Break the cycle between frame and exception.

    async def _begin(self, loop_budget: int) -> int:
        """Fire the hook for the call's start; return the loop budget, which plugins may change."""
        settings, inputs = self._settings, self._inputs
        if self._hooks is None:
            return loop_budget

        def amend(_before: Any, after: Any, plugin: str) -> Any:
            settings.check_loop_budget(after.loop_budget, f"plugin {plugin} set loop_budget")
            return after

        changed = await self._hooks.fire(
            HookType.SAMPLING_LOOP_START,
            None,
            amend,
            action=inputs.action,
            context=inputs.context,
            requirements=inputs.requirements,
            loop_budget=loop_budget,
            concurrency_budget=settings.concurrency_budget,
        )
        return loop_budget if changed is None else int(changed.loop_budget)

    def tell(self, slice_: Slice) -> None:
        """Queue a slice for delivery, without waiting."""
        if self._delivers:
            self._waiting.append(slice_)
            self._changed.set()

    async def _deliver(self) -> None:
        """Hand queued slices to plugins and ``on_slice`` until the queue is closed and empty."""
        try:
            with self._scope:
                while (self._waiting or not self._closed) and not self._scope.cancel_called:
                    if self._waiting:
                        await self._hand_over(self._waiting[0])
                        self._waiting.popleft()
                    else:
                        self._changed = anyio.Event()
                        await self._changed.wait()
        finally:
            self._ended.set()

    async def _hand_over(self, slice_: Slice) -> None:
        ids = RequestMeta(self.call.id, slice_.iteration, slice_.subsample)
        CURRENT.set((ids, CURRENT.get()[1]))
        try:
            if self._hooks is not None:
                await self._hooks.fire(HookType.SAMPLING_ITERATION, slice_, slice=slice_)
            if self._on_slice is not None:
                with foreign("on_slice"):
                    answer = self._on_slice(slice_)
                    if inspect.isawaitable(answer):
                        await answer
        except BaseException as exc:
            if split_cancellation(exc)[0] is not None:
                raise
            # The call raises it, outside its tasks.
            self.call.rule(Ruling(fatal=exc))

    async def _close(self, cancelled: bool) -> None:  # noqa: FBT001
        """Hand over the remaining slices, fire the hook for the call's end, and end all tasks."""
        unfinished = 0
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(DRAIN_SECONDS) as drain:
                self._closed = True
                self._changed.set()
                if self._delivers:
                    await self._ended.wait()
            self._scope.cancel()
            self.undelivered = len(self._waiting)
            if self._hooks is not None:
                await self._fire_end(self._hooks, cancelled)
                unfinished = await self._hooks.drain(drain.deadline)
        if self.undelivered or unfinished:
            warn(
                "gave up after %g s: %d draws were not passed to hooks,"
                " and %d background hooks were cut off",
                DRAIN_SECONDS,
                self.undelivered,
                unfinished,
                sampling_id=self.call.id,
            )

    async def _fire_end(self, hooks: Hooks, cancelled: bool) -> None:  # noqa: FBT001
        try:
            if HookType.SAMPLING_LOOP_END in self._listened:
                await hooks.fire(HookType.SAMPLING_LOOP_END, None, **self._end(cancelled))
        except Exception as exc:  # noqa: BLE001 (logged; the outcome stays as it is)
            warn("%s: %s", type(exc).__name__, exc, sampling_id=self.call.id)
        except BaseException as exc:
            if split_cancellation(exc)[0] is not None:
                raise
            hooks.interrupt = exc
