"""Stop when a validator raises the same exception for every reply, so that no draw can pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Option, Ruling, Stop, Wait
from mellea_like.schedules.base import SLACK
from mellea_like.schedules.giving_up import FEWEST, bug_of, times_seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Ask, Next

__all__ = ["SameBug", "SameBugInOrder", "SameBugWaits"]

PATIENCE = 0.05
"""The least number of seconds that a lane waits for the other lanes after a bug."""


class SameBug(Option):
    """Ends the call when a validator bug has ended as many draws as there are lanes, at least 2."""

    hears = Outcome.ERRORED

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def hear(self, slice_: Slice) -> Ruling | None:
        """Count the draws that had the same bug as this one; end the call once there are enough."""
        if (bug := bug_of(slice_)) is None:
            return None
        times = times_seen(bug, self.call.slices)
        if times >= max(self._lanes, FEWEST):
            why = f"{bug}, with every reply ({times} so far)"
            return Ruling(over=True, why=Stop(StopReason.HOPELESS, why))
        if times:
            self.seen(slice_)
        return None

    def seen(self, slice_: Slice) -> None:
        """Take note of a draw with a bug that doesn't end the call yet. By default, do nothing."""


class SameBugWaits(SameBug):
    """Like `SameBug`, but also makes a lane wait after a bug, to see if other lanes hit it, too."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes)
        self._until: dict[int, float] = {}

    def seen(self, slice_: Slice) -> None:
        """Make the lane of a draw with a bug wait as long as the draw took, at least `PATIENCE`."""
        self._until[slice_.chain] = slice_.ended_at + max(slice_.duration, PATIENCE)

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Make a lane whose last draw had a bug wait; ask the plan for all other lanes."""
        left = self._until.get(lane, 0.0) - now
        return Wait(left, mine=True) if left > SLACK else go(lane, now)


class SameBugInOrder(Option):
    """With ``selection="ordered"``, ends a lane when a validator bug has ended two of its draws."""

    hears = Outcome.ERRORED

    def hear(self, slice_: Slice) -> Ruling | None:
        """Drop the remaining draws of a lane in which the same bug has ended two draws."""
        if (bug := bug_of(slice_)) is None:
            return None
        own = [other for other in self.call.slices if other.chain == slice_.chain]
        if times_seen(bug, own) < FEWEST:
            return None

        self.call.broken = True

        def of_this_lane(ask: Ask) -> bool:
            return ask.subsample == slice_.subsample

        return Ruling(drop=of_this_lane)
