"""``selection="first"``: the first slice that passes wins, and ends the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Option, Ruling

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice

_OVER = Ruling(over=True)


class First(Option):
    """Ends the call at the first slice that passes, and thus makes it the winner."""

    hears = Outcome.PASSED

    def hear(self, slice_: Slice) -> Ruling | None:
        """End the call at the first slice that passes."""
        del slice_
        return _OVER
