"""`bursts`: what a source gives, gathered into bursts that end when it is quiet."""

from __future__ import annotations

import math
from inspect import isasyncgen
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.coalescing.gathering import Window, due_at
from mellea_like.core.argument_checks import check_plain, real_number, whole_number
from mellea_like.errors import CoalescingError
from mellea_like.runtime.event_loops import cancel_requested, check_loop, running_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["Burst", "BurstStatistics", "BurstStream", "bursts"]

T = TypeVar("T")

EndedBy = Literal["quiet", "cap", "urgent", "end", "shutdown"]


class Burst(NamedTuple, Generic[T]):
    """What was gathered.

    Attributes:
        items: the items, in the order they came.
        rescan: whether some were dropped since there was no room: look at everything anew.
        ended_by: ``"quiet"``, no newcomer for a while; ``"cap"``, ``max_wait`` seconds after the
            first; ``"urgent"``; ``"end"``, that of the source; or ``"shutdown"``.
        cursor: the position of the last item that came, kept or dropped; what the stream's cursor
            is once the burst is processed.
    """

    items: tuple[T, ...]
    rescan: bool
    ended_by: EndedBy
    cursor: Any


class BurstStatistics(NamedTuple):
    """What a stream of bursts has counted.

    Attributes:
        items: items that came.
        bursts: bursts that were delivered.
        dropped: items that found no room.
        gathered: items that wait for their burst to end.
    """

    items: int
    bursts: int
    dropped: int
    gathered: int


class Gathering(Generic[T]):
    """What was gathered since the last burst: a state machine without a loop."""

    def __init__(self, window: Window, max_items: int) -> None:
        self._window = window
        self._max_items = max_items
        self._items: list[T] = []
        self._first = self._last = 0.0
        self._urgent = False
        self._rescan = False
        self.cursor: Any = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T, now: float, cursor: object, *, urgent: bool) -> bool:
        """Take an item in."""
        if not self._items:
            self._first = now
        self._last, self.cursor = now, cursor
        room = len(self._items) < self._max_items or (urgent and not self._urgent)
        if room:
            self._items.append(item)
        else:
            self._rescan = True
        self._urgent |= urgent
        return room

    def due_at(self) -> float:
        """Decide when the burst ends."""
        if self._urgent:
            return -math.inf
        return due_at(self._window, self._first, self._last, len(self._items))

    def take(self, closed: Literal["end", "shutdown"] | None) -> Burst[T]:
        """Take out what was gathered."""
        quiet, cap = self._last + self._window.quiet, self._first + self._window.max_wait
        ended_by: EndedBy = closed or ("quiet" if quiet <= cap else "cap")
        if self._urgent:
            ended_by = "urgent"
        burst = Burst(tuple(self._items), self._rescan, ended_by, self.cursor)
        self._items, self._urgent, self._rescan = [], False, False
        return burst


class BurstStream(Generic[T]):
    """Bursts of a source; made by `bursts`, entered with ``async with``, then iterated.

    It belongs to the event loop that it was entered in; a thread stops it by
    ``anyio.from_thread.run_sync(stream.stop, token=token)``.

    Attributes:
        cursor: the position up to which everything is processed: that of the last burst after which
            another one was asked for, or `processed` was called. None before that.
    """

    def __init__(
        self,
        source: AsyncIterable[T],
        gathering: Gathering[T],
        urgent: Callable[[T], bool] | None,
        position: Callable[[T], object] | None,
    ) -> None:
        self.cursor: Any = None
        self._source = source
        self._gathering = gathering
        self._urgent = urgent
        self._position = position
        self._tasks: TaskGroup | None = None
        self._loop: object = None
        self._reading: anyio.CancelScope | None = None
        self._handed: Burst[T] | None = None
        self._closed: Literal["end", "shutdown"] | None = None
        self._error: Exception | None = None
        self._changed: anyio.Event | None = None
        self._guard = anyio.ResourceGuard("waiting for a burst")
        self._came = self._delivered = self._dropped = 0

    async def __aenter__(self) -> Self:
        if self._reading is not None:
            msg = "a stream of bursts is entered once: make another one with bursts(...)"
            raise RuntimeError(msg)
        self._reading = anyio.CancelScope()
        self._loop = running_loop()
        if self._closed is not None:
            self._reading.cancel("the stream of bursts was stopped before")
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._read, self._reading, name="gathers bursts")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._tasks is not None  # noqa: S101 (it was entered)
        self.stop()
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel("the stream of bursts was left")
        await tasks.__aexit__(None, None, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Burst[T]:
        """Wait for a burst to end.

        Returns:
            The burst.

        Raises:
            RuntimeError: the stream was not entered.
            StopAsyncIteration: the source has ended, or the stream was stopped.
            Exception: what the source raised, after what it gave before.
        """
        if self._reading is None:
            msg = "enter a stream of bursts first: async with bursts(...) as stream"
            raise RuntimeError(msg)
        with self._guard:
            self.processed()
            await checkpoint()
            await self._until_due()
            if not self._gathering:
                error, self._error = self._error, None
                raise StopAsyncIteration if error is None else error
            self._handed = self._gathering.take(self._closed)
            self._delivered += 1
            return self._handed

    def stop(self) -> None:
        """Read no more of the source; what was gathered is delivered, and then the stream ends."""
        self._check_loop()
        self._close("shutdown")
        if self._reading is not None:
            self._reading.cancel("the stream of bursts was stopped")

    def processed(self) -> None:
        """Note that the last burst is processed, so that the cursor advances.

        Asking for the next burst does so too; this is for the last one before a ``break``.
        """
        self._check_loop()
        if self._handed is not None:
            self.cursor, self._handed = self._handed.cursor, None

    def statistics(self) -> BurstStatistics:
        """Return what was counted.

        Returns:
            The numbers of this moment.
        """
        gathered = len(self._gathering)
        return BurstStatistics(self._came, self._delivered, self._dropped, gathered)

    def _check_loop(self) -> None:
        if self._reading is not None:
            check_loop(self._loop, type(self).__name__)

    async def _until_due(self) -> None:
        while self._closed is None and anyio.current_time() < (due := self._gathering.due_at()):
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=due):
                await self._changed.wait()

    async def _read(self, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                async for item in self._source:
                    self._add(item)
                    await (
                        checkpoint()
                    )  # A source that never waits must not keep all others waiting.
            except Exception as error:  # noqa: BLE001 (the consumer gets it)
                self._close("end", error)
            except anyio.get_cancelled_exc_class() as error:
                if cancel_requested():
                    raise
                msg = "the source of the bursts was cancelled, though nobody asked for that"
                lost = CoalescingError(msg)
                lost.__cause__ = error
                self._close("end", lost)
            finally:
                self._close("end")
                source: object = self._source
                if isasyncgen(source):
                    with anyio.CancelScope(shield=True):
                        await source.aclose()

    def _add(self, item: T) -> None:
        self._came += 1
        now, first = anyio.current_time(), not self._gathering
        try:
            urgent = self._urgent is not None and bool(self._urgent(item))
            cursor = self._came if self._position is None else self._position(item)
        except Exception:
            self._gathering.add(item, now, self._gathering.cursor, urgent=False)
            raise
        if not self._gathering.add(item, now, cursor, urgent=urgent):
            self._dropped += 1
        if first or urgent:
            self._wake()

    def _close(self, why: Literal["end", "shutdown"], error: Exception | None = None) -> None:
        if self._closed is None:
            self._closed, self._error = why, error
            self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()


def bursts(
    source: AsyncIterable[T],
    *,
    quiet: float = 0.5,
    max_wait: float = 5.0,
    urgent: Callable[[T], bool] | None = None,
    max_items: int = 10_000,
    position: Callable[[T], object] | None = None,
) -> BurstStream[T]:
    """Gather what a source gives into bursts.

    ```python
    async with bursts(events, quiet=0.5) as stream:
        async for burst in stream:
            await react(burst.items)
    ```

    While a burst is being processed, the next one is gathered. What was gathered is always
    delivered: before the end of the source, before what it raises, and after `BurstStream.stop`.
    The block may be left by ``break`` at any time.

    Args:
        source: the items. An async generator is closed at the end, any other source is not.
        quiet: seconds without a newcomer after which a burst ends.
        max_wait: seconds after its first item at which it ends whatever comes.
        urgent: says whether the burst ends with an item.
        max_items: how many items to keep for one burst. More are dropped, and `Burst.rescan` says
            so. The first urgent item is always kept.
        position: gives an item's position in the source, for `BurstStream.cursor`; by default how
            many items came up to it.

    Returns:
        The stream of bursts.

    Raises:
        TypeError: the source isn't an async iterable, or ``urgent`` or ``position`` isn't a plain
            function.
        ValueError: an argument is out of its range.
    """
    if not hasattr(source, "__aiter__"):
        msg = f"bursts(...) takes an async iterable, not {source!r}"
        raise TypeError(msg)
    check_plain("bursts: urgent", urgent)
    check_plain("bursts: position", position)
    for name, seconds in (("quiet", quiet), ("max_wait", max_wait)):
        real_number(f"bursts: {name}", seconds, least=0, unit="seconds")
    whole_number("bursts: max_items", max_items)
    return BurstStream(source, Gathering(Window(quiet, max_wait), max_items), urgent, position)
