"""What waits in a coordinator: a synchronous core, with the time passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.coalescing.alarms import Alarms
from mellea_like.coalescing.coordinator.batching import Lanes
from mellea_like.coalescing.coordinator.joint_prompt import tokens_of
from mellea_like.coalescing.flush import Window
from mellea_like.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from mellea_like.coalescing.coordinator.pending import Pending

__all__ = ["RequestQueue"]


class RequestQueue:
    """A bounded queue of requests, and those that wait for room in it."""

    def __init__(self, window: Window, max_tokens: int, max_pending: int, full: str) -> None:
        self._inside: Lanes[Pending] = Lanes(window, max_tokens)
        self._outside: Lanes[Pending] = Lanes(Window(0.0, 0.0, 1))
        self._keys: dict[Pending, tuple[Hashable | None, Hashable]] = {}
        self._deadlines: Alarms[Pending] = Alarms()
        self._max_pending = max_pending
        self._full = full

    @property
    def inside(self) -> int:
        """How many wait to be sent."""
        return len(self._inside)

    @property
    def outside(self) -> int:
        """How many wait for room."""
        return len(self._outside)

    def __iter__(self) -> Iterator[Pending]:
        yield from self._inside
        yield from self._outside

    def waiting_for_room(self) -> list[Pending]:
        """Return those that have found no room yet."""
        return list(self._outside)

    def add(self, pending: Pending, key: Hashable | None, caller: Hashable, now: float) -> None:
        """Put a request in, or let it wait for room."""
        if len(self._inside) < self._max_pending:
            self._inside.add(pending, key, caller, now, tokens_of(pending.task))
        elif self._full == "wait":
            self._outside.add(pending, None, caller, now)
            self._keys[pending] = key, caller
        else:
            msg = f"{self._max_pending} requests wait already, the most that may (max_pending)"
            raise QueueFull(msg)
        deadline = pending.request.meta.deadline
        if deadline is not None:
            self._deadlines.set(pending, deadline)

    def remove(self, pending: Pending) -> None:
        """Take a request out that is not to be sent."""
        self._deadlines.clear(pending)
        if self._outside.remove(pending):
            del self._keys[pending]
        else:
            self._inside.remove(pending)

    def expired(self, now: float) -> list[Pending]:
        """Take out what has expired."""
        late = self._deadlines.due(now)
        for pending in late:
            self.remove(pending)
        return late

    def take(self, now: float, *, at_once: bool) -> list[Pending]:
        """Take the next batch out."""
        members = self._inside.take(now, at_once=at_once)
        for pending in members:
            self._deadlines.clear(pending)
        return members

    def let_in(self, now: float) -> None:
        """Let those in who wait for room, one of each caller in turn, as far as there is some."""
        while self._outside and len(self._inside) < self._max_pending:
            for pending in self._outside.take(now):
                key, caller = self._keys.pop(pending)
                self._inside.add(pending, key, caller, now, tokens_of(pending.task))

    def look_again_at(self, *, room: bool) -> float:
        """Tell when something is to be done."""
        late = self._deadlines.next()
        return min(late, self._inside.due_at()) if room else late
