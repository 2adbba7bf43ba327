"""Saying which tasks don't end when they are told to."""

from __future__ import annotations

import anyio

from mellea_like.runtime.logs import warn
from mellea_like.runtime.stacks import stack_of

__all__ = ["log_stuck_tasks", "task_name"]


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
