"""Sampling from code that is not async: one call, or many threads that share an event loop."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio
from anyio.lowlevel import current_token

from mellea_like.core.argument_checks import real_number
from mellea_like.runtime.event_loops import call_soon, context_for_thread, running_loop
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from types import FrameType
    from typing import Self, Unpack

    from anyio.abc import TaskGroup
    from typing_extensions import TypeForm

    from mellea_like.core.conversation import Asked, Parsed
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.sampling.arguments import Arguments
    from mellea_like.sampling.base import BaseSamplingStrategy

__all__ = ["SyncSampler"]

T = TypeVar("T")
F = TypeVar("F")

LIBRARY = "asyncio"
"""The async library whose event loop runs in the separate thread."""

CLOSE_SECONDS = 2.0
"""How long closing idle connections may take, in seconds."""


class SyncSampler:
    """Samples for several threads: all calls run on one event loop, in a separate thread.

    It is for programs that work in threads, such as a Flask or Django server. Any number of threads
    may call `sample` at a time. Since one event loop serves them all, they may share limiters and
    budgets, and connections are kept open from call to call::

        with SyncSampler(strategy) as sampler, ThreadPoolExecutor(32) as pool:
            results = list(pool.map(sampler.sample, prompts))

    The thread starts with the first call. A server may fork before that, but not afterwards.
    Leaving the block calls `close`. Without a block, call `close` at the end of the program.

    Args:
        strategy: how to sample; a call may name another.

    Raises:
        TypeError: ``strategy`` is not a strategy.
    """

    def __init__(self, strategy: BaseSamplingStrategy) -> None:
        _check_strategy(strategy)
        self._strategy = strategy
        self._thread = _LoopThread(strategy.settings.backends)

    @overload
    def sample(
        self,
        action: Asked[Parsed],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: None = None,
        strategy: BaseSamplingStrategy | None = None,
        timeout: float | None = None,
        **arguments: Unpack[Arguments],
    ) -> SamplingResult[Parsed]: ...
    @overload
    def sample(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: TypeForm[F],
        strategy: BaseSamplingStrategy | None = None,
        timeout: float | None = None,
        **arguments: Unpack[Arguments],
    ) -> SamplingResult[F]: ...
    def sample(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        strategy: BaseSamplingStrategy | None = None,
        timeout: float | None = None,
        **arguments: Any,
    ) -> SamplingResult[Any]:
        """Run the strategy's `sample` and wait for its result, from any thread.

        The call sees the context variables of the calling thread, such as a `PluginSet`'s scope.
        Ctrl-C cancels the call's requests and raises ``KeyboardInterrupt``.

        Args:
            action: see `BaseSamplingStrategy.sample`.
            requirements: see `BaseSamplingStrategy.sample`.
            strategy: how to sample, instead of the sampler's strategy. It may share limiters
                and budgets with other strategies.
            timeout: the longest to wait, in seconds. After that, the call is cancelled, its
                requests are closed, and ``TimeoutError`` is raised. (With a strategy's ``timeout``
                or a budget's ``seconds``, the call returns the result so far instead.)
            **arguments: see `BaseSamplingStrategy.sample`.

        Returns:
            The result.

        Raises:
            TimeoutError: the call took longer than ``timeout``.
            concurrent.futures.CancelledError: the sampler was closed in the meantime.
            RuntimeError: the sampler is closed; or an async or inline function has called this on
                the sampler's own event loop, which it would block forever.
            TypeError: ``strategy`` is not a strategy.
            ValueError: ``timeout`` is not over 0.
            Exception: the errors of `BaseSamplingStrategy.sample`.
        """
        if timeout is not None:
            real_number("timeout", timeout, over=0, unit="seconds")
        chosen = self._strategy if strategy is None else strategy
        _check_strategy(chosen)

        async def call() -> SamplingResult[Any]:
            with anyio.move_on_after(timeout):
                return await chosen.sample(action, requirements, **arguments)
            msg = f"the call took longer than {timeout:g} s and was cancelled"
            raise TimeoutError(msg)

        return self._thread.run(call)

    def close(self) -> None:
        """Cancel the calls in flight, close idle connections, and end the event loop's thread."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _check_strategy(strategy: object) -> None:
    if isinstance(strategy, type) or not callable(getattr(strategy, "sample", None)):
        msg = (
            "SyncSampler needs a strategy, such as RejectionSamplingStrategy(...), not"
            f" {strategy!r}"
        )
        raise TypeError(msg)


def run_once(call: Callable[[], Awaitable[T]], backends: Iterable[Any]) -> T:
    """Run a call in a new event loop, and in a new thread if this one already runs a loop."""
    if running_loop() is not None:
        thread = _LoopThread(backends)
        try:
            return thread.run(call)
        finally:
            thread.close()

    async def main() -> T:
        try:
            return await call()
        finally:
            await _close_idle(backends)

    return anyio.run(main)


async def _close_idle(backends: Iterable[Any]) -> None:
    closers: dict[int, Any] = {id(b): b.aclose for b in backends if hasattr(b, "aclose")}
    with anyio.move_on_after(CLOSE_SECONDS, shield=True):
        for close in closers.values():
            try:
                await close()
            except Exception as exc:  # noqa: BLE001 (the call's outcome stands)
                warn("closing idle connections: %s: %s", type(exc).__name__, exc)


class _LoopThread:
    """Runs calls on an event loop in a separate thread, which starts with the first call."""

    def __init__(self, backends: Iterable[Any]) -> None:
        self._backends = list(backends)
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._tasks: TaskGroup
        self._stop: anyio.Event

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a call on the event loop and wait for it; cancel it if the wait is interrupted."""
        if threading.current_thread() is self._thread:
            msg = (
                "a function on a SyncSampler's event loop would wait for itself: call the sampler"
                " from a plain function, without inline=True, or `await strategy.sample(...)`"
            )
            raise RuntimeError(msg)
        call = _Call(function)
        started = False
        with nullcontext() if running_loop() is None else _interruptible():
            try:
                with self._lock:
                    self._start(call)
                started = True
                return call.future.result()
            except BaseException:
                if started and not call.future.done():
                    call_soon(self._token, call.cancel)
                    wait([call.future])
                raise

    def _start(self, call: _Call[Any]) -> None:
        if self._closed:
            msg = "the SyncSampler is closed: make a new one"
            raise RuntimeError(msg)
        # A forked child has none of its parent's threads.
        if self._thread is None or not self._thread.is_alive():
            ready: Future[None] = Future()
            run = partial(self._run, ready)
            thread = threading.Thread(target=run, name="mellea_like loop", daemon=True)
            thread.start()
            ready.result()
            self._thread = thread
        # In the context of the caller, whose variables the task then has.
        start = partial(self._tasks.start_soon, call.run)
        context_for_thread(LIBRARY).run(call_soon, self._token, start)

    def _run(self, ready: Future[None]) -> None:
        try:
            anyio.run(self._serve, ready, backend=LIBRARY)
        except BaseException as exc:
            if ready.done():
                raise
            ready.set_exception(exc)

    async def _serve(self, ready: Future[None]) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._token = current_token()
                self._stop = anyio.Event()
                ready.set_result(None)
                await self._stop.wait()
                self._tasks.cancel_scope.cancel("the sampler is closed")
        finally:
            await _close_idle(self._backends)

    def close(self) -> None:
        """Cancel calls, close idle connections, end the event loop, and wait for its thread."""
        with self._lock:
            self._closed = True
        if self._thread is not None and self._thread.is_alive():
            call_soon(self._token, self._stop.set)
            self._thread.join()


class _Call(Generic[T]):
    """One call on the event loop, for which another thread waits."""

    __slots__ = ("cancelled", "function", "future", "scope")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.function = function
        self.future: Future[T] = Future()
        self.cancelled = False
        self.scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        with anyio.CancelScope() as self.scope:
            if self.cancelled:
                self.scope.cancel()
            try:
                value = await self.function()
            except anyio.get_cancelled_exc_class():
                msg = "the call was cancelled: its SyncSampler was closed"
                self.future.set_exception(CancelledError(msg))
                raise
            except BaseException as exc:  # noqa: BLE001 (handed to the thread that waits)
                self.future.set_exception(exc)
            else:
                self.future.set_result(value)

    def cancel(self) -> None:
        """Cancel the call. This must run on the event loop."""
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()


@contextmanager
def _interruptible() -> Generator[None, None, None]:
    """Let Ctrl-C interrupt a wait that blocks an event loop.

    After an interrupted wait, the previous handler of Ctrl-C is called, usually the event loop's.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupted:
            signal.raise_signal(signal.SIGINT)
