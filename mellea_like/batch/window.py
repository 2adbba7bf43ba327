"""What of a batch may be under way, and what may be handed on: decisions without a loop."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Window"]

T = TypeVar("T")


class Window(Generic[T]):
    """The items between the source and the consumer: at most twice as many as run at a time.

    An item is *taken* from the source, *finished* when there is something to say about it, and
    *handed on* when the consumer has it. What is taken and not handed on fills the window, so that
    a slow consumer slows the source down, and with ``ordered`` a slow item those after it.
    """

    __slots__ = ("_closed", "_finished", "_heads", "_ordered", "_size", "handed_on", "taken")

    def __init__(self, concurrency: int, *, ordered: bool) -> None:
        self.taken = 0
        self.handed_on = 0
        self._size = 2 * concurrency
        self._ordered = ordered
        self._finished: deque[T] = deque()
        self._heads: dict[int, T] = {}
        self._closed = False

    @property
    def open(self) -> bool:
        """Whether another item may be taken."""
        return self.taken - self.handed_on < self._size

    def take(self) -> int:
        """Count an item as taken, and return its position, from 0."""
        self.taken += 1
        return self.taken - 1

    def finish(self, position: int, outcome: T) -> None:
        """Keep what came of an item until it is handed on."""
        if self._ordered:
            self._heads[position] = outcome
        else:
            self._finished.append(outcome)

    def close(self) -> None:
        """Say that nothing more is finished: an order has to go without what is missing."""
        self._closed = True
        # With dictionaries in order of position, `_head` finds the next one at the front.
        self._heads = dict(sorted(self._heads.items()))

    @property
    def ready(self) -> bool:
        """Whether something can be handed on."""
        return self._head() is not None if self._ordered else bool(self._finished)

    def hand_on(self) -> T:
        """Hand the next outcome on; there must be one `ready`."""
        if self._ordered:
            head = self._head()
            assert head is not None  # noqa: S101 (it is ready)
            outcome = self._heads.pop(head)
        else:
            outcome = self._finished.popleft()
        self.handed_on += 1
        return outcome

    def _head(self) -> int | None:
        if self._closed:
            return next(iter(self._heads), None)
        return self.handed_on if self.handed_on in self._heads else None
