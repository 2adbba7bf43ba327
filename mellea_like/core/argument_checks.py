"""Checks of the numbers and functions that users pass, and the wording of their errors."""

from __future__ import annotations

import inspect
import math
import sys
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

LARGEST = sys.float_info.max
"""The largest float. An int above it can't be converted to a float."""


def suggests_arguments(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate an ``__init__``: its error for a misspelled argument suggests the right name."""
    names = list(inspect.signature(init).parameters)

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            msg = f"{type(args[0]).__name__}() got an unexpected keyword argument {unknown[0]!r}"
            close = close_to(unknown[0], names)
            raise TypeError(f"{msg}. Did you mean {close[0]!r}?" if close else msg)
        init(*args, **kwargs)

    return checked


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: using an argument's old name raises an error that gives the new name."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in kwargs.keys() & names:
                msg = (
                    f"{function.__name__}() got an unexpected keyword argument {old!r}: it"
                    f" is now called {names[old]}"
                )
                raise TypeError(msg)
            return function(*args, **kwargs)

        return checked

    return decorate


def unknown_argument(where: str, name: str, names: Sequence[str]) -> str:
    """Return the error message for an unknown argument of a tool. It suggests a similar name."""
    close = close_to(name, names)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"there is no argument {where}{meant}: it takes {', '.join(names) or 'none'}"


def close_to(name: str, names: Sequence[str]) -> list[str]:
    """Return the name in ``names`` that was probably meant, if there is one, in a list."""
    from difflib import get_close_matches  # noqa: PLC0415 (for mistakes only)

    return get_close_matches(name, names, n=1)


def check_text(name: str, value: object) -> None:
    """Make sure that an argument is a ``str``."""
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}"
        raise TypeError(msg)


def check_type(name: str, value: object, kinds: Any, allowed: str) -> None:
    """Make sure that an argument is of a type, or one of a union; ``allowed`` describes it."""
    if not isinstance(value, kinds):
        msg = f"{name} must be {allowed}, not {shown(value)}"
        raise TypeError(msg)


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Make sure that an argument is one of several texts, at least two."""
    if value not in (texts := tuple(known)):
        *others, last = (repr(str(text)) for text in texts)
        msg = f"{name} must be {', '.join(others)} or {last}, not {value!r}"
        raise ValueError(msg)


def whole_number(name: str, value: object, *, least: float = 1, most: float = math.inf) -> int:
    """Make sure that an argument is a whole number within bounds, and return it."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be an integer, not {value!r}"
        raise TypeError(msg)
    if not least <= value <= most:
        upper = "" if most == math.inf else f" and at most {most}"
        msg = f"{name} must be at least {least}{upper}, not {value!r}"
        raise ValueError(msg)
    return value


def real_number(
    name: str,
    value: object,
    *,
    over: float = -math.inf,
    least: float | None = None,
    under: float = math.inf,
    most: float | None = None,
    unit: str = "",
) -> float:
    """Make sure that an argument is a number within bounds; without any, a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        of_unit = unit and f" of {unit}"
        msg = f"{name} must be a number{of_unit}, not {value!r}"
        raise TypeError(msg)
    enough = value > over if least is None else value >= least
    finite = abs(value) <= LARGEST or abs(value) == math.inf
    if not (enough and finite and (value < under if most is None else value <= most)):
        bounds = " and ".join(_bounds(over, least, under, most, unit and f" {unit}"))
        msg = f"{name} must be {bounds}, not {value!r}"
        raise ValueError(msg)
    return value


def _bounds(
    over: float, least: float | None, under: float, most: float | None, unit: str
) -> list[str]:
    """Describe bounds in words. A ``unit`` that isn't empty begins with a space."""
    bounds: list[str] = []
    if least is not None:
        bounds.append(f"at least {least:g}{unit}")
    elif over > -math.inf:
        bounds.append(f"greater than {over:g}{unit}")
    if most is None:
        bounds.append("finite" if under == math.inf else f"less than {under:g}{unit}")
    elif most < math.inf or not bounds:
        bounds.append(f"at most {most:g}{unit}")
    return bounds


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a call of the function returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, _bodies(function)))


def yields(function: Callable[..., object]) -> bool:
    """Return whether a call of the function only makes a generator, without running its code."""
    bodies = _bodies(function)
    return any(inspect.isgeneratorfunction(b) or inspect.isasyncgenfunction(b) for b in bodies)


def check_plain(name: str, function: Callable[..., object] | None) -> None:
    """Make sure that an argument is None or a plain function, neither async nor a generator."""
    if function is not None and (not callable(function) or is_async(function) or yields(function)):
        msg = f"{name} must be a plain function, not {function!r}"
        raise TypeError(msg)


def _bodies(function: object) -> tuple[Any, Any]:
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    return inner, getattr(inner, "__call__", None)  # noqa: B004 (an object with an async __call__)


def takes(function: Callable[..., object], number: int) -> bool:
    """Return whether a function takes ``number`` positional arguments; True if unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * number)
    except TypeError:
        return False
    return True
