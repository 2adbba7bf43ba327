"""Callers who wait for room, in a line for each session."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from mellea_like.coalescing.chat.session import Submission
    from mellea_like.errors import CoalescingError

__all__ = ["Lobby", "Place"]

M = TypeVar("M")
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class Place(Generic[M, R]):
    """One caller's place in the line."""

    submission: Submission[M, R]
    over: anyio.Event = field(default_factory=anyio.Event)
    error: CoalescingError | None = None


class Lobby(Generic[M, R]):
    """Everyone who waits for room."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Place[M, R]]] = {}
        self._strangers: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._lines

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The sessions that someone waits for."""
        return tuple(self._lines)

    def join(self, new: Submission[M, R], *, known: bool) -> Place[M, R]:
        """Stand at the end of a line."""
        place = Place(new)
        self._lines.setdefault(new.key, deque()).append(place)
        if not known:
            self._strangers[new.key] = None
        return place

    def first(self, key: Hashable) -> Place[M, R] | None:
        """Return who is first in a session's line, or None where no one waits."""
        line = self._lines.get(key)
        return line[0] if line else None

    def strangers(self) -> Iterator[Hashable]:
        """List the sessions that do not exist and that someone waits for."""
        while self._strangers:
            yield next(iter(self._strangers))

    def introduce(self, key: Hashable) -> None:
        """Note that a session exists."""
        del self._strangers[key]

    def let_in(self, place: Place[M, R], error: CoalescingError | None) -> None:
        """End the wait of who is first in a line."""
        self.leave(place.submission)
        place.error = error
        place.over.set()

    def leave(self, leaving: Submission[M, R]) -> None:
        """Take someone out of the line, if it is in it."""
        line = self._lines.get(leaving.key, deque())
        for place in line:
            if place.submission is leaving:
                line.remove(place)
                break
        if not line:
            self._lines.pop(leaving.key, None)
            self._strangers.pop(leaving.key, None)

    def turn_away(self, key: Hashable, error: CoalescingError) -> int:
        """End the wait of all who wait for a session."""
        line = self._lines.pop(key, deque())
        self._strangers.pop(key, None)
        for place in line:
            place.error = error
            place.over.set()
        return len(line)
