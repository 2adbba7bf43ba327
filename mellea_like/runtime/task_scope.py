"""Task groups whose errors aren't wrapped in exception groups."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from mellea_like.runtime.task_stack import see_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup


@asynccontextmanager
async def task_scope() -> AsyncGenerator[TaskGroup]:
    """Open a task group, and cancel it when the block ends. The block's error isn't wrapped."""
    # The task group would raise the error again, wrapped in an exception group.
    group = await anyio.create_task_group().__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel("the block was left")
        await group.__aexit__(None, None, None)


async def run_together(
    functions: Sequence[Callable[[], Awaitable[object]]], sampling_id: str, what: str, grace: float
) -> None:
    """Run functions concurrently to their end; the first error cancels the others and is raised.

    If the tasks are cancelled and continue to run for ``grace`` seconds, their stacks are logged.
    """
    running, ended, errors = len(functions), anyio.Event(), list[BaseException]()
    prefix = f"mellea_like {sampling_id} {what} "

    async def run(function: Callable[[], Awaitable[object]]) -> None:
        nonlocal running
        try:
            await function()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 (raised again below, outside the group)
            errors.append(exc)
            tasks.cancel_scope.cancel()
        finally:
            running -= 1
            if not running:
                ended.set()

    async with anyio.create_task_group() as tasks:
        for number, function in enumerate(functions, 1):
            tasks.start_soon(run, function, name=f"{prefix}{number}")
        try:
            await ended.wait()
        except anyio.get_cancelled_exc_class():
            tasks.cancel_scope.cancel()
            await see_the_end(ended, prefix, grace, sampling_id)
            raise
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # Break the cycle between frame and exception.
