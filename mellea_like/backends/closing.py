"""Closing a response of an HTTP library, even if it was not read to its end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLOSE_SECONDS = 1.0
"""The most seconds to spend on closing a reply or a connection. Then it is abandoned."""


async def close(response: Any, chunks: AsyncIterator[bytes]) -> None:
    """Close a response and, if the body was not read to its end, also its connection.

    After the response is closed, this function reads on from ``chunks``. The read fails because the
    response is closed, and the error ends all of the HTTP library's nested generators. Closing only
    the outermost generator would leave inner ones open.
    """
    with anyio.move_on_after(CLOSE_SECONDS, shield=True), suppress(Exception):
        await response.aclose()
        async for _ in chunks:
            pass
