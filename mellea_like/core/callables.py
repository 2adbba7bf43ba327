"""What kind of function a user gave."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_async", "takes"]


def is_async(function: Callable[..., object]) -> bool:
    """Tell whether calling something gives a coroutine.

    Args:
        function: a function, an object with an async ``__call__``, or a partial of either.

    Returns:
        Whether it is async.
    """
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 (an object with an async __call__)
    )


def takes(function: Callable[..., object], number: int) -> bool:
    """Tell whether something can be called with a number of arguments.

    Args:
        function: anything that can be called.
        number: how many arguments it is to be given, by position.

    Returns:
        Whether its signature allows that; True for a builtin that does not tell.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * number)
    except TypeError:
        return False
    return True
