"""Tasks, threads and processes that a call or a command may leave behind."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

KEPT = ("mellea_like", "Trio thread", "AnyIO worker")
"""Threads that wait some seconds for more work: the library's own few, and the event loops'."""


def running() -> set[int]:
    """The tasks of this event loop."""
    return {task.id for task in anyio.get_running_tasks()}


def check_at_rest(*limits: Any) -> None:
    """Check that limits, gates or backends have no requests, waiters and reservations."""
    for limit in limits:
        now = limit.statistics()
        assert getattr(now, "in_flight", 0) == 0, f"{limit} is at work: {now}"
        assert getattr(now, "waiting", 0) == 0, f"{limit} has waiters: {now}"
        assert not any(getattr(now, "reserved", ())), f"{limit} has reserved something: {now}"


def has_begun(task: asyncio.Task[Any]) -> bool:
    """Whether a task has run; before, asyncio throws it away if it is cancelled, with a warning."""
    return inspect.getcoroutinestate(task.get_coro()) != inspect.CORO_CREATED


def other_threads() -> set[threading.Thread]:
    """All threads but those that are kept for a while."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(KEPT)}


def children(pid: int | str = "self") -> set[int]:
    """The processes that a process has started and not yet waited for."""
    found: set[int] = set()
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # The thread has ended meanwhile.
            found.update(map(int, listed.read_text(encoding="ascii").split()))
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> float:
    """Wait in this thread until a condition holds; return how long it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, f"not within {seconds} s"
        time.sleep(0.002)
    return time.monotonic() - begun
