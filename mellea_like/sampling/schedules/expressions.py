"""A grammar of schedules for configuration: a name, and its numbers behind a colon."""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.sampling.schedules.adaptive import Adaptive
from mellea_like.sampling.schedules.deadline import Deadline
from mellea_like.sampling.schedules.eager import Eager
from mellea_like.sampling.schedules.hedged import Hedged
from mellea_like.sampling.schedules.staggered import Staggered

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.sampling.schedules.base import Schedule

__all__ = ["SCHEDULES", "parse_schedule"]


class _Form(NamedTuple):
    """One form of the grammar."""

    make: Callable[..., Schedule]
    needed: tuple[str, ...]
    others: tuple[str, ...]
    example: str

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of all numbers, in order."""
        return self.needed + self.others


_FORMS = {
    "eager": _Form(Eager, (), (), "eager"),
    "pooled": _Form(partial(Eager, pool=True), (), (), "pooled"),
    "staggered": _Form(Staggered, ("SECONDS",), (), "staggered:0.5"),
    "hedged": _Form(Hedged, (), ("QUANTILE",), "hedged:0.8"),
    "adaptive": _Form(Adaptive, (), ("PRICE",), "adaptive:0.9"),
    "deadline": _Form(Deadline, ("SECONDS",), ("RISK",), "deadline:20,0.05"),
}

SCHEDULES = (
    "eager",
    "pooled",
    "staggered:SECONDS",
    "hedged[:QUANTILE]",
    "adaptive[:PRICE]",
    "deadline:SECONDS[,RISK]",
)
"""All forms, for help and error messages."""


def parse_schedule(text: str) -> Schedule:
    """Read a schedule.

    Args:
        text: what the user wrote, such as ``staggered:0.5``; in capitals or not, with or without
            spaces around its parts.

    Returns:
        The schedule; what is left out is as in Python.

    Raises:
        ValueError: it isn't a schedule; says what is wrong, and what to write.
    """
    name, colon, rest = text.partition(":")
    kind = name.strip().lower()
    form = _FORMS.get(kind)
    if form is None:
        raise ValueError(_unknown(text, kind))
    given = [part.strip() for part in rest.split(",")] if colon else []
    needed, numbers = form.needed, form.numbers
    if not len(needed) <= len(given) <= len(numbers):
        raise ValueError(_wrong_count(text, kind, form))
    try:
        return form.make(*(map(_number, given, numbers)))
    except ValueError as exc:
        message = str(exc).removeprefix(f"{kind.capitalize()}: ")
        msg = f"schedule {text!r}: {message}, as in {form.example}"
        raise ValueError(msg) from exc


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        msg = f"{name} is a number, not {text!r}"
        raise ValueError(msg) from None


def _wrong_count(text: str, kind: str, form: _Form) -> str:
    if not form.numbers:
        return f"schedule {text!r}: {kind} takes no number: write {kind}"
    needed = " and ".join(form.needed)
    most = ",".join(form.numbers)
    what = f"needs {needed}" if form.needed else f"takes {most} at most"
    if form.needed and ":" in text and text.partition(":")[2].strip():
        what = f"takes {most} and no more"
    return f"schedule {text!r}: {kind} {what}, as in {form.example}"


def _unknown(text: str, kind: str) -> str:
    close = difflib.get_close_matches(kind, _FORMS, n=1)
    hint = f"; did you mean {_FORMS[close[0]].example}?" if close else ""
    return f"schedule {text!r} is none of the known ones{hint}\nAllowed: {'  '.join(SCHEDULES)}"
