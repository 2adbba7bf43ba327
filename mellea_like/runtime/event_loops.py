"""The only module that knows the differences between asyncio and trio.

anyio hides the two libraries from the rest of the package, except for two things: a native
``task.cancel()`` on asyncio, which no cancel scope knows about, and a ``CancelledError`` that some
code raises although nobody has cancelled its task.
"""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from contextvars import Context, copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from anyio.lowlevel import EventLoopToken


_NO_LOOP = (RuntimeError, AttributeError)
"""The errors raised if no loop is running, or if the library isn't fully imported."""


def call_soon(token: EventLoopToken, function: Callable[[], object]) -> None:
    """Schedule a function in an event loop from another thread, without waiting for it."""
    # anyio's from_thread.run_sync waits for the call, forever if the loop is closed first.
    loop: Any = token.native_token
    soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    soon(function)


def loop_runs(token: EventLoopToken) -> bool:
    """Return whether an event loop is running, in this thread or another."""
    loop: Any = token.native_token
    if hasattr(loop, "is_running"):
        return bool(loop.is_running())
    try:
        loop.run_sync_soon(lambda: None)
    except RuntimeError:
        return False
    return True


def running_loop() -> object:
    """Return the event loop that runs in this thread, or None. Callbacks may call this, too."""
    # anyio's current_token works only in tasks, and takes ten times as long.
    asyncio: Any = sys.modules.get("asyncio")
    with suppress(*_NO_LOOP):
        return asyncio.get_running_loop()
    trio: Any = sys.modules.get("trio")
    with suppress(*_NO_LOOP):
        return trio.lowlevel.current_trio_token()
    return None


def check_loop(loop: object, name: str) -> None:
    """Raise `RuntimeError` if the caller isn't in the event loop ``loop``."""
    if running_loop() is not loop:
        msg = (
            f"this {name} was entered in another event loop: from a thread, call it through"
            " anyio.from_thread.run or run_sync, with token=anyio.lowlevel.current_token() of that"
            " event loop; or use one in each"
        )
        raise RuntimeError(msg)


def clock() -> Callable[[], float]:
    """Return a function that returns the running event loop's time."""
    task = _asyncio_task()
    return anyio.current_time if task is None else task.get_loop().time


def context_for_thread(library: str | None = None) -> Context:
    """Return a copy of the context for a function that will run in another thread.

    ``library`` is the event loop's library, for sniffio to report in that thread; None if the
    thread has no event loop.
    """
    context = copy_context()
    sniffio: Any = sys.modules.get("sniffio")  # If sniffio is installed, anyio asks it.
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, library)
    return context


def native_cancel_requests() -> int:
    """Return how many ``task.cancel()`` requests are pending on the running task; 0 on trio."""
    task = _asyncio_task()
    return 0 if task is None else task.cancelling()


def split_cancellation(
    error: BaseException,
) -> tuple[BaseException | None, BaseException | None]:
    """Split an error or a group into its cancellation and the rest. Either may be None."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        cancellation, rest = group.split(cancellations())
        # A split returns a new group even if nothing was taken out of it.
        return (None, group) if cancellation is None else (cancellation, rest)
    if isinstance(error, cancellations()):
        return error, None
    return None, error


def first_in(error: Any) -> BaseException:
    """Return the first exception inside a group, or the exception itself if it isn't a group."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    first: BaseException = error
    return first_in(inside[0]) if inside else first


def cancellations() -> tuple[type[BaseException], ...]:
    """Return the exception types of cancellations; on trio, code may raise asyncio's type, too."""
    native = anyio.get_cancelled_exc_class()
    if "asyncio" not in sys.modules:
        return (native,)
    return native, sys.modules["asyncio"].CancelledError


def scope_cancelled() -> bool:
    """Return whether a cancel scope around the running task is cancelled or past its deadline."""
    return anyio.current_effective_deadline() == -math.inf


def cancel_requested() -> bool:
    """Return whether the running task was cancelled, by a scope or by ``task.cancel()``."""
    return scope_cancelled() or native_cancel_requests() > 0


class foreign:  # noqa: N801 (it reads as a function)
    """A context manager for user code: turns a cancellation nobody asked for into an error.

    A cancellation that somebody did ask for passes unchanged, and so do all other exceptions. From
    an exception group that holds both errors and a cancellation nobody asked for, only the errors
    are raised.

    Args:
        who: the name of the user code, with which the error's message begins.
        error: the type of the error.
    """

    # It isn't a `contextmanager`, because that sets attributes of exceptions, which some refuse.

    __slots__ = ("_error", "_who")

    def __init__(self, who: str, error: type[Exception] = RuntimeError) -> None:
        self._who = who
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        if exc is None:
            return
        cancellation, rest = split_cancellation(exc)
        if cancellation is None or cancel_requested():
            return
        if rest is not None:
            raise rest from None
        msg = f"{self._who} raised a cancellation that no one asked for"
        raise self._error(msg) from exc


def cancellation_lost(since: int) -> bool:
    """Return whether ``task.cancel()`` was called on the running task, which still runs.

    asyncio raises the cancellation only once. So if the task still runs, some code has swallowed
    or replaced the cancellation. ``since`` is an earlier result of `native_cancel_requests`:
    earlier cancellations don't count, because the task may be cleaning up after them.
    """
    return native_cancel_requests() > since and not scope_cancelled()


class WatchedEvent:
    """An event for one waiting task. It calls a function in the step that cancels the wait.

    The waiting task itself learns of its cancellation only when it runs next, and until then other
    tasks may go on as if nothing had happened.

    Args:
        on_cancel: the function, which must not raise.
    """

    __slots__ = ("_is_set", "_on_cancel", "_wake")

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self._on_cancel = on_cancel
        self._is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        """Wake the waiting task, if there is one, and let a later `wait` return."""
        self._is_set = True
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    async def wait(self) -> None:
        """Wait until the event is set."""
        if self._is_set:
            await anyio.lowlevel.checkpoint()
        elif (task := _asyncio_task()) is not None:
            waiter = _watched_future()(loop=task.get_loop())
            waiter.on_cancel = self._on_cancel
            self._wake = lambda: None if waiter.done() else waiter.set_result(None)
            await waiter
        else:
            await self._wait_on_trio()

    async def _wait_on_trio(self) -> None:
        trio: Any = sys.modules["trio"].lowlevel
        task = trio.current_task()
        self._wake = lambda: trio.reschedule(task)

        def abort(_: object) -> Any:
            self._wake = None
            self._on_cancel()
            return trio.Abort.SUCCEEDED

        await trio.wait_task_rescheduled(abort)


@cache
def _watched_future() -> Any:
    """Return a class of asyncio's futures that tells of its cancellation at once."""
    import asyncio  # noqa: PLC0415 (on trio, it may never be imported)

    class WatchedFuture(asyncio.Future[None]):
        on_cancel: Callable[[], None]

        def cancel(self, msg: Any = None) -> bool:
            cancelled = super().cancel(msg)
            if cancelled:
                self.on_cancel()
            return cancelled

    return WatchedFuture


def _asyncio_task() -> asyncio.Task[object] | None:
    """Return asyncio's running task; None on trio, even if trio runs inside asyncio."""
    asyncio: Any = sys.modules.get("asyncio")
    try:
        return asyncio.current_task()  # type: ignore[no-any-return]
    except _NO_LOOP:
        return None
