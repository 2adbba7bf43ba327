"""What a call may leave behind: tasks, threads and processes."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import anyio

KEPT = ("mellea_like", "Trio thread", "AnyIO worker")
"""Threads that wait some seconds for more work: the library's own few, and the event loops'."""


def running() -> set[int]:
    """The tasks of this event loop."""
    return {task.id for task in anyio.get_running_tasks()}


def other_threads() -> set[threading.Thread]:
    """All threads but those that are kept for a while."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(KEPT)}


def children() -> set[int]:
    """The processes that this one has started and not yet waited for."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # The thread has ended meanwhile.
            found.update(map(int, listed.read_text(encoding="ascii").split()))
    return found
