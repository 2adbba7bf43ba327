"""What kind of function a user gave."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_plain", "is_async", "takes", "yields"]


def is_async(function: Callable[..., object]) -> bool:
    """Tell whether calling something gives a coroutine."""
    return any(map(inspect.iscoroutinefunction, _bodies(function)))


def yields(function: Callable[..., object]) -> bool:
    """Tell whether calling something gives a generator, and so runs nothing."""
    bodies = _bodies(function)
    return any(inspect.isgeneratorfunction(b) or inspect.isasyncgenfunction(b) for b in bodies)


def check_plain(name: str, function: Callable[..., object] | None) -> None:
    """Refuse what does nothing when it is called and not awaited or iterated."""
    if function is not None and (not callable(function) or is_async(function) or yields(function)):
        msg = f"{name} is a plain function, not {function!r}"
        raise TypeError(msg)


def _bodies(function: object) -> tuple[Any, Any]:
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    return inner, getattr(inner, "__call__", None)  # noqa: B004 (an object with an async __call__)


def takes(function: Callable[..., object], number: int) -> bool:
    """Tell whether something can be called with a number of arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * number)
    except TypeError:
        return False
    return True
