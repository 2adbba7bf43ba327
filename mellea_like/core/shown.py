"""Showing objects to people: short, however long the texts in them are, and never failing."""

from __future__ import annotations

import reprlib
from dataclasses import fields
from typing import Any

__all__ = ["fields_shown", "shown"]

CHARACTERS = 200

_short = reprlib.Repr()
_short.maxstring = _short.maxother = CHARACTERS
_short.maxtuple = _short.maxlist = 3


def shown(value: object) -> str:
    """Return a short `repr`.

    Args:
        value: anything, also an object whose own `repr` raises.

    Returns:
        Its `repr`, with ``...`` in the middle of a long one.
    """
    return _short.repr(value)


def fields_shown(self: Any) -> str:
    """Return the `repr` of a dataclass, with each field shortened; it is used as ``__repr__``.

    Args:
        self: the dataclass's instance.

    Returns:
        The class's name and its fields.
    """
    inside = ", ".join(f"{f.name}={shown(getattr(self, f.name))}" for f in fields(self) if f.repr)
    return f"{type(self).__name__}({inside})"
