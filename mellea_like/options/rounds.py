"""A call in rounds: it knows the draws of earlier ones, and pauses after so many new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.kernel.ports import Ask, Option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Next

__all__ = ["Rounds"]


class Rounds(Option):
    """Replays earlier draws, lets so many new ones start, and keeps the next ask for later.

    A lone lane is a fold over its slices, since ``repair`` is pure: what it asks next depends on
    nothing but the records of what it has drawn.

    Args:
        earlier: the slices of earlier rounds, in the order they were recorded.
        heard: is given each new slice in the step that records it; None for no one.
    """

    paused = False
    """Whether the draws of this round are made, and another could start."""
    goes_on: bool
    """Whether it knows of earlier draws."""
    left: int | None = None
    """How many draws may still start; None for any number."""
    _kept: Ask | None = None

    def __init__(
        self, earlier: Sequence[Slice] = (), heard: Callable[[Slice], None] | None = None
    ) -> None:
        self.before = earlier[-1].ended_at if earlier else 0.0
        self.heard = heard
        self.goes_on = bool(earlier)
        self._earlier = {slice_.iteration: slice_ for slice_ in earlier}

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Let a draw start while there are some left."""
        ask, self._kept = self._kept or go(lane, now), None
        race = self.call.race
        while isinstance(ask, Ask) and ask.turn.iteration in self._earlier:
            race.replay(self._earlier.pop(ask.turn.iteration))
            ask = None if race.stopped else go(lane, now)
        if not isinstance(ask, Ask) or self.left is None:
            return ask
        if not self.left:
            self.paused, self._kept = True, ask
            return None
        self.left -= 1
        return ask

    def tell(self, slice_: Slice) -> None:
        """Hand a new slice on."""
        if self.heard is not None:
            self.heard(slice_)
