"""Showing objects to people: short, however long the texts in them are, and never failing."""

from __future__ import annotations

import reprlib
from dataclasses import fields
from typing import Any

__all__ = ["add_note", "error_text", "fields_shown", "shown"]

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


def error_text(error: BaseException | None) -> str:
    """Return an exception's text, also of one whose ``__str__`` raises.

    Args:
        error: anyone's exception.

    Returns:
        Its text; what tracebacks say instead, where it has none.
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (the exception's own)
        return f"<{type(error).__name__}'s __str__ failed>"


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, also to one that allows no new attributes (a frozen dataclass).

    Args:
        error: anyone's exception.
        note: the note.
    """
    vars(error).setdefault("__notes__", []).append(note)
