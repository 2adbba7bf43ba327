"""Ask the same again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.sampling.base import BaseSamplingStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.action import Action
    from mellea_like.core.context import Context
    from mellea_like.core.slice import Slice

__all__ = ["RejectionSamplingStrategy"]


class RejectionSamplingStrategy(BaseSamplingStrategy):
    """Repeats the action in the original conversation; what failed is thrown away."""

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Choose the first slice's action and conversation again.

        Args:
            history: the failed slices of the subsample, oldest first.

        Returns:
            The action and the conversation, unchanged.
        """
        return history[0].action, history[0].context
