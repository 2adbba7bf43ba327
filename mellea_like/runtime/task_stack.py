"""The stacks of suspended tasks."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Iterator


def stacks_of(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the stack of each task whose name starts with ``prefix``."""
    for task in anyio.get_running_tasks():
        if (task.name or "").startswith(prefix):
            yield task.name or "", "\n".join(_frames(task.coro))


def _frames(coroutine: Any) -> Iterator[str]:
    """Yield a line of text for each frame of a suspended coroutine, the outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            path, number = frame.f_code.co_filename, frame.f_lineno
            source = linecache.getline(path, number).strip()
            yield f"  {path}:{number} in {frame.f_code.co_qualname}: {source}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


async def see_the_end(ended: anyio.Event, prefix: str, grace: float, sampling_id: str) -> None:
    """Wait for cancelled tasks to end; log the stacks of those that still run after ``grace``."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(grace):
        await ended.wait()
        return
    for name, stack in stacks_of(prefix):
        # As an argument, a long stack would be cut off before its innermost frames.
        warn(
            f"{name} was cancelled {grace:g} s ago and still runs; the call waits for it. It is"
            f" at:\n{stack}",
            sampling_id=sampling_id,
        )
