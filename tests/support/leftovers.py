"""What a call may leave behind: tasks and threads."""

from __future__ import annotations

import threading

import anyio

KEPT = ("mellea_like", "Trio thread", "AnyIO worker")
"""Threads that wait some seconds for more work: the library's own few, and the event loops'."""


def running() -> set[int]:
    """The tasks of this event loop."""
    return {task.id for task in anyio.get_running_tasks()}


def other_threads() -> set[threading.Thread]:
    """All threads but those that are kept for a while."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(KEPT)}
