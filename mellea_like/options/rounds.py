"""A call that is paused after so many draws, and goes on later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.kernel.ports import Ask, Option

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.kernel.ports import Next

__all__ = ["Rounds"]


class Rounds(Option):
    """So many draws may start; the next ask is kept for the next round.

    Args:
        draws: how many, 1 or more.
    """

    paused = False
    """Whether those draws are made, and another could start."""
    _kept: Ask | None = None

    def __init__(self, draws: int) -> None:
        self.left = draws

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Let a draw start while there are some left."""
        ask, self._kept = self._kept or go(lane, now), None
        if not isinstance(ask, Ask):
            return ask
        if not self.left:
            self.paused, self._kept = True, ask
            return None
        self.left -= 1
        return ask
