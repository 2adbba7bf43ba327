"""Write plain data as JSON, read it back and compare it.

Only plain data can be compared with a program's answers.

This module uses only the standard library, because the sandbox runs its source, too.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import cmath
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_EXACT = 2**63
"""Integers from this size on are written in hexadecimal, because Python limits decimal digits."""

_SEQUENCES: dict[str, type[Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "complex": (complex, str, complex),
    "decimal": (Decimal, str, Decimal),
    "fraction": (Fraction, str, Fraction),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
}


class Array(NamedTuple):
    """A NumPy array: its values as nested lists, and the name of its dtype."""

    dtype: str
    values: Any

    def __repr__(self) -> str:
        return f"array({self.values!r}, dtype={self.dtype})"


def encode(value: Any) -> Any:
    """Return plain data as JSON values; for other data raise ``TypeError`` with the type's name."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if -_EXACT < value < _EXACT else ["int", hex(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        values = encode(value.tolist())
        return ["array", [str(value.dtype), values]] if value.ndim else values
    for name, (kind, text, _) in _TEXTS.items():
        if isinstance(value, kind):
            return [name, text(value)]
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):  # The value of a subclass.
            return [name, [encode(item) for item in cast("Any", kind).__iter__(value)]]
    if isinstance(value, dict):
        pairs = cast("Any", dict).items(value)
        return ["dict", [[encode(key), encode(item)] for key, item in pairs]]
    raise TypeError(type(value).__name__)


def decode(data: Any) -> Any:
    """Return the data that `encode` wrote; raise ``ValueError`` for other JSON."""
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if not isinstance(data, list) or len(data) != 2:  # noqa: PLR2004
        msg = "no plain data"
        raise ValueError(msg)
    name, content = data
    try:
        if name == "int":
            return int(content, 16)
        if name == "array":
            return Array(str(content[0]), decode(content[1]))
        if name == "dict":
            return {decode(key): decode(value) for key, value in content}
        if name in _TEXTS:
            return _TEXTS[name][2](content)
        return _SEQUENCES[name]([decode(item) for item in content])
    except (ArithmeticError, LookupError, TypeError) as exc:
        raise ValueError(str(exc)) from exc


def same(found: Any, wanted: Any, relative: float, absolute: float) -> bool:
    """Return whether two values are equal (``==``), with tolerances for floats."""
    if isinstance(found, Array) or isinstance(wanted, Array):
        found, wanted = (one.values if isinstance(one, Array) else one for one in (found, wanted))
    if isinstance(found, float | complex) or isinstance(wanted, float | complex):
        if not (isinstance(found, Number) and isinstance(wanted, Number)):
            return False
        try:
            one, other = complex(cast("Any", found)), complex(cast("Any", wanted))
        except (OverflowError, ValueError):
            return False
        nan = cmath.isnan(one) and cmath.isnan(other)
        return nan or cmath.isclose(one, other, rel_tol=relative, abs_tol=absolute)
    near = partial(same, relative=relative, absolute=absolute)
    if isinstance(found, list | tuple) and type(found) is type(wanted):
        return len(found) == len(wanted) and all(map(near, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        both = found.keys() == wanted.keys()
        return both and all(near(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)
