"""Actions that repairs are made of: another action asked in other words, its replies read alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from mellea_like.core.action import Instruction

if TYPE_CHECKING:
    from mellea_like.core.action import Action
    from mellea_like.core.context import Context
    from mellea_like.core.message import Message

__all__ = ["FollowUp", "Repaired"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Repaired(Generic[T]):
    """Another action with what was wrong written below its last message.

    Args:
        action: the action.
        problems: what was wrong with the last attempt, a line each.
    """

    action: Action[T]
    problems: tuple[str, ...]

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the action's messages, the last with the problems at its end.

        Args:
            context: the conversation so far.

        Returns:
            All messages, oldest first.
        """
        *earlier, last = self.action.render(context)
        prompt = Instruction(last.content, repair=self.problems).prompt
        return (*earlier, replace(last, content=prompt))

    def parse(self, text: str) -> T:
        """Read the reply as the action does.

        Args:
            text: the reply.

        Returns:
            The value.
        """
        return self.action.parse(text)


@dataclass(frozen=True, slots=True)
class FollowUp(Generic[T]):
    """A message in a conversation that another action began.

    Args:
        message: what is said now.
        action: the action that the conversation is about; it reads the reply.
    """

    message: Message
    action: Action[T]

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation with the message at its end.

        Args:
            context: the conversation so far.

        Returns:
            All messages, oldest first.
        """
        return self.message.render(context)

    def parse(self, text: str) -> T:
        """Read the reply as the action does.

        Args:
            text: the reply.

        Returns:
            The value.
        """
        return self.action.parse(text)
