"""``give_up=``: stop when a requirement fails so often that further draws would not help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Option, Ruling, Stop

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.schedules.giving_up import Tally

__all__ = ["GivingUp"]


class GivingUp(Option):
    """Ends a call when its verdicts show that some requirement is hardly ever met."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def hear(self, slice_: Slice) -> Ruling | None:
        """Count the verdicts on a slice; end the call if further draws would not help."""
        if slice_.outcome is not Outcome.FAILED and not slice_.passed:
            return None
        why = self._tally.add(slice_)
        return Ruling(over=True, why=Stop(StopReason.HOPELESS, why)) if why else None
