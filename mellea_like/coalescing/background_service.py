"""The base class of the coalescers: it owns their tasks, and leaves no caller waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Self

import anyio
from opentelemetry import context as otel_context

from mellea_like.core.backend import CURRENT
from mellea_like.errors import ShutdownError
from mellea_like.runtime.event_loops import check_loop, running_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["BackgroundService"]


class BackgroundService(ABC):
    """An async context manager that does its callers' work in its own tasks.

    Leaving the block normally first serves everything that was accepted. Leaving it with an
    exception aborts the work. Either way, each waiting caller gets a result or an error before the
    block is left. Other threads must use ``anyio.from_thread``.
    """

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._closing = False
        self._context = Context()
        self._loop: object = None
        self._workers: set[int] = set()
        self._progress: anyio.Event | None = None

    @property
    def closing(self) -> bool:
        """Whether submissions are no longer accepted."""
        return self._closing

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            msg = f"this {type(self).__name__} is already open"
            raise RuntimeError(msg)
        self._closing = False
        self._context = copy_context()
        self._loop = running_loop()
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = self._tasks
        assert tasks is not None  # noqa: S101 (the block was entered)
        try:
            if error is None:
                await self.drain()
        finally:
            self._shut()
            tasks.cancel_scope.cancel()
            try:
                # Its tasks raise nothing, and the block's exception isn't wrapped in a group.
                await tasks.__aexit__(None, None, None)
            finally:
                self._tasks = None

    async def drain(self, deadline: float | None = None) -> None:
        """Accept nothing more, serve everything that was accepted, and leave no caller waiting.

        Args:
            deadline: the time on ``anyio.current_time``'s clock after which the remaining callers
                get a `ShutdownError`; None for no limit.

        Raises:
            RuntimeError: the call comes from the service's own work, which would wait for itself,
                or from another thread or event loop.
        """
        self._check_loop()
        if self._at_work():
            msg = f"a task of this {type(self).__name__} can't wait for its own end: use abort()"
            raise RuntimeError(msg)
        self._closing = True
        self._hurry()
        with anyio.CancelScope(deadline=float("inf") if deadline is None else deadline):
            await self._until_idle()
        self._shut()

    async def abort(self) -> None:
        """Accept nothing more, cancel running work, and give all callers a `ShutdownError`."""
        self._check_loop()
        self._shut()
        await self._until_idle()

    async def _until_idle(self) -> None:
        while not self._idle():
            if self._progress is None or self._progress.is_set():
                self._progress = anyio.Event()
            await self._progress.wait()

    def _progressed(self) -> None:
        """Report that `_idle` may have become True."""
        if self._progress is not None:
            self._progress.set()

    def _hurry(self) -> None:  # noqa: B027 (need not be overridden)
        """Begin the work that would wait for more submissions; there won't be any."""

    @abstractmethod
    def _idle(self) -> bool:
        """Return whether everything that was accepted is settled, and no work is running."""

    @abstractmethod
    def _settle_all(self, error: ShutdownError) -> None:
        """Cancel running work and settle all open tickets, in one synchronous step."""

    def _shut(self) -> None:
        self._closing = True
        self._settle_all(ShutdownError(f"this {type(self).__name__} was closed before it answered"))

    def _check_open(self) -> None:
        """Raise `ShutdownError` if the service isn't open or is closing."""
        self._check_loop()
        if self._tasks is None or self._closing:
            state = "is closing" if self._tasks is not None else "is not open: use `async with`"
            msg = f"this {type(self).__name__} {state}"
            raise ShutdownError(msg)

    def _check_loop(self) -> None:
        if self._tasks is not None:
            check_loop(self._loop, type(self).__name__)

    def _start(self, work: Callable[..., Awaitable[object]], *args: Any, name: str) -> None:
        """Start work in a task that belongs to the service, and not to a caller."""
        tasks = self._tasks
        assert tasks is not None  # noqa: S101 (submissions check that it is open)

        def start() -> None:
            tasks.start_soon(self._detached, work, args, name=name)

        self._context.copy().run(start)

    async def _detached(
        self, work: Callable[..., Awaitable[object]], args: tuple[Any, ...]
    ) -> None:
        CURRENT.set((None, None))
        otel_context.attach(otel_context.Context())
        worker = anyio.get_current_task().id
        self._workers.add(worker)
        try:
            await work(*args)
        finally:
            self._workers.discard(worker)

    def _at_work(self) -> bool:
        """Return whether the current task is one that this service started."""
        return anyio.get_current_task().id in self._workers
