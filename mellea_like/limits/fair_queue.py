"""Who waits for a shared limit, and whose turn is next."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from mellea_like.core.backend import RequestMeta

__all__ = ["Entry", "FairQueue"]

SLACK = 32
"""How many dead entries a heap may have besides as many as it has live ones."""


class _HeapItem:
    """What stands in a heap; ``stamp`` tells its newest entry from its dead ones, 0 is in none."""

    __slots__ = ("stamp",)

    def __init__(self) -> None:
        self.stamp = 0


E = TypeVar("E", bound=_HeapItem)


class _Heap(Generic[E]):
    """A priority queue whose entries can be moved and taken out, each in O(log n) amortised."""

    # What was moved or taken out stays, dead, until it comes up or the dead outnumber the living.

    __slots__ = ("_entries", "_live", "_stamps")

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[Any, ...], int, E]] = []
        self._live = 0
        self._stamps = 0

    def __len__(self) -> int:
        return self._live

    def put(self, item: E, key: tuple[Any, ...]) -> None:
        """Put an item in, or move it to another key; equal keys keep the order of their puts."""
        self._live += not item.stamp
        self._stamps += 1
        item.stamp = self._stamps
        heappush(self._entries, (key, item.stamp, item))
        self._tidy()

    def take_out(self, item: E) -> None:
        if item.stamp:
            item.stamp = 0
            self._live -= 1
            self._tidy()

    def first(self) -> E | None:
        entries = self._entries
        while entries and entries[0][2].stamp != entries[0][1]:
            heappop(entries)
        return entries[0][2] if entries else None

    def _tidy(self) -> None:
        if len(self._entries) > 2 * self._live + SLACK:
            self._entries = [entry for entry in self._entries if entry[2].stamp == entry[1]]
            heapify(self._entries)


class Entry(_HeapItem):
    """One request in a queue: first waiting, then perhaps in flight, then neither."""

    __slots__ = ("call", "in_flight", "meta", "waiting")

    def __init__(self, meta: RequestMeta) -> None:
        super().__init__()
        self.meta = meta
        self.call: _Call[Any] | None = None
        self.waiting = False
        self.in_flight = False


P = TypeVar("P", bound=Entry)


class _Call(_HeapItem, Generic[P]):
    """The requests of one `sample` call that wait or are in flight."""

    __slots__ = ("entries", "in_flight", "name", "order", "started", "undecided", "waiting")

    def __init__(self, name: str, started: float, order: int) -> None:
        super().__init__()
        self.undecided: dict[int, float] = {}
        self.name = name
        self.started = started
        self.order = order
        self.waiting = 0
        self.in_flight = 0
        self.entries: _Heap[P] = _Heap()


class FairQueue(Generic[P]):
    """The requests that wait for a limit and those in flight, in an order that is fair to calls.

    First come a judge's requests, for they finish an iteration. Then come the requests of the call
    that has the fewest in flight: so the first attempt of each call goes before anyone's second,
    and siblings get the capacity that is left over. Among equals comes the call that started first,
    in a call the lower subsample, and then who arrived first. Without this order, concurrency under
    a rate limit is slower than none: siblings that will be cancelled take the place of first
    attempts that would have passed.

    A request whose reply is being checked counts as in flight until its subsample asks again, or
    for a while: if the reply passes, its siblings need not be sent at all.

    Every operation takes O(log n) amortised, n being the number of requests in the queue.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _Call[P]] = {}
        self._ready: _Heap[_Call[P]] = _Heap()
        self._judges: _Heap[P] = _Heap()
        self._undecided: deque[tuple[float, _Call[P], int]] = deque()
        self._arrivals = 0
        self.waiting = 0
        self.in_flight = 0

    def join(self, entry: P, now: float) -> None:
        """Let a new request wait; one that names no start of its call started now."""
        self._arrivals += 1
        meta = entry.meta
        call = self._calls.get(meta.sampling_id) or self._new_call(meta, now)
        entry.call = call
        entry.waiting = True
        call.waiting += 1
        self.waiting += 1
        subsample = meta.subsample or 0
        call.undecided.pop(subsample, None)
        if meta.purpose == "judge":
            self._judges.put(entry, (call.started, call.order, subsample))
        else:
            call.entries.put(entry, (subsample,))
            self._rank(call)

    def head(self) -> P | None:
        """Return the request whose turn is next, or None where none waits."""
        judge = self._judges.first()
        if judge is not None:
            return judge
        call = self._ready.first()
        return None if call is None else call.entries.first()

    def admit(self, entry: P) -> None:
        """Let a waiting request go: it is in flight from now on."""
        call: Any = entry.call  # It waits, so it has one.
        self._stop_waiting(entry, call)
        entry.in_flight = True
        call.in_flight += 1
        self.in_flight += 1
        self._rank(call)

    def leave(self, entry: P, undecided_until: float | None = None) -> None:
        """Take a request out, whether it waits or is in flight; else do nothing.

        Its reply, if it has one, is thought to be checked until ``undecided_until``.
        """
        call = entry.call
        if call is None:
            return
        entry.call = None
        if entry.waiting:
            self._stop_waiting(entry, call)
        else:
            entry.in_flight = False
            call.in_flight -= 1
            self.in_flight -= 1
        if undecided_until is not None and call.waiting:
            subsample = entry.meta.subsample or 0
            call.undecided[subsample] = undecided_until
            self._undecided.append((undecided_until, call, subsample))
        self._rank(call)
        if not call.waiting and not call.in_flight:
            self._calls.pop(call.name, None)
        if not self.waiting and not self.in_flight:
            self._undecided.clear()  # Nobody is left whom it could concern.

    def expire(self, now: float) -> None:
        """Let replies count as checked whose time is over."""
        while self._undecided and self._undecided[0][0] <= now:
            until, call, subsample = self._undecided.popleft()
            if call.undecided.get(subsample) == until:
                del call.undecided[subsample]
                self._rank(call)

    def _new_call(self, meta: RequestMeta, now: float) -> _Call[P]:
        started = now if meta.call_started is None else meta.call_started
        call: _Call[P] = _Call(meta.sampling_id, started, self._arrivals)
        if call.name:  # A request outside a call counts as a call.
            self._calls[call.name] = call
        return call

    def _stop_waiting(self, entry: P, call: _Call[P]) -> None:
        entry.waiting = False
        call.waiting -= 1
        self.waiting -= 1
        (self._judges if entry.meta.purpose == "judge" else call.entries).take_out(entry)

    def _rank(self, call: _Call[P]) -> None:
        if call.entries:
            busy = call.in_flight + len(call.undecided)
            self._ready.put(call, (busy, call.started, call.order))
        else:
            self._ready.take_out(call)
