"""The one module that knows asyncio from trio: was this code asked to stop?

anyio hides the two libraries from the rest of the package. What it can't hide is a native
``task.cancel()`` on asyncio, which is no cancel scope's doing; nor a ``CancelledError`` that
someone raised without any request for it.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cancel_requested", "clock", "native_cancel_requests"]


def clock() -> Callable[[], float]:
    """Return the running event loop's clock.

    Returns:
        What ``anyio.current_time`` calls in the end, without looking the loop up each time.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        try:
            time: Callable[[], float] = asyncio.get_running_loop().time
        except RuntimeError:
            return anyio.current_time
        return time
    return anyio.current_time


def native_cancel_requests() -> int:
    """Count the native cancellations that are pending on the running task.

    Returns:
        asyncio's ``Task.cancelling()``; always 0 on trio, where only scopes cancel.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return 0
    return 0 if task is None else int(task.cancelling())


def cancel_requested() -> bool:
    """Tell whether someone asked the running task to stop.

    Returns:
        True if a cancel scope round it is cancelled or past its deadline, or if the task itself was
        cancelled natively; False where a cancellation exception was raised by mistake.
    """
    return anyio.current_effective_deadline() == -math.inf or native_cancel_requests() > 0
