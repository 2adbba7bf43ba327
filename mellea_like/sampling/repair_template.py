"""Ask again, and say what was wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from mellea_like.core.action import Instruction
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.follow_up import Repaired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.action import Action
    from mellea_like.core.context import Context
    from mellea_like.core.slice import Slice

__all__ = ["RepairTemplateStrategy"]


class RepairTemplateStrategy(BaseSamplingStrategy):
    """Repeats the instruction in the original conversation, with what the last attempt lacked.

    Only the last failure's reasons are written, so that prompts do not grow.
    """

    needs_all_reasons: ClassVar[bool] = True

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Write the last failure's reasons into the first slice's action.

        Args:
            history: the failed slices of the subsample, oldest first.

        Returns:
            The changed action, and the original conversation.
        """
        action, problems = history[0].action, history[-1].problems
        if isinstance(action, Instruction):
            return replace(action, repair=problems), history[0].context
        return Repaired(action, problems), history[0].context
