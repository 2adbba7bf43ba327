"""The conversations of a record, each written as the continuation of an earlier one.

An item of a record's ``prompts`` is a list with all messages of a conversation, or ``{"after": 3,
"then": [...]}`` with the messages that follow the conversation at index 3. So each message of a
long conversation is written only once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mellea_like.core.conversation import Message
from mellea_like.core.tools import recorded_call

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

Written: TypeAlias = "list[dict[str, Any]] | dict[str, Any]"
"""A conversation as data: all its messages, or only those that it adds to an earlier one."""


class Prompts:
    """Gives each conversation an index, and finds the longest earlier one that it continues."""

    # The conversations form a tree with a message at each edge. To save comparisons, they are
    # looked up by the `id()` of their last message, which must stay alive as long as this object.

    def __init__(self) -> None:
        self._steps: dict[tuple[int, Message], int] = {}
        self._places: dict[int, int] = {}
        self._ends: dict[int, tuple[tuple[Message, ...], int]] = {}
        self._entries: list[tuple[int | None, tuple[Message, ...]]] = []

    def place(self, messages: tuple[Message, ...]) -> int:
        """Return the index of a conversation; add it if no equal one has been added before."""
        steps, places = self._steps, self._places
        node, after, known = 0, None, 0
        for at in range(len(messages), 0, -1):
            earlier, its_node = self._ends.get(id(messages[at - 1]), (None, 0))
            if earlier == messages[:at]:
                node, after, known = its_node, places[its_node], at
                break
        for at, message in enumerate(messages[known:], known + 1):
            node = steps.setdefault((node, message), len(steps) + 1)
            if node in places:
                after, known = places[node], at
        if node not in places:
            places[node] = len(self._entries)
            self._entries.append((after, messages[known:]))
        if messages:
            self._ends[id(messages[-1])] = messages, node
        return places[node]

    def written(self, write: Callable[[Message], dict[str, Any]]) -> list[Written]:
        """Return the conversations as plain data, in the order of their indices."""
        written: list[Written] = []
        for after, messages in self._entries:
            then = [write(message) for message in messages]
            written.append(then if after is None else {"after": after, "then": then})
        return written


def messages_in(entry: Any) -> list[dict[str, Any]]:
    """Return the messages in an item of ``prompts``, without the conversation that it continues."""
    written = cast("dict[str, Any]", entry)["then"] if isinstance(entry, dict) else entry
    return cast("list[dict[str, Any]]", written)


def prompt_at(prompts: Sequence[Any], place: int) -> list[Mapping[str, Any]]:
    """Return all messages of the conversation at an index of a record's ``prompts``."""
    return prompt_since(prompts, place, ())[1]


def prompt_since(
    prompts: Sequence[Any], place: int, known: Container[int]
) -> tuple[int | None, list[Mapping[str, Any]]]:
    """Return the nearest conversation in ``known`` before ``place``, and the messages since."""
    parts: list[list[dict[str, Any]]] = []
    before: int | None = place
    while before is not None and (not parts or before not in known):
        entry, at = prompts[before], before
        parts.append(messages_in(entry))
        before = _before(entry, at) if isinstance(entry, dict) else None
    return before, [message for part in reversed(parts) for message in part]


def read_prompts(prompts: Sequence[Any]) -> list[tuple[Message, ...]]:
    """Read the conversations of a record, in order."""
    read: list[tuple[Message, ...]] = []
    for place, entry in enumerate(prompts):
        earlier = read[_before(entry, place)] if isinstance(entry, dict) else ()
        read.append((*earlier, *map(recorded_message, messages_in(entry))))
    return read


def recorded_message(written: Mapping[str, Any]) -> Message:
    """Read a message of a record."""
    message = Message.from_dict({**written, "content": written["content"]})
    calls = written.get("tool_calls")
    return replace(message, tool_calls=tuple(map(recorded_call, calls))) if calls else message


def _before(entry: Any, place: int) -> int:
    before = entry["after"]
    if not (type(before) is int and 0 <= before < place):
        msg = f"the conversation at place {place} can't continue the one at {before!r}"
        raise ValueError(msg)
    return before


def with_earlier(prompts: Sequence[Any], places: Iterable[int]) -> set[int]:
    """Return ``places``, and the indices of all earlier conversations that these continue."""
    found = set[int]()
    for place in places:
        at: int | None = place
        while at is not None and at not in found:
            found.add(at)
            at = prompts[at]["after"] if isinstance(prompts[at], dict) else None
    return found


def rewritten(
    prompts: Iterable[Any],
    write: Callable[[dict[str, Any]], dict[str, Any]] = lambda message: message,
    further: int = 0,
) -> list[Written]:
    """Copy conversations; pass each message through ``write``, and add ``further`` to indices."""
    again: list[Written] = []
    for entry in prompts:
        then = [write(message) for message in messages_in(entry)]
        later = isinstance(entry, dict)
        again.append({"after": entry["after"] + further, "then": then} if later else then)
    return again
