"""``selection="ordered"``: the passing draw of lowest (attempt, lane) wins, whatever the timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Choice, Option, Ruling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Ask, Facts


class Ordered(Option):
    """Makes the passing draw of the lowest rank win; draws of lower rank than a pass still run."""

    best: Slice | None = None
    hears = Outcome.PASSED

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def hear(self, slice_: Slice) -> Ruling | None:
        """Drop all draws that rank after the passing draw of lowest rank: they can't win."""
        if self.best is not None and slice_.rank > self.best.rank:
            return None
        self.best = slice_
        rank = slice_.rank

        def later(ask: Ask) -> bool:
            return ask.rank > rank

        return Ruling(drop=later)

    def choose(self, facts: Facts) -> Choice | None:
        """Choose the passing slice of lowest rank. It is final if no lower one could still pass."""
        if self.best is None:
            return None
        cut = facts.cancelled or facts.timed_out or facts.stopped is not None
        final = not cut or self._unbeatable(facts.slices, self.best)
        return Choice(facts.slices.index(self.best), final)

    def _unbeatable(self, slices: Sequence[Slice], best: Slice) -> bool:
        """Return whether every draw of lower rank has ended, or can't be made."""
        ended = {s.rank: s for s in slices if s.outcome is not Outcome.CANCELLED}
        for lane in range(self._lanes):
            for depth in range(best.depth + (lane < best.subsample)):
                slice_ = ended.get((depth, lane))
                if slice_ is None:
                    return False
                if not slice_.may_continue:
                    break
        return True
