"""Choose the error that a call raises if all its draws errored, and chain errors to causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.display import add_note, plural
from mellea_like.errors import SamplingFailed

if TYPE_CHECKING:
    from collections.abc import Sequence


def caused_by(error: Exception, cause: BaseException) -> Exception:
    """Give an error a cause and return the error, or a copy of it if the error led to the cause.

    For example, a judge's error about a spent budget may have led to the error of a draw. If the
    judge's error then got the draw's error as its cause, the causes would form a circle.
    """
    if _led_to(cause, error):
        error = type(error)(str(error))
    error.__cause__ = cause
    return error


def _led_to(error: BaseException, other: BaseException) -> bool:
    """Return whether ``other`` is ``error`` itself, or one of its causes and contexts."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        exc = ahead.pop()
        if exc is other:
            return True
        if exc is not None and id(exc) not in seen:
            seen.add(id(exc))
            ahead += (exc.__cause__, exc.__context__)
    return False


def first_error(errors: Sequence[BaseException], sampling_id: str) -> BaseException:
    """Return the first error of draws with a note, or a `SamplingFailed` if all were cancelled."""
    if not errors:
        stopped = (
            f"sampling {sampling_id}: its draws were cancelled, although nobody cancelled the call"
        )
        return SamplingFailed(stopped)
    first = errors[0]
    count = plural(len(errors), "draw")
    add_note(
        first,
        f"sampling {sampling_id}: no draw was judged; {count} errored,"
        " and this was the first of the errors",
    )
    notes = first.__notes__  # Put the note about the call before those on where a validator raised.
    notes.insert(0, notes.pop())
    return first
