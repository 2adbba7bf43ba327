"""The checks of schedules' arguments."""

from __future__ import annotations

import math

__all__ = ["check_between", "check_count"]


def check_between(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Make sure that an argument is a number strictly between two others.

    Args:
        name: what it belongs to and how it is called.
        value: its value.
        low: the lower bound.
        high: the upper bound.

    Raises:
        TypeError: it is no number.
        ValueError: it is not between the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} is a number, not {value!r}"
        raise TypeError(msg)
    if not low < value < high:
        bounds = f"over {low:g} and finite" if high == math.inf else f"between {low:g} and {high:g}"
        msg = f"{name} is {bounds}, not {value!r}"
        raise ValueError(msg)


def check_count(name: str, value: object, low: int = 1) -> None:
    """Make sure that an argument is a whole number of at least so many.

    Args:
        name: what it belongs to and how it is called.
        value: its value.
        low: the least it may be.

    Raises:
        TypeError: it is no int.
        ValueError: it is less.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} is an int, not {value!r}"
        raise TypeError(msg)
    if value < low:
        msg = f"{name} is at least {low}, not {value}"
        raise ValueError(msg)
