"""Messages, conversations, and actions, which ask a model for a reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    runtime_checkable,
)

from mellea_like.core.argument_checks import check_text, check_type, is_async, yields
from mellea_like.core.display import bounded, fields_shown, shown
from mellea_like.core.extra import NO_EXTRA, as_extra, with_extra
from mellea_like.core.parts import Part, Text, as_content, part_from_dict
from mellea_like.core.tools import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import TypeIs
    from typing_extensions import TypeVar as TypeVarWithDefault

    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement

    Parsed = TypeVarWithDefault("Parsed", default=str)

__all__ = [
    "Action",
    "Asked",
    "Context",
    "Conversation",
    "Instruction",
    "Message",
    "MessageLike",
    "Role",
    "as_action",
]

Role = Literal["system", "user", "assistant", "tool"]
_ROLES = get_args(Role)
_SAME_ROLES: Mapping[Any, Role] = {"developer": "system"}
"""Maps role names that only OpenAI's newer models have to the common names of these roles."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation.

    A message is also an action: sampling the message asks for the reply to it.

    Args:
        role: ``"system"``, ``"user"``, ``"assistant"``, or ``"tool"`` for the answer to a tool
            call.
        content: the text, or a sequence of parts and texts, such as ``["What is this?",
            Image(data=photo)]``.
        name: a name that tells participants with the same role apart, as in OpenAI's protocol.
        tool_calls: the tools that an assistant's message calls.
        tool_call_id: the id of the call that a tool's message answers.
        reasoning: the model's reasoning before this message, if the server reports it.
        extra: more fields for servers of OpenAI's chat protocol, which are sent unchanged. If one
            of them is ``reasoning``, no ``reasoning_content`` is sent.

    Raises:
        ValueError: the role is unknown, a tool's message lacks the id of its call, or a message of
            another role has tool calls or such an id.
        TypeError: the content is neither a ``str`` nor a sequence of parts, or another argument is
            of the wrong type.
    """

    role: Role
    content: str | tuple[Part, ...]
    name: str | None = field(default=None, repr=False)
    tool_calls: tuple[ToolCall, ...] = field(default=(), repr=False)
    tool_call_id: str | None = field(default=None, repr=False)
    reasoning: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, kw_only=True)

    __repr__ = fields_shown

    def __init__(
        self,
        role: Role,
        content: str | Iterable[Part | str],
        name: str | None = None,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str | None = None,
        reasoning: str | None = None,
        *,
        extra: Mapping[str, Any] = NO_EXTRA,
    ) -> None:
        if role not in _ROLES:
            msg = f"a message's role must be one of {', '.join(_ROLES)}, not {role!r}"
            raise ValueError(msg)
        tool_calls = tuple(tool_calls)
        if tool_calls or tool_call_id is not None or role == "tool":
            _check_calls(role, tool_calls, tool_call_id)
        if reasoning is not None:
            check_text("a message's reasoning", reasoning)
        if name is not None:
            check_text("a message's name", name)
        put = object.__setattr__
        put(self, "role", role)
        put(self, "content", content if isinstance(content, str) else as_content(content))
        put(self, "name", name)
        put(self, "tool_calls", tool_calls)
        put(self, "tool_call_id", tool_call_id)
        put(self, "reasoning", reasoning)
        put(self, "extra", extra if extra is NO_EXTRA else as_extra(extra, "a message"))

    @property
    def text(self) -> str:
        """The message as a text, for judges, prompts and logs.

        Each part that isn't text, and each tool call, is replaced by a placeholder on its own line,
        such as ``[image/png, 12 KB]`` or ``[calls get_weather({"city": "Paris"})]``.
        """
        content = self.content
        if isinstance(content, str) and not self.tool_calls:
            return content
        calls = [f"[calls {bounded(str(call))}]" for call in self.tool_calls]
        said = joined_text(content)
        return "\n".join([said, *calls] if said else calls)

    def as_dict(self) -> dict[str, Any]:
        """Return the message as plain data in OpenAI's chat protocol.

        Returns:
            Its role, its content (a text or a list of parts) and, if it has them, ``name``,
            ``tool_calls``, ``tool_call_id``, its reasoning as ``reasoning_content``, and the
            fields of ``extra``.
        """
        content = self.content
        if not isinstance(content, str):
            content = cast("Any", [part.as_dict() for part in content])
        written: dict[str, Any] = {"role": self.role, "content": content}
        if self.name is not None:
            written["name"] = self.name
        if self.tool_calls:
            written["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            written["tool_call_id"] = self.tool_call_id
        if self.reasoning is not None and "reasoning" not in self.extra:
            written["reasoning_content"] = self.reasoning
        return with_extra(written, self.extra) if self.extra else written

    @classmethod
    def from_dict(cls, message: Mapping[str, Any]) -> Message:
        """Read a message in OpenAI's chat protocol.

        The role ``"developer"`` becomes ``"system"``. If there is no content, a refusal becomes the
        content. ``reasoning_content`` or ``reasoning`` becomes the reasoning. Other fields are
        ignored.

        Args:
            message: the message. ``data:`` URLs in it become data.

        Returns:
            The message.

        Raises:
            ValueError: the dictionary isn't such a message.
        """
        if not isinstance(message, Mapping):
            msg = f"a message must be a dict with a role and content, not {type(message).__name__}"
            raise ValueError(msg)  # noqa: TRY004 (it is data that is wrong)
        role: Any = message.get("role")
        content: Any = message.get("content") or message.get("refusal") or ""
        thought: Any = message.get("reasoning_content")
        if role != "assistant" and "role" in message and "content" not in message:
            msg = f"a message with the role {shown(role)} must have 'content'"
            raise ValueError(msg)
        if isinstance(content, Mapping):  # Else, it would be read as a list of its keys.
            msg = "a message's content must be a text or a list, not a dict: put it in a list"
            raise ValueError(msg)  # noqa: TRY004 (it is data that is wrong)
        try:
            return cls(
                _SAME_ROLES.get(role, role),
                content if isinstance(content, str) else tuple(map(part_from_dict, content)),
                message.get("name"),
                tuple(map(ToolCall.from_dict, message.get("tool_calls") or ())),
                message.get("tool_call_id"),
                message.get("reasoning") if thought is None else thought,
            )
        except TypeError as exc:
            msg = f"invalid message: {exc}"
            raise ValueError(msg) from exc

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation with this message at its end."""
        return (*context.messages, self)

    def parse(self, text: str) -> str:
        """Return the reply's text unchanged."""
        return text


def joined_text(content: str | Iterable[Part]) -> str:
    """Return a message's content as text, with a placeholder for each part that isn't text."""
    if isinstance(content, str):
        return content
    return "\n".join(p.text if isinstance(p, Text) else p.placeholder for p in content)


def _check_calls(role: str, calls: tuple[Any, ...], call_id: object) -> None:
    """Make sure that only assistants call tools, and that tools' messages name a call's id."""
    for call in calls:
        check_type("a message's tool_calls", call, ToolCall, "ToolCall objects")
    if calls and role != "assistant":
        msg = f"only messages with the role 'assistant' can have tool_calls, not {role!r}"
        raise ValueError(msg)
    if call_id is not None:
        check_text("a message's tool_call_id", call_id)
    if (call_id is None) == (role == "tool"):
        msg = (
            "a message with the role 'tool' needs the tool_call_id of the call that it answers"
            if call_id is None
            else f"only messages with the role 'tool' can have a tool_call_id, not {role!r}"
        )
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Context:
    """The messages exchanged so far, oldest first; immutable. Equal messages make equal contexts.

    Args:
        messages: the conversation so far. Dictionaries are read by `Message.from_dict`.

    Raises:
        TypeError: an item is neither a `Message` nor a dict.
        ValueError: a dict isn't a message.
    """

    messages: tuple[Message, ...]

    def __init__(self, messages: Iterable[MessageLike] = ()) -> None:
        check_type("a context's messages", messages, Iterable, "a list of messages")
        object.__setattr__(self, "messages", tuple(map(_as_message, messages)))

    def add(self, *messages: MessageLike) -> Context:
        """Return a new context with more messages at its end.

        Args:
            *messages: the new messages, oldest first.

        Returns:
            The longer context.

        Raises:
            TypeError: an item is neither a `Message` nor a dict.
            ValueError: a dict isn't a message.
        """
        longer = Context()
        # Messages that are already in the context aren't checked again, so long ones cost no more.
        added = tuple(map(_as_message, messages))
        object.__setattr__(longer, "messages", self.messages + added)
        return longer

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __repr__(self) -> str:
        return f"<Context of {len(self)} messages>"


def _as_message(message: object) -> Message:
    if isinstance(message, Message):
        return message
    check_type("a context's messages", message, Mapping, "Message objects or dicts")
    return Message.from_dict(cast("Mapping[str, Any]", message))


def as_context(context: Context | Iterable[MessageLike], name: str = "context") -> Context:
    """Make a context from an argument, which may be a sequence of messages and dicts."""
    if isinstance(context, Context):
        return context
    kind = type(context).__name__
    if isinstance(context, str | Mapping | Message) or not isinstance(context, Iterable):
        msg = (
            f"{name} must be a Context or a list of messages, not {kind}: pass"
            " Context([Message(...), ...])"
        )
        raise TypeError(msg)
    return Context(context)


MessageLike: TypeAlias = "Message | Mapping[str, Any]"
"""A message, or a dict that `Message.from_dict` reads."""

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Action(Protocol[T_co]):
    """A task for a model, as an object that renders the prompt and parses the reply.

    An action may also have a sequence of ``requirements``, which are checked on each of its
    replies.
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
            The parsed value, which becomes the result's ``value``.

        Raises:
            ValueError: the reply does not parse. The draw then fails, with the error's message as
                the reason.
        """
        ...


if TYPE_CHECKING:

    class PlainText(Protocol[T_co]):
        """Replaces ``str`` in `Asked`, so that type checkers infer that the reply is a ``str``.

        With ``str`` itself, they would infer that the reply to a ``str | Action[int]`` is an int.
        """

        def format_map(self, mapping: Any, /) -> T_co:
            """Return a str. Type checkers recognize a ``str`` by this method."""
            ...


@dataclass(frozen=True, slots=True)
class Instruction:
    """A task in words, with its requirements.

    The prompt is the description, followed by the requirements (except those with ``check_only``)
    and, in a repair, by the problems of the last attempt.

    Args:
        description: the task in words.
        system: a system message to put first, or None.
        requirements: the requirements of each reply. A judge model judges those that are texts.
        repair: the problems of the last attempt, which the prompt lists one per line.

    Raises:
        TypeError: the description or the system message isn't a text, or the requirements aren't a
            sequence.
    """

    description: str
    system: str | None = None
    requirements: tuple[Requirement | str, ...] = ()
    repair: tuple[str, ...] = ()

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        if not isinstance(self.description, str):  # Most calls make an instruction.
            check_text("an instruction's description", self.description)
        if self.system is not None:
            check_text("an instruction's system", self.system)
        if isinstance(self.requirements, str):
            msg = (
                "an instruction's requirements must be a sequence, not a str: put the text in a"
                " list"
            )
            raise TypeError(msg)
        object.__setattr__(self, "requirements", tuple(self.requirements))
        object.__setattr__(self, "repair", tuple(self.repair))

    @property
    def prompt(self) -> str:
        """The text of the user message."""
        told = [
            requirement if isinstance(requirement, str) else requirement.description
            for requirement in self.requirements
            if isinstance(requirement, str) or not requirement.check_only
        ]
        parts = [self.description]
        if told:
            parts.append("Requirements:\n" + "\n".join(f"- {text}" for text in told))
        if self.repair:
            parts.append(repair_text(self.repair))
        return "\n\n".join(parts)

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation with the system message first and the prompt at its end."""
        system = () if self.system is None else (Message("system", self.system),)
        return (*system, *context.messages, Message("user", self.prompt))

    def parse(self, text: str) -> str:
        """Return the reply's text unchanged."""
        return text


Asked: TypeAlias = "PlainText[Parsed] | Action[Parsed] | Mapping[str, Any] | Sequence[MessageLike]"
"""Anything that asks a model for a reply. The type parameter is the type of the parsed reply.

A text, a message or several messages are ``Asked[str]``, which may be written ``Asked``. An
`Action` that parses replies to an int is ``Asked[int]``.
"""


def reply_message(reply: Generation) -> Message:
    """Return a model's output as a message of the conversation."""
    text = reply.text or reply.refusal or ""
    return Message("assistant", text, None, reply.tool_calls, None, reply.reasoning)


def repair_text(problems: Iterable[str]) -> str:
    """Return the text that tells a model what was wrong with its last attempt."""
    wrong = "\n".join(f"- {text}" for text in problems)
    return f"An earlier attempt was rejected. Put this right:\n{wrong}"


def said_below(messages: Iterable[Message], text: str) -> tuple[Message, ...]:
    """Append text to a conversation's last message; after a tool's answer, add a user message.

    If the last message is an assistant's, with which the reply is to begin, it stays the last one,
    and the text is appended to the user's message before it, or in a new one.
    """
    *earlier, last = messages
    if last.role == "assistant":
        if earlier and earlier[-1].role == "user":
            return (*said_below(earlier, text), last)
        return (*earlier, Message("user", text), last)
    if last.role == "tool":
        return (*earlier, last, Message("user", text))
    content = last.content
    below = f"{content}\n\n{text}" if isinstance(content, str) else (*content, Text(text))
    return (*earlier, replace(last, content=below))


def is_action(candidate: object) -> TypeIs[Action[Any]]:
    """Return whether something is an action: an instance with ``render`` and ``parse``."""
    return (
        not isinstance(candidate, type)
        and callable(getattr(candidate, "render", None))
        and callable(getattr(candidate, "parse", None))
    )


@dataclass(frozen=True, slots=True)
class Conversation:
    """Several messages as an action, which asks for the reply to the last one."""

    messages: tuple[Message, ...]
    requirements: tuple[Requirement | str, ...] = ()

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the messages of ``context``, followed by this action's own."""
        return (*context.messages, *self.messages)

    def parse(self, text: str) -> str:
        """Return the reply's text unchanged."""
        return text


def as_action(action: Asked[Any]) -> Action[Any]:
    """Make an action from an argument. Several messages become a `Conversation`."""
    if isinstance(action, str):
        return Instruction(action)
    if is_action(action):
        if (wrong := _wrong_method(type(action))) is not None:
            what = f"{type(action).__name__}.{wrong}"
            msg = f"{what} must be a plain function, neither async nor a generator function"
            raise TypeError(msg)
        return action
    if isinstance(action, Mapping) and "role" in action:
        return Message.from_dict(action)
    if isinstance(action, list | tuple) and action and all(map(_is_message, action)):
        messages = tuple(map(_as_message, action))
        return messages[0] if len(messages) == 1 else Conversation(messages)
    msg = (
        "an action must be a str, an Instruction, a Message, an OpenAI-style message or a list of"
        " them (each with a 'role'), or an object with render(context) and parse(text), not"
        f" {shown(action)}"
    )
    raise TypeError(msg)


@lru_cache(maxsize=256)
def _wrong_method(kind: type[Action[Any]]) -> str | None:
    """Return the name of an action's method that would only make a coroutine or a generator."""
    render, parse = (getattr(kind, name, None) for name in ("render", "parse"))
    if callable(render) and is_async(render):
        return "render"
    return "parse" if callable(parse) and (is_async(parse) or yields(parse)) else None


def _is_message(candidate: object) -> bool:
    return isinstance(candidate, Message) or (
        isinstance(candidate, Mapping) and "role" in candidate
    )
