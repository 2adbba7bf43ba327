"""An action whose reply already exists. ``sample`` checks this reply and generates no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from mellea_like.core.conversation import Message, as_action, joined_text
from mellea_like.core.display import shown
from mellea_like.core.generation import Generation, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Action, Asked, Context
    from mellea_like.core.requirement import Requirement

T = TypeVar("T")

MESSAGE = {"role", "content", "tool_calls", "refusal"}
"""The fields of an OpenAI-style message; a reply's dictionary has at least one of them."""

ReplyLike: TypeAlias = "str | Message | Generation | Mapping[str, Any]"
"""A reply: its text, an assistant's message, or a chat completion (or its message) as a
dictionary.

An object with ``model_dump()``, such as an SDK's completion, is also accepted.
"""


class GivenReply(Generic[T]):
    """An action whose reply already exists, so that sampling only checks the reply."""

    def __init__(
        self,
        reply: object,
        action: Asked[T] | None = None,
        requirements: Sequence[Requirement | str] = (),
    ) -> None:
        self.reply = as_reply(reply)
        self.action: Action[Any] | None = None if action is None else as_action(action)
        self._own = tuple(requirements)

    def __repr__(self) -> str:
        return f"GivenReply({self.reply!r}, {self.action!r})"

    @property
    def requirements(self) -> Sequence[Requirement | str]:
        """The requirements of the task, and those of this reply."""
        of_task: Sequence[Requirement | str] = getattr(self.action, "requirements", ())
        return (*of_task, *self._own) if self._own else of_task

    def render(self, context: Context) -> Sequence[Message]:
        """Return the messages that the reply answers."""
        return context.messages if self.action is None else self.action.render(context)

    def parse(self, text: str) -> T:
        """Parse the reply as the task does."""
        return cast("T", text) if self.action is None else self.action.parse(text)


def as_reply(reply: object) -> Generation:
    """Convert a text, a message or a completion to a `Generation`."""
    if isinstance(reply, Generation):
        return reply
    if isinstance(reply, str):
        return Generation(reply)
    if isinstance(reply, Message):
        return _of_message(reply)
    dump = getattr(reply, "model_dump", None)
    if callable(dump):
        reply = dump(exclude_none=True)
    fields: Any = reply
    if not isinstance(reply, Mapping) or not {*MESSAGE, "choices"} & fields.keys():
        msg = (
            "a reply must be a str, a Message, a Generation, or an OpenAI-style message or"
            " completion,"
            f" not {shown(fields)}"
        )
        raise TypeError(msg)
    choices: Any = fields.get("choices")
    message: dict[str, Any]
    if choices is None:
        message = {"role": "assistant", **fields}
        return _of_message(Message.from_dict(message), refusal=message.get("refusal"))
    try:
        (choice,) = choices
        message = {"role": "assistant", **choice["message"]}
        ended: Any = choice.get("finish_reason")
        usage: Any = fields.get("usage") or {}
        spent = Usage(1, usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        msg = f"a completion must have one choice with a message: {shown(fields)}"
        raise ValueError(msg) from exc
    return _of_message(
        Message.from_dict(message),
        finish_reason=ended,
        model=fields.get("model"),
        usage=spent,
        refusal=message.get("refusal"),
    )


def _of_message(message: Message, **known: Any) -> Generation:
    if message.role != "assistant":
        msg = f"a reply must be a message with the role 'assistant', not {message.role!r}"
        raise ValueError(msg)
    return Generation(
        joined_text(message.content),
        tool_calls=message.tool_calls,
        reasoning=message.reasoning,
        **known,
    )
