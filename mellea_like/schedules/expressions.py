"""Read schedules that are written as text, for configuration: a name, a colon and a number."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.argument_checks import close_to
from mellea_like.schedules.built_in import Eager, Hedged, Restart, Staggered

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.schedules.base import BaseSchedule

__all__ = ["SCHEDULES", "parse_schedule"]


class _Form(NamedTuple):
    """A kind of schedule as text: its form, an example, and the function that makes it.

    ``numbers`` are the allowed counts of numbers after the name: 0, 1 or both. ``make`` gets them
    as floats.
    """

    written: str
    example: str
    make: Callable[..., BaseSchedule]
    numbers: tuple[int, ...] = (0,)


_FORMS = {
    "eager": _Form("eager", "eager", Eager),
    "pooled": _Form("pooled", "pooled", partial(Eager, pool=True)),
    "staggered": _Form("staggered:SECONDS", "staggered:0.5", Staggered, (1,)),
    "hedged": _Form("hedged[:QUANTILE]", "hedged:0.8", Hedged, (0, 1)),
    "restart": _Form("restart[:QUANTILE]", "restart:0.95", Restart, (0, 1)),
}

SCHEDULES = tuple(form.written for form in _FORMS.values())
"""How each kind of schedule is written, for help and error messages."""


def parse_schedule(text: str) -> BaseSchedule:
    """Read a schedule written as a text, such as ``"hedged:0.8"``.

    Args:
        text: a schedule's name, which for some is followed by a colon and a number. `SCHEDULES`
            lists the forms. Case doesn't matter.

    Returns:
        The schedule.

    Raises:
        ValueError: the name is unknown, or the number is wrong.
    """
    name, colon, rest = text.partition(":")
    kind = name.strip().lower()
    form = _FORMS.get(kind)
    if form is None:
        close = close_to(kind, list(_FORMS))
        hint = f"; did you mean {_FORMS[close[0]].example}?" if close else ""
        allowed = "  ".join(SCHEDULES)
        msg = f"schedule {text!r} is unknown{hint}\nAllowed: {allowed}"
        raise ValueError(msg)
    try:
        numbers = [float(rest)] if colon else []
    except ValueError:
        numbers = None
    if numbers is None or len(numbers) not in form.numbers:
        msg = f"schedule {text!r} must have the form {form.written}, as in {form.example}"
        raise ValueError(msg)
    try:
        return form.make(*numbers)
    except ValueError as exc:
        message = str(exc).removeprefix(f"{kind.capitalize()}: ")
        msg = f"schedule {text!r}: {message}, as in {form.example}"
        raise ValueError(msg) from exc
