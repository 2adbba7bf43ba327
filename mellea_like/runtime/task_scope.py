"""Tasks that end when the block that waits for them is left."""

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
    """Cancel a group's tasks when the block is left; the group never sees what the block raises."""
    # It would raise that again, wrapped in an exception group.
    group = await anyio.create_task_group().__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel("the batch was left")
        await group.__aexit__(None, None, None)
