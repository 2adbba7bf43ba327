"""Saying which tasks don't end when they are told to."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["log_stuck_tasks", "stack_of", "task_name"]


def log_stuck_tasks(sampling_id: str, grace: float) -> None:
    """Log the stack of each subsample of a call that is still running.

    Args:
        sampling_id: the call's id, which the names of its tasks begin with.
        grace: how long they were waited for, in seconds.
    """
    for task in anyio.get_running_tasks():
        if task.name is not None and task.name.startswith(task_name(sampling_id, "")):
            warn(
                "%s was cancelled %g s ago and still runs; the call waits for it. It is at:\n%s",
                task.name,
                grace,
                "\n".join(stack_of(task.coro)),
                sampling_id=sampling_id,
            )


def task_name(sampling_id: str, chain: int | str) -> str:
    """Return the name of the task that runs a subsample.

    Args:
        sampling_id: the call's id.
        chain: the subsample's index; empty for what all names of the call begin with.

    Returns:
        The name.
    """
    return f"mellea_like {sampling_id} subsample {chain}"


def stack_of(coroutine: Any) -> Iterator[str]:
    """List where a suspended coroutine stands, the outermost frame first.

    Args:
        coroutine: the coroutine, or whatever it awaits.

    Yields:
        One line a frame: file, line number, function and source.
    """
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            path, number = frame.f_code.co_filename, frame.f_lineno
            source = linecache.getline(path, number).strip()
            yield f"  {path}:{number} in {frame.f_code.co_qualname}: {source}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
