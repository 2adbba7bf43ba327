"""What waits in a coordinator: who goes with whom, who goes next, and when; without a loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from mellea_like.coalescing.alarms import Alarms
from mellea_like.coalescing.coordinator.joint_prompt import tokens_of
from mellea_like.coalescing.flush import Window, due_at
from mellea_like.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from mellea_like.coalescing.coordinator.request_batch import PendingRequest

__all__ = ["BatchQueue", "RequestQueue"]

T = TypeVar("T")

AT_ONCE = Window(0.0, 0.0, 1)
_ALONE = object()


class _KeyQueue(Generic[T]):
    """Items of one key, in the order that they came, by caller."""

    __slots__ = ("arrivals", "callers", "last", "tokens", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.arrivals: dict[T, float] = {}
        self.callers: dict[Hashable, dict[T, int]] = {}
        self.tokens = 0
        self.last = 0.0

    def add(self, item: T, caller: Hashable, tokens: int, now: float) -> None:
        self.arrivals[item] = self.last = now
        self.callers.setdefault(caller, {})[item] = tokens
        self.tokens += tokens

    def remove(self, item: T, caller: Hashable) -> None:
        del self.arrivals[item]
        mine = self.callers[caller]
        self.tokens -= mine.pop(item)
        if not mine:
            del self.callers[caller]

    def due_at(self, max_tokens: float) -> float:
        if self.tokens > max_tokens:
            return -math.inf  # More would not fit.
        first = next(iter(self.arrivals.values()))
        return due_at(self.window, first, self.last, len(self.arrivals))

    def take(self, max_items: int, max_tokens: float) -> list[T]:
        """Take one item of each caller in turn, those of each in order, for as long as they fit."""
        taken: list[T] = []
        left = max_tokens
        turns = list(self.callers)
        while turns and len(taken) < max_items:
            caller = turns.pop(0)
            mine = self.callers[caller]
            item, tokens = next(iter(mine.items()))
            if tokens > left and taken:
                continue  # Nothing of this caller's may overtake it.
            left -= tokens
            taken.append(item)
            self.remove(item, caller)
            if caller in self.callers:
                turns.append(caller)
                self.callers[caller] = self.callers.pop(caller)  # The others come first next time.
        return taken


class BatchQueue(Generic[T]):
    """Items that wait to be sent. Those of one key may go together, in one batch."""

    def __init__(self, window: Window, max_tokens: float = math.inf) -> None:
        self._window = window
        self._max_tokens = max_tokens
        self._queues: dict[Hashable, _KeyQueue[T]] = {}
        self._items: dict[T, tuple[Hashable, Hashable]] = {}  # With their keys and callers.

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(
        self, item: T, key: Hashable | None, caller: Hashable, now: float, tokens: int = 0
    ) -> None:
        """Put an item in; without a key, or if it is too long, it goes alone and at once."""
        if key is None or tokens > self._max_tokens:
            key = _ALONE
        queue = self._queues.get(key)
        if queue is None:
            queue = _KeyQueue(AT_ONCE if key is _ALONE else self._window)
            self._queues[key] = queue
        queue.add(item, caller, tokens, now)
        self._items[item] = key, caller

    def remove(self, item: T) -> bool:
        """Take an item out, and tell whether it was there."""
        if item not in self._items:
            return False
        key, caller = self._items.pop(item)
        queue = self._queues[key]
        queue.remove(item, caller)
        if not queue.arrivals:
            del self._queues[key]
        return True

    def due_at(self) -> float:
        """Return when the next batch goes, as `flush.due_at` does."""
        times = (queue.due_at(self._max_tokens) for queue in self._queues.values())
        return min(times, default=math.inf)

    def take(self, now: float, *, at_once: bool = False) -> list[T]:
        """Take out the next batch that is due, or any; keys take turns, and in a key callers do."""
        key = self._next_key(now, at_once=at_once)
        if key is None:
            return []
        queue = self._queues[key]
        limit = queue.window.max_items
        taken = queue.take(len(queue.arrivals) if limit is None else limit, self._max_tokens)
        for item in taken:
            del self._items[item]
        del self._queues[key]
        if queue.arrivals:
            self._queues[key] = queue
        return taken

    def _next_key(self, now: float, *, at_once: bool) -> Hashable | None:
        for key, queue in self._queues.items():
            if at_once or queue.due_at(self._max_tokens) <= now:
                return key
        return None


class RequestQueue:
    """A bounded queue of requests, and those that wait for room in it."""

    def __init__(
        self, window: Window, max_tokens: int, max_pending: int, full: Literal["wait", "raise"]
    ) -> None:
        self._inside: BatchQueue[PendingRequest] = BatchQueue(window, max_tokens)
        self._outside: BatchQueue[PendingRequest] = BatchQueue(AT_ONCE)
        self._keys: dict[PendingRequest, tuple[Hashable | None, Hashable]] = {}
        self._deadlines: Alarms[PendingRequest] = Alarms()
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

    def __iter__(self) -> Iterator[PendingRequest]:
        yield from self._inside
        yield from self._outside

    def waiting_for_room(self) -> list[PendingRequest]:
        """Return those that have found no room yet."""
        return list(self._outside)

    def add(
        self, pending: PendingRequest, key: Hashable | None, caller: Hashable, now: float
    ) -> None:
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

    def remove(self, pending: PendingRequest) -> None:
        """Take a request out that isn't to be sent."""
        self._deadlines.clear(pending)
        if self._outside.remove(pending):
            del self._keys[pending]
        else:
            self._inside.remove(pending)

    def expired(self, now: float) -> list[PendingRequest]:
        """Take out what has expired."""
        late = self._deadlines.due(now)
        for pending in late:
            self.remove(pending)
        return late

    def take(self, now: float, *, at_once: bool) -> list[PendingRequest]:
        """Take out the next batch that is due, or any."""
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

    def next_look(self, *, can_send: bool) -> float:
        """Return when something expires, or is to be sent."""
        late = self._deadlines.next()
        return min(late, self._inside.due_at()) if can_send else late
