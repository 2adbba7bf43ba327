"""The default plan: each lane has its own attempts. Lanes run side by side, or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.slice import Outcome
from mellea_like.plans.repairs import ChainState

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Ask, Next
    from mellea_like.plans.repairs import Repairs

_CONTINUES, _PASSED = ChainState.CONTINUES, Outcome.PASSED


class Lanes:
    """The plan in which each lane makes one chain of draws.

    With ``race``, the lanes run side by side, otherwise one after another.
    """

    def __init__(self, repairs: Repairs, lanes: int, loop_budget: int, *, race: bool) -> None:
        self.lanes = lanes if race else 1
        self._repairs = repairs
        self._loop_budget = loop_budget
        self._depths = [0] * lanes
        """How many attempts each lane has used; the loop budget once the lane has ended."""

    def next(self, lane: int, now: float) -> Next:  # noqa: ARG002 (it never waits)
        """Return what a lane's next draw asks; None if the lane has ended."""
        while True:
            depth = self._depths[lane]
            if depth == self._loop_budget:
                if self.lanes > 1 or lane + 1 == len(self._depths):
                    return None
                lane += 1
                continue
            self._depths[lane] = depth + 1
            iteration = lane * self._loop_budget + depth + 1
            ask = self._repairs.ask(iteration, lane, depth, lane)
            if ask is not None:
                return ask

    def hear(self, slice_: Slice) -> None:
        """Take note of a draw that has ended."""
        if self._repairs.hear(slice_) is _CONTINUES:
            return
        if slice_.outcome is _PASSED and self.lanes == 1:
            # The lanes run one after another. In a race, this pass would have ended the others.
            self._depths = [self._loop_budget] * len(self._depths)
        self._depths[slice_.chain] = self._loop_budget

    def unused(self, ask: Ask) -> None:
        """End the chain of a draw that can't win: the chain's later draws can't win, either."""
        self._depths[ask.chain] = self._loop_budget
