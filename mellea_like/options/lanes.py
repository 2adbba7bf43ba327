"""The default plan: each lane has its own turns, and all lanes start at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.kernel.ports import turn_of
from mellea_like.options.repairs import Chain

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Ask, Next
    from mellea_like.options.repairs import Repairs

__all__ = ["Lanes"]


class Lanes:
    """Each lane runs a chain on its own turns until the chain or the turns end.

    Args:
        repairs: decides what the chains ask.
        lanes: the number of lanes, 1 or more.
        loop_budget: turns of each lane, 1 or more.
        race: whether the lanes run side by side; otherwise one runs after the other, for there is
            nothing to race.
    """

    def __init__(self, repairs: Repairs, lanes: int, loop_budget: int, *, race: bool) -> None:
        self.lanes = lanes if race else 1
        self._repairs = repairs
        self._loop_budget = loop_budget
        self._depths = [0] * lanes
        self._ended = [False] * lanes

    def next(self, lane: int, now: float) -> Next:  # noqa: ARG002 (it never waits)
        """Return what a lane asks at its next turn."""
        while True:
            depth = self._depths[lane]
            if self._ended[lane] or depth == self._loop_budget:
                if self.lanes > 1 or lane + 1 == len(self._depths):
                    return None
                lane += 1
                continue
            self._depths[lane] = depth + 1
            ask = self._repairs.ask(turn_of(lane, depth, self._loop_budget), lane)
            if ask is not None:
                return ask

    def hear(self, slice_: Slice) -> None:
        """Take note of a draw that has ended."""
        ended = self._repairs.hear(slice_) is not Chain.GOES_ON
        if ended and slice_.passed and self.lanes == 1:
            self._ended = [True] * len(self._ended)  # The other lanes would have raced it.
        self._ended[slice_.chain] = ended

    def unused(self, ask: Ask) -> None:
        """End the chain of a turn that can't win: its later turns can't, either."""
        self._ended[ask.chain] = True
