"""How the blocks of the coalescers' storms end."""

from __future__ import annotations

from typing import Any

import anyio

ENDS = ["leave", "drain", "abort", "cancel", "raise"]


class EndedError(Exception):
    """The error that a block raises."""


async def end(service: Any, how: str, scope: anyio.CancelScope, limit: float = 1.0) -> None:
    """End the block of a coalescer, inside a scope; a drain takes no longer than its limit."""
    if how == "drain":
        await service.drain(anyio.current_time() + limit)
    elif how == "abort":
        await service.abort()
    elif how == "cancel":
        scope.cancel()
        await anyio.sleep(1)
    elif how == "raise":
        raise EndedError
