"""Hand each slice to plugins and to ``on_slice``.

A separate task hands the slices over, so the race of the call's lanes never waits for it. The tasks
here are shielded. Only a time limit cuts a delivery short, not the end of the race, nor any
cancellation of the caller.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Protocol

import anyio

from mellea_like.core.backend import CURRENT, RequestMeta
from mellea_like.kernel.ports import Option, Ruling
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.call import Call

DRAIN_SECONDS = 2.0
"""The most seconds that deliveries and background hooks may take in total after the last draw."""


class Observer(Protocol):
    """Something that acts at the moments of a call, as plugins do."""

    wants_slices: bool

    async def begin(self, call: Call, loop_budget: int, tasks: TaskGroup) -> int:
        """Prepare the call; return its loop budget. ``tasks`` lasts until the call's end."""
        ...

    async def hand_over(self, slice_: Slice) -> None:
        """Take a slice."""
        ...

    async def end(self, deadline: float, *, cancelled: bool) -> int:
        """End the call; return how many tasks were cut off at the deadline."""
        ...


class Report(Protocol):
    """The part of a call that tells its caller what was left undone."""

    undelivered: int
    """How many slices had not been handed over when time ran out."""


class Deliveries(Option):
    """Hands slices to plugins and ``on_slice`` during the call, and the remaining ones at its end.

    Plugins get each slice first, and also act at the start and the end of the call.
    """

    def __init__(
        self,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None,
        report: Report,
        plugins: Observer | None = None,
    ) -> None:
        self._on_slice = on_slice
        self._report = report
        self._plugins = plugins
        self._delivers = on_slice is not None or (plugins is not None and plugins.wants_slices)
        self._waiting: deque[Slice] = deque()
        self._changed = anyio.Event()
        self._closed = False
        self._scope = anyio.CancelScope(shield=True)
        self._ended = anyio.Event()

    async def around(self, loop_budget: int, go: Callable[[int], Awaitable[None]]) -> None:
        """Run the call in a task group for deliveries, and wait for those tasks after the call."""
        async with anyio.create_task_group() as tasks:
            if self._delivers:
                tasks.start_soon(self._deliver)
            cancelled = True
            try:
                if self._plugins is not None:
                    loop_budget = await self._plugins.begin(self.call, loop_budget, tasks)
                await go(loop_budget)
                cancelled = False
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as exc:  # noqa: BLE001 (raised when the tasks have ended)
                self.call.rule(Ruling(fatal=exc))
                cancelled = False
            finally:
                # In a task: a native cancellation passes every shield of the caller's own.
                tasks.start_soon(self._close, cancelled)

    def tell(self, slice_: Slice) -> None:
        """Queue a slice for delivery, without waiting."""
        if self._delivers:
            self._waiting.append(slice_)
            self._changed.set()

    async def _deliver(self) -> None:
        """Hand over queued slices until the queue is closed and empty."""
        try:
            with self._scope:
                while (self._waiting or not self._closed) and not self._scope.cancel_called:
                    if self._waiting:
                        await self._deliver_one(self._waiting[0])
                        self._waiting.popleft()
                    else:
                        self._changed = anyio.Event()
                        await self._changed.wait()
        finally:
            self._ended.set()

    async def _deliver_one(self, slice_: Slice) -> None:
        ids = RequestMeta(self.call.id, slice_.iteration, slice_.subsample)
        CURRENT.set((ids, CURRENT.get()[1]))
        try:
            if self._plugins is not None:
                await self._plugins.hand_over(slice_)
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
        """Hand over the remaining slices, and end all tasks."""
        cut_off = 0
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(DRAIN_SECONDS) as drain:
                self._closed = True
                self._changed.set()
                if self._delivers:
                    await self._ended.wait()
            self._scope.cancel()
            self._report.undelivered = len(self._waiting)
            if self._plugins is not None:
                cut_off = await self._plugins.end(drain.deadline, cancelled=cancelled)
        if self._waiting or cut_off:
            warn(
                "gave up after %g s: %d draws were not passed to hooks,"
                " and %d background hooks were cut off",
                DRAIN_SECONDS,
                len(self._waiting),
                cut_off,
                sampling_id=self.call.id,
            )
