"""One message of a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from mellea_like.core.display import fields_shown

if TYPE_CHECKING:
    from mellea_like.core.context import Context

__all__ = ["Message", "Role"]

Role = Literal["system", "user", "assistant"]
_ROLES = get_args(Role)


@dataclass(frozen=True, slots=True)
class Message:
    """What one party said.

    A message is an action too: sampling it asks for the reply to it.

    Args:
        role: ``"system"``, ``"user"`` or ``"assistant"``.
        content: the text.
        name: who of those with this role said it; servers of OpenAI's protocol are told. None where
            there is only one.

    Raises:
        ValueError: the role is none of the three.
        TypeError: the content isn't a ``str``.
    """

    role: Role
    content: str
    name: str | None = field(default=None, repr=False)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            msg = f"a message's role is one of {', '.join(_ROLES)}, not {self.role!r}"
            raise ValueError(msg)
        if not isinstance(self.content, str):
            msg = f"a message's content is a str, not {type(self.content).__name__}"
            raise TypeError(msg)

    def as_dict(self) -> dict[str, str]:
        """Return the message as plain data, as chat protocols have it.

        Returns:
            Its role and its content, and its name where it has one.
        """
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": self.content, **named}

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation with this message at its end.

        Args:
            context: the conversation so far.

        Returns:
            All messages to send, oldest first.
        """
        return (*context.messages, self)

    def parse(self, text: str) -> str:
        """Return the reply's text as it is.

        Args:
            text: the reply.

        Returns:
            The same text.
        """
        return text
