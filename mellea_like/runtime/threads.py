"""Daemon threads for functions that may block.

anyio's own worker threads are not used, for two reasons. A thread that never ends must not keep
the process from exiting. And a function that its caller has abandoned must keep its slot, or the
number of stuck functions would grow without limit.

A function may wait for a call that itself needs threads. Each level of such nesting has its own
threads, so a function never waits for a thread that one of its callers holds.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.errors import ThreadsExhausted
from mellea_like.runtime.event_loops import call_soon, context_for_thread
from mellea_like.runtime.logs import logger, warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

T = TypeVar("T")

MAX_THREADS = 64
"""The most threads at each level of nesting. Further functions wait until a thread is free."""

SHOWN = 5
"""The most functions to name in a message."""

_WHAT_TO_DO = (
    "A thread can't be stopped, and is free again when its function ends: give what the function"
    " waits for a time limit. Requirement(..., timeout=) makes a check that hangs an error."
)

IDLE_SECONDS = 10.0
"""How long a thread waits for more work before it ends."""


class ThreadStatistics(NamedTuple):
    """Counts of threads and functions at one moment, over all levels of nesting.

    Attributes:
        threads: the number of threads.
        idle: the number of threads that wait for work.
        waiting: the number of functions that wait for a thread.
        abandoned: the number of running functions that nobody waits for any more.
        abandoned_total: the number of functions that were ever abandoned.
    """

    threads: int
    idle: int
    waiting: int
    abandoned: int
    abandoned_total: int


@dataclass(eq=False, slots=True)
class _Job(Generic[T]):
    """One function call to run in a thread."""

    function: Callable[..., T]
    arguments: tuple[object, ...]
    given_name: str | None
    context: Context
    token: EventLoopToken
    done: anyio.Event = field(default_factory=anyio.Event)
    ended: bool = False
    result: T | None = None
    error: BaseException | None = None

    @property
    def name(self) -> str:
        """The name of the function for messages."""
        inner = getattr(self.function, "func", self.function)  # A partial's function.
        return self.given_name or str(getattr(inner, "__name__", type(inner).__name__))

    def run(self) -> None:
        try:
            self.result = self.context.run(self.function, *self.arguments)
        except BaseException as exc:  # noqa: BLE001 (handed to the one who waits)
            self.error = exc

    def tell(self) -> None:
        # This doesn't wait, because the event loop may end first, and then it would wait forever.
        try:
            call_soon(self.token, self.done.set)
        except RuntimeError:
            # The event loop has ended, so nobody waits.
            return


class _Threads:
    """The threads for functions at one level of nesting, and the functions that wait for them."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.jobs: deque[_Job[Any]] = deque()
        self.threads = 0
        self.idle = 0
        self.abandoned: set[_Job[Any]] = set()
        self.abandoned_total = 0

    def submit(self, job: _Job[Any]) -> None:
        with self.condition:
            if self.exhausted:
                raise self.error()
            if self.idle <= len(self.jobs) and self.threads < MAX_THREADS:
                threading.Thread(target=self.work, name="mellea_like worker", daemon=True).start()
                self.threads += 1
            self.jobs.append(job)
            self.condition.notify()

    def abandon(self, job: _Job[Any]) -> bool:
        """Withdraw a job, or abandon it if it is running; return whether it was abandoned."""
        with self.condition:
            if job in self.jobs:
                self.jobs.remove(job)
                return False
            if job.ended:
                return False
            self.abandoned.add(job)
            self.abandoned_total += 1
            half = len(self.abandoned) == (MAX_THREADS + 1) // 2
            waiting = list(self.jobs) if self.exhausted else []
            for other in waiting:
                self.jobs.remove(other)
                other.ended, other.error = True, self.error()
            held = self.holders()
        for other in waiting:
            other.tell()
        if half:
            warn(
                "half of the %d worker threads run functions that were left behind: %s; when all"
                " do, whatever needs a thread fails. %s",
                MAX_THREADS,
                held,
                _WHAT_TO_DO,
            )
        return True

    @property
    def exhausted(self) -> bool:
        """Whether abandoned functions hold all threads, so that none is free until one ends."""
        return 0 < MAX_THREADS <= len(self.abandoned)

    def holders(self) -> str:
        """Return the names of the abandoned functions, with the number of threads each holds."""
        names = Counter(job.name for job in self.abandoned).most_common()
        more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
        return ", ".join(f"{name} ({n})" for name, n in names[:SHOWN]) + more

    def error(self) -> ThreadsExhausted:
        """Return the error for a function that gets no thread. It names the abandoned functions."""
        msg = (
            f"no thread is free: all {MAX_THREADS} run functions that were left behind when their"
            f" time was up or another draw won: {self.holders()}. {_WHAT_TO_DO}"
        )
        return ThreadsExhausted(msg)

    def work(self) -> None:
        while (job := self.next_job()) is not None:
            job.run()
            with self.condition:
                job.ended = True
                self.abandoned.discard(job)
            job.tell()
            del job

    def next_job(self) -> _Job[Any] | None:
        with self.condition:
            if not self.jobs:
                self.idle += 1
                self.condition.wait_for(lambda: self.jobs, IDLE_SECONDS)
                self.idle -= 1
            if self.jobs:
                return self.jobs.popleft()
            self.threads -= 1
            return None


_levels: dict[int, _Threads] = {}
_level: ContextVar[int] = ContextVar("mellea_like_thread_level", default=0)

if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads.
    os.register_at_fork(after_in_child=_levels.clear)


async def run_in_thread(function: Callable[..., T], *args: object, name: str | None = None) -> T:
    """Call a function that may block, in a daemon thread, and return its result."""
    # If the wait is cancelled, a function that is already running is abandoned. It runs to its
    # end, holds its thread until then, and is counted and logged.
    level = _level.get()
    context = context_for_thread()
    context.run(_level.set, level + 1)
    job = _Job(function, args, name, context, current_token())
    threads = _levels.get(level) or _levels.setdefault(level, _Threads())
    threads.submit(job)
    try:
        await job.done.wait()
    except BaseException:
        if threads.abandon(job):
            logger.info("abandoned %r, which continues to run in its thread", function)
        raise
    if job.error is not None:
        try:
            raise job.error
        finally:
            del job
    return job.result  # type: ignore[return-value]


async def run_to_its_end(function: Callable[..., T], *args: object) -> T:
    """Call a function in a thread, and wait for its result even if the caller is cancelled."""
    with anyio.CancelScope(shield=True):
        return await run_in_thread(function, *args)
    raise AssertionError  # For the type checkers: a scope may swallow what is raised in it.


def thread_statistics() -> ThreadStatistics:
    """Return a snapshot of the threads that run blocking functions."""
    total = ThreadStatistics(0, 0, 0, 0, 0)
    for threads in list(_levels.values()):
        with threads.condition:
            now = (
                threads.threads,
                threads.idle,
                len(threads.jobs),
                len(threads.abandoned),
                threads.abandoned_total,
            )
        total = ThreadStatistics(*map(sum, zip(total, now, strict=True)))
    return total
