"""Learn from the draws of a call for later calls: pass rates, costs, how long replies take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.slice import Slice


class LearnedRates(Option):
    """Passes each draw to a function that learns from it; replayed draws have been learned from."""

    def __init__(self, learn: Callable[[Slice], None]) -> None:
        self._learn = learn

    def tell(self, slice_: Slice) -> None:
        """Learn from a draw, with any outcome."""
        self._learn(slice_)
