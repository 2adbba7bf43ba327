"""Go on talking until it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mellea_like.core.action import Instruction
from mellea_like.core.message import Message
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.follow_up import FollowUp
from mellea_like.sampling.selection import deepest_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.action import Action
    from mellea_like.core.context import Context
    from mellea_like.core.slice import Slice

__all__ = ["MultiTurnStrategy"]


class MultiTurnStrategy(BaseSamplingStrategy):
    """Goes on in the conversation: the model sees its reply, and a message with what failed."""

    needs_all_reasons: ClassVar[bool] = True

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Answer the last reply with what was wrong with it.

        Args:
            history: the failed slices of the subsample, oldest first.

        Returns:
            A user message, and the conversation with the last prompt and reply in it.
        """
        problems = "\n".join(f"- {problem}" for problem in history[-1].problems)
        wanted = "That was not accepted. Put this right, and give the whole answer again:"
        message = Message("user", f"{wanted}\n{problems}")
        first = history[0].action
        # The reply to an instruction or a message is its text, as the reply to this message is;
        # a subclass of theirs may read it in another way.
        plain = type(first) in {Instruction, Message}
        action = message if plain else FollowUp(message, first)
        return action, history[-1].context_after

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        """Choose the deepest of the slices that came nearest, for it was repaired most.

        Args:
            slices: the failed slices, in the order recorded, at least one.

        Returns:
            The position of the best.
        """
        return deepest_failure(slices)
