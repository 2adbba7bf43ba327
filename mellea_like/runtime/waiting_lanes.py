"""Let lanes wait for news, such as the end of a draw, and wake only one of them at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


class WaitingLanes:
    """Lets lanes of a call wait until a draw starts or ends, without waking all of them.

    Each start or end of a draw is news. Only one waiting lane, the watcher, wakes at news. All
    other lanes queue until they become the watcher. If all lanes woke, a thousand of them would ask
    the plan a million times.
    """

    __slots__ = ("_events", "_for_good", "_queue", "_watcher")

    def __init__(self) -> None:
        self._events: dict[int, anyio.Event] = {}
        self._queue: list[int] = []
        self._watcher: int | None = None
        self._for_good = 0

    async def wait(
        self, lane: int, seconds: float, *, alone: bool, before: Callable[[], None]
    ) -> None:
        """Wait for ``seconds`` or, unless ``alone``, for news; call ``before`` just before that."""
        event = self._events[lane] = anyio.Event()
        if not alone:
            if self._watcher is None:
                self._watcher = lane
            else:
                self._queue.append(lane)
                seconds = math.inf
        for_good = seconds == math.inf
        self._for_good += for_good
        try:
            before()
            with anyio.move_on_after(seconds):
                await event.wait()
        finally:
            self._for_good -= for_good
            del self._events[lane]
            if self._watcher == lane:
                self._watcher = None
            elif lane in self._queue:
                self._queue.remove(lane)

    def wake(self) -> None:
        """Because there is news, wake the watcher (the one lane that waits for it)."""
        if self._watcher is not None:
            self._events[self._watcher].set()

    def promote(self) -> None:
        """If no lane waits for news, wake the lane that has queued longest, so it asks the plan."""
        if self._queue and self._watcher is None:
            self._watcher = self._queue.pop(0)
            self._events[self._watcher].set()

    def wake_all(self) -> None:
        """Wake all waiting lanes."""
        for event in self._events.values():
            event.set()

    def all_wait_for_good(self, lanes: int) -> bool:
        """Return whether ``lanes`` lanes wait without a time limit, and none of them was woken."""
        return self._for_good == lanes and not any(e.is_set() for e in self._events.values())
