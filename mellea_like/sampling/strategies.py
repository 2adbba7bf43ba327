"""The strategies: after a failure, ask the same again, add the problems, or continue the chat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mellea_like.core.conversation import (
    Context,
    Instruction,
    Message,
    repair_text,
    reply_message,
    said_below,
)
from mellea_like.core.tools import resendable
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.best_failure import deepest_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Action
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice

__all__ = [
    "FollowUp",
    "MultiTurnStrategy",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "WithNote",
]

NOT_RUN = "This call was not run, for the reply was not accepted."
"""The answer to each tool call of a rejected reply."""

T = TypeVar("T")


class RejectionSamplingStrategy(BaseSamplingStrategy):
    """Repeats the action in the original conversation, and discards failed draws."""

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Choose the first draw's action and conversation again."""
        return history[0].action, history[0].context


class RepairTemplateStrategy(BaseSamplingStrategy):
    """Repeats the instruction in the original conversation, with the last attempt's problems.

    Only the last failure's reasons are included, so that prompts do not grow.
    """

    needs_all_reasons: ClassVar[bool] = True

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Write the last failure's reasons into the first draw's action."""
        action, problems = history[0].action, history[-1].problems
        if isinstance(action, Instruction):
            return replace(action, repair=problems), history[0].context
        return WithNote(action, repair_text(problems)), history[0].context


class MultiTurnStrategy(BaseSamplingStrategy):
    """Continues the conversation: the model sees its reply, and a message with the problems.

    If the reply calls tools, each call is first answered with a message that it was not run,
    because the protocol demands an answer.
    """

    needs_all_reasons: ClassVar[bool] = True

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Answer the last reply with its problems."""
        return followed_up(history[0].action, history[-1])

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        """Choose the draw nearest to passing; ties go to the deepest, which was repaired most."""
        return deepest_failure(slices)


def followed_up(
    first: Action[Any], last: Slice, required: Sequence[str] = ()
) -> tuple[Action[Any], Context]:
    """Continue a failed draw's conversation with a message about its problems and ``required``."""
    context = last.context_after
    made = last.generation
    silent = made is not None and not (reply_message(made).text.strip() or made.tool_calls)
    problems = "\n".join(f"- {problem}" for problem in last.problems)
    wanted = "That was not accepted. Put this right, and give the whole answer again:"
    text = repair_text(last.problems) if silent else f"{wanted}\n{problems}"
    if required:
        text += "\n\nIt is also required:\n" + "\n".join(f"- {what}" for what in required)
    message = Message("user", text)
    if last.tool_calls:
        *before, reply = context.messages
        reply = replace(reply, tool_calls=tuple(map(resendable, last.tool_calls)))
        unmade = (Message("tool", NOT_RUN, tool_call_id=call.id) for call in last.tool_calls)
        context = Context((*before, reply, *unmade))
    elif silent:
        # Some servers refuse a conversation with an empty message.
        *before, message = said_below(context.messages[:-1], text)
        context = Context(tuple(before))
    # The reply to an instruction or a message is its text, as the reply to this message is; a
    # subclass may read it differently.
    plain = type(first) in {Instruction, Message}
    return message if plain else FollowUp((message,), first), context


@dataclass(frozen=True, slots=True)
class WithNote(Generic[T]):
    """An action whose last message has a further text below it."""

    action: Action[T]
    note: str

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the action's messages, with the note at their end."""
        return said_below(self.action.render(context), self.note)

    def parse(self, text: str) -> T:
        """Parse a reply as the action does."""
        return self.action.parse(text)


@dataclass(frozen=True, slots=True)
class FollowUp(Generic[T]):
    """Messages that continue a conversation. The action that began it parses the reply."""

    messages: tuple[Message, ...]
    action: Action[T]

    @property
    def description(self) -> str:
        """The messages' texts, which records keep."""
        return "\n".join(message.text for message in self.messages)

    @property
    def requirements(self) -> tuple[Requirement | str, ...]:
        """The requirements of the action."""
        return tuple(getattr(self.action, "requirements", ()))

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation, followed by these messages."""
        return (*context.messages, *self.messages)

    def parse(self, text: str) -> T:
        """Parse a reply as the action does."""
        return self.action.parse(text)
