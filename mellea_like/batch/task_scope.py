"""Tasks that end when the block that waits for them is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["TaskScope"]


class TaskScope:
    """A task group that is cancelled when the block is left, whatever the block raises.

    That is not said to it, for it would raise it again in a group.
    """

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group.cancel_scope.cancel("the batch was left")
        await self._group.__aexit__(None, None, None)
