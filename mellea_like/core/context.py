"""A conversation's history, immutable and cheap to extend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.core.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Context"]


class Context:
    """The messages exchanged so far, oldest first.

    `add` returns a new context that shares this one as its prefix, so that branching a long
    conversation into many costs a few bytes a branch. Contexts compare by their messages.

    Args:
        messages: the conversation so far.

    Raises:
        TypeError: an item isn't a `Message`.
    """

    __slots__ = ("_length", "_messages", "_parent", "_tail")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._parent: Context | None = None
        self._tail = _checked(tuple(messages))
        self._length = len(self._tail)
        self._messages: tuple[Message, ...] | None = self._tail

    def add(self, *messages: Message) -> Context:
        """Return a context with more messages at its end; this one stays as it is.

        Args:
            *messages: what was said, oldest first.

        Returns:
            The longer context.

        Raises:
            TypeError: an item isn't a `Message`.
        """
        longer = Context.__new__(Context)
        longer._parent = self
        longer._tail = _checked(messages)
        longer._length = self._length + len(messages)
        longer._messages = None
        return longer

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first; made on first use and kept."""
        if self._messages is None:
            tails: list[tuple[Message, ...]] = []
            node = self
            while node._messages is None and node._parent is not None:
                tails.append(node._tail)
                node = node._parent
            prefix = node._messages if node._messages is not None else node._tail
            self._messages = (*prefix, *(m for tail in reversed(tails) for m in tail))
        return self._messages

    def __reduce__(self) -> tuple[Any, ...]:
        # Not as a chain of parents, which a conversation of 400 turns makes too deep to follow.
        return Context, (self.messages,)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return self is other or self.messages == other.messages

    def __hash__(self) -> int:
        return hash(self.messages)

    def __repr__(self) -> str:
        return f"<Context of {self._length} messages>"


def _checked(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    for message in messages:
        if not isinstance(message, Message):
            msg = f"a context holds Message objects, not {type(message).__name__}"
            raise TypeError(msg)
    return messages
