"""``give_up=``: stop when a requirement fails so often that further draws would not help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.kernel.ports import Ask, Option, Ruling, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Next
    from mellea_like.schedules.giving_up import Tally


class GivingUp(Option):
    """Ends a call when its verdicts show that some requirement is hardly ever met."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Tell the tally of each draw that starts."""
        ask = go(lane, now)
        if isinstance(ask, Ask):
            self._tally.start(ask.iteration)
        return ask

    def hear(self, slice_: Slice) -> Ruling | None:
        """Report a draw to the tally; end the call if further draws would not help."""
        why = self._tally.add(slice_)
        return Ruling(over=True, why=Stop(StopReason.HOPELESS, why)) if why else None
