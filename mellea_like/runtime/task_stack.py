"""The stacks of suspended tasks."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Iterator


def stack_of(coroutine: Any) -> Iterator[str]:
    """Yield a line of text for each frame of a suspended coroutine, the outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            path, number = frame.f_code.co_filename, frame.f_lineno
            source = linecache.getline(path, number).strip()
            yield f"  {path}:{number} in {frame.f_code.co_qualname}: {source}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


async def see_the_end(ended: anyio.Event, prefix: str, grace: float, sampling_id: str) -> None:
    """Wait for cancelled tasks to end; log the stacks of any still running after ``grace`` seconds.

    ``prefix`` is the beginning of the tasks' names.
    """
    with anyio.CancelScope(shield=True), anyio.move_on_after(grace):
        await ended.wait()
        return
    for task in anyio.get_running_tasks():
        if (task.name or "").startswith(prefix):
            warn(
                "%s was cancelled %g s ago and still runs; the call waits for it. It is at:\n%s",
                task.name,
                grace,
                "\n".join(stack_of(task.coro)),
                sampling_id=sampling_id,
            )
