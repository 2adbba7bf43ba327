"""A coordinator's queue: it decides which requests are sent together, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from mellea_like.coalescing.gathering_window import GatheringWindow, due_at

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


T = TypeVar("T")

AT_ONCE = GatheringWindow(0.0, 0.0, 1)
_ALONE = object()


@dataclass(slots=True, eq=False)
class _KeyQueue(Generic[T]):
    """The waiting items with one key. Each caller's items are in the order in which they came."""

    window: GatheringWindow
    arrivals: dict[T, float] = field(default_factory=dict[T, float])
    callers: dict[Hashable, dict[T, int]] = field(default_factory=dict["Hashable", dict[T, int]])
    tokens: int = 0
    last: float = 0.0

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

    def take(self, max_tokens: float) -> list[T]:
        """Remove and return items, one from each caller in turn, as long as they fit the limits."""
        taken: list[T] = []
        left = max_tokens
        turns = list(self.callers)
        while turns and len(taken) != self.window.max_items:
            caller = turns.pop(0)
            mine = self.callers[caller]
            item, tokens = next(iter(mine.items()))
            if tokens > left and taken:
                continue  # This caller's later items must wait.
            left -= tokens
            taken.append(item)
            self.remove(item, caller)
            if caller in self.callers:
                turns.append(caller)
                # The other callers come first next time.
                self.callers[caller] = self.callers.pop(caller)
        return taken


class RequestQueue(Generic[T]):
    """Items that wait to be sent. Items with the same key may go in one batch."""

    def __init__(self, window: GatheringWindow, max_tokens: float = math.inf) -> None:
        self._window = window
        self._max_tokens = max_tokens
        self._queues: dict[Hashable, _KeyQueue[T]] = {}
        self._items: dict[T, tuple[Hashable, Hashable]] = {}  # With their keys and callers.

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(
        self,
        item: T,
        key: Hashable | None,
        caller: Hashable,
        now: float,
        *,
        tokens: int = 0,
    ) -> None:
        """Add an item. If it has no key or too many tokens, it is due immediately, by itself."""
        if key is None or tokens > self._max_tokens:
            key = _ALONE
        if key not in self._queues:
            self._queues[key] = _KeyQueue(AT_ONCE if key is _ALONE else self._window)
        self._queues[key].add(item, caller, tokens, now)
        self._items[item] = key, caller

    def remove(self, item: T) -> None:
        """Remove an item, which must be in the queue."""
        key, caller = self._items.pop(item)
        queue = self._queues[key]
        queue.remove(item, caller)
        if not queue.arrivals:
            del self._queues[key]

    def due_at(self) -> float:
        """Return when the next batch is due; see `gathering_window.due_at`."""
        times = (queue.due_at(self._max_tokens) for queue in self._queues.values())
        return min(times, default=math.inf)

    def take(self, now: float, *, at_once: bool = False) -> list[T]:
        """Remove and return the items of a due batch or, with ``at_once``, of any batch."""
        queues = self._queues.items()
        due = (key for key, queue in queues if at_once or queue.due_at(self._max_tokens) <= now)
        key = next(due, None)
        if key is None:
            return []
        queue = self._queues[key]
        taken = queue.take(self._max_tokens)
        for item in taken:
            del self._items[item]
        del self._queues[key]
        if queue.arrivals:
            self._queues[key] = queue
        return taken
