"""Closing a response of an HTTP library, read to its end or not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["close"]

CLOSE_SECONDS = 1.0
"""How long closing a response may take; what is not closed by then is cut."""


async def close(response: Any, chunks: AsyncIterator[bytes]) -> None:
    """Close a response: if its body is not read to its end, the connection too.

    After that the body is read until it fails for being closed. This takes the HTTP library's
    nested generators to their ends, of which closing the outermost would forget some.
    """
    with anyio.move_on_after(CLOSE_SECONDS, shield=True), suppress(Exception):
        await response.aclose()
        async for _ in chunks:
            pass
