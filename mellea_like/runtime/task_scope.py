"""A task group whose tasks are cancelled when the block is left."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup

__all__ = ["task_scope"]


@asynccontextmanager
async def task_scope() -> AsyncGenerator[TaskGroup]:
    """Open a task group, and cancel it when the block ends. The block's errors aren't wrapped."""
    # The task group would raise the error again, wrapped in an exception group.
    group = await anyio.create_task_group().__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel("the block of the batch was left")
        await group.__aexit__(None, None, None)
