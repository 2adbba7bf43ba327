"""Log the errors of draws; errors that differ only in numbers are logged once, with a count."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.display import attempt_names, bounded, error_text
from mellea_like.kernel.ports import Option
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice

NUMBER = re.compile(r"\d+")
"""Matches a number, such as an id or a time. Errors that differ only in these count as equal."""


@dataclass(eq=False)
class LoggedErrors(Option):
    """Logs the errors of a call's draws when all lanes have ended."""

    logged: int = 0
    """The number of draws whose errors were logged by earlier rounds of the call."""

    def ended(self) -> None:
        """Log the errors of the draws that have ended since this method last ran."""
        slices = self.call.slices
        fresh, self.logged = slices[self.logged :], len(slices)
        kinds: dict[object, list[Slice]] = {}
        for slice_ in fresh:
            if (error := slice_.error) is not None:
                text = NUMBER.sub("0", bounded(error_text(error)))
                kind = (type(error), getattr(error, "status", None), text)
                kinds.setdefault(kind, []).append(slice_)
        if not kinds:
            return
        names = attempt_names((s.iteration, s.subsample, s.depth) for s in slices)
        for alike in kinds.values():
            first = alike[0]
            what: tuple[object, ...] = (type(first.error).__name__, first.error)
            if len(alike) == 1:
                message = f"error in {names[first.iteration]}: %s: %s"
            else:
                message = f"%d similar errors, the first in {names[first.iteration]}: %s: %s"
                what = (len(alike), *what)
            warn(
                message,
                *what,
                sampling_id=self.call.id,
                iteration=first.iteration,
                subsample=first.subsample,
            )
