"""Which shard's row is sampled next, where an actor works on several shards."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import anyio

__all__ = ["Slots"]


class Slots:
    """Room for so many calls at a time, given to the oldest shard first.

    So an actor finishes the shards in the order in which they came, and a later one fills the room
    that the last rows of an earlier one leave.

    Args:
        calls: how many calls may run at a time.
    """

    def __init__(self, calls: int) -> None:
        self._free = calls
        self._line: list[tuple[int, anyio.Event]] = []
        self._shards = 0

    def shard(self) -> int:
        """Register a shard.

        Returns:
            Its rank: the lower, the sooner its rows go.
        """
        self._shards += 1
        return self._shards

    async def acquire(self, rank: int) -> None:
        """Wait for room; a shard waits for one row at a time.

        Args:
            rank: the shard's rank.
        """
        if self._free:
            self._free -= 1
            return
        place = rank, anyio.Event()
        heappush(self._line, place)
        try:
            await place[1].wait()
        except BaseException:
            if place[1].is_set():
                self.release()
            else:
                self._line.remove(place)
                heapify(self._line)
            raise

    def release(self) -> None:
        """Give room back: a call has ended."""
        if self._line:
            heappop(self._line)[1].set()
        else:
            self._free += 1
