"""Virtual time: sleeping for an hour returns immediately, on asyncio and on trio."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, TypeVarTuple

import anyio

from mellea_like.lazy import needs_extra
from mellea_like.limits.backoff_gate import JITTER
from mellea_like.runtime.event_loops import context_for_thread, running_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE = 5.0
"""The real seconds to wait for threads and sockets before a standstill counts as a deadlock."""

LOOK = 0.0001
"""The real seconds between two checks of whether a thread has finished."""


class DeadlockError(AssertionError):
    """Every task is waiting, and no timer is set that could wake one."""


class VirtualClock:
    """The virtual time of one run. It starts at 0, and jumps whenever every task is waiting.

    Keep worker threads and sockets out of the code under test. While all tasks wait for them, the
    clock jumps to the next timer, so timeouts expire immediately.

    If every task waits and no timer is set, the run ends with a `DeadlockError` instead of
    hanging. (On trio, a task that waits in a shielded scope can't be cancelled, so the run hangs.)

    The delays before retries use a fixed random seed, so they are the same in each run.
    """

    def __init__(self) -> None:
        JITTER.seed(0)
        self._scope: anyio.CancelScope | None = None
        self._stuck: list[str] = []

    @property
    def now(self) -> float:
        """The virtual time in seconds, as `anyio.current_time` returns it inside the run."""
        return anyio.current_time()

    def backend(self, name: Literal["asyncio", "trio"]) -> tuple[str, dict[str, Any]]:
        """Return the arguments that make `anyio.run` or anyio's pytest plugin use virtual time.

        Args:
            name: the event loop's library.

        Returns:
            The name and the backend options. Use them for one run only.

        Raises:
            ValueError: the name is neither ``"asyncio"`` nor ``"trio"``.
        """
        if name == "asyncio":
            return name, {"loop_factory": lambda: VirtualLoop(self._at_standstill)}
        if name == "trio":
            return name, _trio_options(self._at_standstill)
        msg = f"a virtual clock runs on asyncio or trio, not on {name!r}"
        raise ValueError(msg)

    async def run(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call and await a function, and raise an error if all its tasks wait forever.

        Args:
            function: the async function to call.
            *args: its arguments.
            **kwargs: its keyword arguments.

        Returns:
            The result of the function.

        Raises:
            DeadlockError: every task waited, and no timer was set.
        """
        with anyio.CancelScope() as self._scope:
            result = await function(*args, **kwargs)
            if not self._stuck:
                return result
        msg = "deadlock: every task is waiting and no timer is set; the tasks are " + ", ".join(
            self._stuck
        )
        raise DeadlockError(msg)

    def _at_standstill(self) -> bool:
        """Cancel the deadlocked run; return False if it hasn't begun, or was already cancelled."""
        if self._scope is None or self._stuck:
            return False
        self._stuck = [str(task.name) for task in anyio.get_running_tasks()]
        self._scope.cancel("deadlock in virtual time")
        return True


def run_virtual(
    function: Callable[[], Awaitable[T]], *, backend: Literal["asyncio", "trio"] = "asyncio"
) -> T:
    """Run an async function in virtual time on its own event loop.

    This is for property tests, scripts and notebooks; an async test uses the ``virtual_clock``
    fixture. If an event loop is already running, it is blocked while the new one runs in another
    thread.

    Args:
        function: an async function without arguments.
        backend: the event loop's library.

    Returns:
        The result of the function.

    Raises:
        DeadlockError: every task waited, and no timer was set.
        ValueError: the library isn't one of these.
        Exception: what the function raises.
    """
    clock = VirtualClock()
    name, options = clock.backend(backend)

    def run() -> T:
        return anyio.run(clock.run, function, backend=name, backend_options=options)

    if running_loop() is None:
        return run()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context_for_thread().run, run).result()


# --- asyncio ----------------------------------------------------------------------------------


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never sleeps: when all tasks wait, its time jumps to the next timer."""

    def __init__(self, at_standstill: Callable[[], bool]) -> None:
        self._clock = _JumpingSelector(at_standstill)
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self._clock.now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback; ignore one at infinity, as the virtual time would jump there."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    async def shutdown_default_executor(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (asyncio's)
    ) -> None:
        """Wait for the executor's threads; virtual time would jump to the time limit."""
        del timeout
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    """Polls, and moves the virtual time to the next timer instead of waiting for it."""

    def __init__(self, at_standstill: Callable[[], bool]) -> None:
        super().__init__()
        self.now = 0.0
        self._at_standstill = at_standstill

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None:
            self.now += timeout
            return ready
        # One of the files is always the loop's own wake-up socket.
        if _others_may_wake_it() or len(self.get_map()) > 1:
            ready = super().select(PATIENCE)
        if not ready and not self._at_standstill():
            msg = "deadlock: every task is waiting and no timer is set"
            raise DeadlockError(msg)
        return ready


# --- trio -------------------------------------------------------------------------------------


def _trio_options(at_standstill: Callable[[], bool]) -> dict[str, Any]:
    """Return the arguments that make ``trio.run`` use virtual time: a clock and an instrument."""
    with needs_extra("testing", "virtual time on trio needs trio"):
        import trio  # noqa: PLC0415 (an extra)
        from trio.testing import MockClock  # noqa: PLC0415

    class Watch(trio.abc.Instrument):
        """Detects a deadlock: no task can run, and no timer is set."""

        since: float | None = None

        def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
            self.since = None

        def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
            now = trio.lowlevel.current_statistics()
            if now.tasks_runnable or now.seconds_to_next_deadline < math.inf:
                self.since = None
                return
            if self.since is None:
                self.since = time.monotonic()
                return
            # If no thread can wake the loop, seeing it idle twice in a row is proof enough.
            waited = time.monotonic() - self.since
            if _others_may_wake_it() and waited < PATIENCE:
                # A thread that has taken long goes on for longer: look at it less often.
                time.sleep(max(LOOK, waited / 4))
                return
            if not at_standstill():
                time.sleep(LOOK)

    return {"clock": MockClock(autojump_threshold=0), "instruments": [Watch()]}


def _others_may_wake_it() -> bool:
    """Return whether other threads are running that might wake the event loop."""
    return threading.active_count() > 1
