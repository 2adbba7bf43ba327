"""Messages, the conversation that they make, and actions: what is put to a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from mellea_like.core.display import fields_shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import TypeIs

    from mellea_like.core.requirement import Requirement

__all__ = ["Action", "Context", "Instruction", "Message", "Role", "as_action", "is_action"]

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
        """Return the conversation with this message at its end."""
        return (*context.messages, self)

    def parse(self, text: str) -> str:
        """Return the reply's text as it is."""
        return text


@dataclass(frozen=True, slots=True)
class Context:
    """The messages exchanged so far, oldest first; immutable. Contexts compare by their messages.

    Args:
        messages: the conversation so far.

    Raises:
        TypeError: an item isn't a `Message`.
    """

    messages: tuple[Message, ...]

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        kept = tuple(messages)
        for message in kept:
            if not isinstance(message, Message):
                msg = f"a context holds Message objects, not {type(message).__name__}"
                raise TypeError(msg)
        object.__setattr__(self, "messages", kept)

    def add(self, *messages: Message) -> Context:
        """Return a context with more messages at its end; this one stays as it is.

        Args:
            *messages: what was said, oldest first.

        Returns:
            The longer context.

        Raises:
            TypeError: an item isn't a `Message`.
        """
        return Context((*self.messages, *messages))

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __repr__(self) -> str:
        return f"<Context of {len(self)} messages>"


T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Action(Protocol[T_co]):
    """Anything that can be put to a model and whose reply can be read.

    An action may also have ``requirements``, a sequence: they are checked on every sample of it.
    """

    def render(self, context: Context) -> Sequence[Message]:
        """Return the whole conversation to send.

        Args:
            context: the conversation so far.

        Returns:
            All messages, oldest first.
        """
        ...

    def parse(self, text: str) -> T_co:
        """Read the model's reply.

        Args:
            text: the reply.

        Returns:
            The value that the result will have.

        Raises:
            ValueError: the reply does not parse; the slice has failed, and the message says why.
        """
        ...


@dataclass(frozen=True, slots=True)
class Instruction:
    """A task put into words, with what its outcome must meet.

    The prompt is the description; below it stand the requirements that the model is told (those
    without ``check_only``) and, on a repair, what was wrong with the last attempt.

    Args:
        description: what to do.
        system: a system message to put first, or None.
        requirements: what each sample must meet; texts are decided by a judge.
        repair: what was wrong with the last attempt, a line each.

    Raises:
        TypeError: the description isn't a text, or the requirements are a lone one.
    """

    description: str
    system: str | None = None
    requirements: tuple[Requirement | str, ...] = ()
    repair: tuple[str, ...] = ()

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        if not isinstance(self.description, str):
            msg = f"an instruction's description is a str, not {type(self.description).__name__}"
            raise TypeError(msg)
        if isinstance(self.requirements, str):
            msg = "an instruction's requirements are a sequence: put the text into a list"
            raise TypeError(msg)
        object.__setattr__(self, "requirements", tuple(self.requirements))
        object.__setattr__(self, "repair", tuple(self.repair))

    @property
    def prompt(self) -> str:
        """The text of the user message."""
        told = [text for text in map(_told, self.requirements) if text]
        parts = [self.description]
        if told:
            parts.append("Requirements:\n" + "\n".join(f"- {text}" for text in told))
        if self.repair:
            wrong = "\n".join(f"- {text}" for text in self.repair)
            parts.append("An earlier attempt was rejected. Put this right:\n" + wrong)
        return "\n\n".join(parts)

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation with the system message first and the prompt at its end."""
        system = () if self.system is None else (Message("system", self.system),)
        return (*system, *context.messages, Message("user", self.prompt))

    def parse(self, text: str) -> str:
        """Return the reply's text as it is."""
        return text


def is_action(candidate: object) -> TypeIs[Action[Any]]:
    """Tell whether something is an action: an instance with ``render`` and ``parse``."""
    return (
        not isinstance(candidate, type)
        and callable(getattr(candidate, "render", None))
        and callable(getattr(candidate, "parse", None))
    )


def as_action(action: str | Action[Any]) -> Action[Any]:
    """Make an action from what a user gives."""
    if isinstance(action, str):
        return Instruction(action)
    if not is_action(action):
        msg = (
            "an action is a str, an Instruction, a Message or an object with render(context) and"
            f" parse(text), not {action!r}"
        )
        raise TypeError(msg)
    return action


def _told(requirement: Requirement | str) -> str:
    if isinstance(requirement, str):
        return requirement
    return "" if requirement.check_only else requirement.description
