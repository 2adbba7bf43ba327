"""Stop when a validator raises the same exception for every reply, so that no draw can pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Choice, Option, Ruling, Stop
from mellea_like.schedules.giving_up import FEWEST, bug_of, times_seen

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Ask, Facts

PATIENCE = 0.05
"""The least number of seconds that a lane waits for the other lanes after a bug."""


@dataclass(eq=False)
class SameBug(Option):
    """Ends the call once the same validator bug has ended enough draws: one per lane, at least 2.

    With ``waits``, a lane waits after a bug, to see if other lanes hit it, too.
    """

    hears = Outcome.ERRORED

    lanes: int
    waits: bool

    def hear(self, slice_: Slice) -> Ruling | None:
        """Count the draws that had the same bug as this one; end the call once there are enough."""
        if (bug := bug_of(slice_)) is None:
            return None
        times = times_seen(bug, self.call.slices)
        if times >= max(self.lanes, FEWEST):
            why = f"{bug}, with every reply ({times} so far)"
            return Ruling(over=True, why=Stop(StopReason.HOPELESS, why))
        if times and self.waits and self.lanes > 1:
            return Ruling(hold=max(slice_.duration, PATIENCE))
        return None


class SameBugInOrder(Option):
    """With ``selection="ordered"``, ends a lane when a validator bug has ended two of its draws."""

    hears = Outcome.ERRORED
    _ended_a_lane = False

    def hear(self, slice_: Slice) -> Ruling | None:
        """Drop the remaining draws of a lane in which the same bug has ended two draws."""
        if (bug := bug_of(slice_)) is None:
            return None
        own = [other for other in self.call.slices if other.chain == slice_.chain]
        if times_seen(bug, own) < FEWEST:
            return None

        self._ended_a_lane = True

        def of_this_lane(ask: Ask) -> bool:
            return ask.subsample == slice_.subsample

        return Ruling(drop=of_this_lane)

    def choose(self, facts: Facts) -> Choice | None:
        """Choose nothing; if a bug has ended a lane, say that the call stopped for an error."""
        # `Ordered` comes first, so no draw has passed.
        if not self._ended_a_lane or facts.timed_out:
            return None
        return Choice(None, final=False, why=Stop(StopReason.ERROR, ""))
