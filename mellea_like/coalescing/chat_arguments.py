"""A chat dispatcher's arguments, checked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["moment", "policy", "runnable", "seconds"]

F = TypeVar("F", bound="Callable[..., object]")
P = TypeVar("P", bound=Literal["queue", "interrupt", "reject"])

POLICIES = ("queue", "interrupt", "reject")


def runnable(run: F) -> F:
    """Check a run function.

    Args:
        run: what was given.

    Returns:
        The same.

    Raises:
        TypeError: it can't be called.
    """
    if not callable(run):
        msg = f"a run is an async function that gets a list of messages, not {run!r}"
        raise TypeError(msg)
    return run


def policy(on_busy: P) -> P:
    """Check what a message is to do that comes during a run.

    Args:
        on_busy: what was given.

    Returns:
        The same.

    Raises:
        ValueError: there is no such policy.
    """
    if on_busy not in POLICIES:
        msg = f"ChatDispatcher: on_busy is 'queue', 'interrupt' or 'reject', not {on_busy!r}"
        raise ValueError(msg)
    return on_busy


def seconds(name: str, value: object) -> float:
    """Check a time span.

    Args:
        name: the argument's.
        value: what was given.

    Returns:
        The same, in seconds.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, or not a number (``nan``).
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"ChatDispatcher: {name} is a number of seconds, not {value!r}"
        raise TypeError(msg)
    if not value >= 0:
        msg = f"ChatDispatcher: {name} is at least 0 seconds, not {value!r}"
        raise ValueError(msg)
    return value


def moment(deadline: object) -> float:
    """Check a deadline.

    Args:
        deadline: what was given.

    Returns:
        The same, on the event loop's clock.

    Raises:
        TypeError: it is no number.
        ValueError: it is not a number (``nan``).
    """
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        msg = f"a deadline is a time on anyio.current_time()'s clock, not {deadline!r}"
        raise TypeError(msg)
    if math.isnan(deadline):
        msg = "a deadline is a time on anyio.current_time()'s clock, not nan"
        raise ValueError(msg)
    return deadline
