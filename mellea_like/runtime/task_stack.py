"""The stack of a suspended task."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["stack_of"]


def stack_of(coroutine: Any) -> Iterator[str]:
    """Yield a line of text for each frame of a suspended coroutine, the outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            path, number = frame.f_code.co_filename, frame.f_lineno
            source = linecache.getline(path, number).strip()
            yield f"  {path}:{number} in {frame.f_code.co_qualname}: {source}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
