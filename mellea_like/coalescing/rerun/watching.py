"""`watch`: run a function again when files change; needs the extra ``watch``."""

from __future__ import annotations

import math
import os
import threading
from glob import escape
from inspect import isawaitable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import anyio

from mellea_like.coalescing.rerun.burst_stream import bursts
from mellea_like.coalescing.rerun.files import (
    IGNORED,
    Changes,
    FileChange,
    Look,
    Todo,
    differences,
    identities,
    is_ignored,
    look_at,
    scan,
)
from mellea_like.coalescing.rerun.gate import RerunGate
from mellea_like.core.callables import takes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from mellea_like.coalescing.rerun.gate_state import GateState
    from mellea_like.coalescing.rerun.queue import OnBusy
    from mellea_like.coalescing.rerun.status import RerunStatus

__all__ = ["IGNORED", "Changes", "FileChange", "watch"]

MAX_CHANGES = 10_000
"""How many changes are kept for one tick."""

STEP = 50
"""Milliseconds between two looks of watchfiles at what the system told it."""

TIMEOUT = 500
"""Milliseconds after which watchfiles gives control back when nothing changes."""


async def watch(
    paths: str | Path | Iterable[str | Path],
    tick: Callable[[], Awaitable[object]] | Callable[[Changes], Awaitable[object]],
    *,
    quiet: float = 0.5,
    max_wait: float = 5.0,
    min_interval: float = 0.0,
    on_busy: OnBusy = "queue",
    at_start: bool = False,
    ignore: Iterable[str] = (),
    stop: anyio.Event | None = None,
    state: GateState | str | Path | None = None,
    on_status: Callable[[RerunStatus], object] | None = None,
) -> None:
    """Run a function again when files change: once for a burst of changes, and one at a time.

    It goes on until it is cancelled, or ``stop`` is set. What a tick raises is logged.

    Args:
        paths: files, and directories with all that is in them.
        tick: an async function. One that needs an argument gets the `Changes`: those since the last
            tick that ended well began.
        quiet: seconds without a change after which the tick begins.
        max_wait: seconds after the first change at which it begins whatever happens.
        min_interval: seconds from the beginning of one tick to that of the next, at least.
        on_busy: what changes do during a tick. ``"queue"``: one more follows. ``"ignore"``:
            nothing. ``"restart"``: the tick is cancelled and begins again, however long it has run:
            one that never ends by itself, a server say, wants that; one that takes longer than
            changes stay away does not.
        at_start: whether to run one tick before any change.
        ignore: shell patterns of names of files and directories that do not count, besides
            `IGNORED`. They say nothing about the names in ``paths`` themselves.
        stop: once it is set, the changes made before are dealt with, and the function returns.
        state: numbers of an earlier process, as for `RerunGate`: with the name of a file,
            ``min_interval`` outlives the process. Files of that name do not count as changed.
        on_status: a plain function that is told the gate's `RerunStatus` whenever that changes. A
            submission is a burst of changes, or the start.

    Raises:
        CoalescingError: the state's file is damaged, or no state can be kept there.
        FileNotFoundError: a path is not there.
        ImportError: watchfiles is not installed.
        OSError: the system can't watch so many files.
        TypeError: the tick can't be called, the state is none, or ``on_status`` no plain function.
        ValueError: there is no path, or a number is out of its range.
    """
    todo = Todo(MAX_CHANGES)
    wants_changes = callable(tick) and not takes(tick, 0)
    function = cast("Callable[..., Awaitable[object]]", tick)

    async def run() -> None:
        changes = todo.take()
        try:
            given = function(changes) if wants_changes else function()
            if not isawaitable(given):
                msg = f"the tick of watch must be an async function; it returned {given!r}"
                raise TypeError(msg)
            await given
        except BaseException:
            todo.put_back(changes)
            raise

    gate = RerunGate(
        run if callable(tick) else tick,
        min_interval=min_interval,
        on_busy=on_busy,
        max_wait=math.inf,
        state=state,
        on_status=on_status,
        name="watch",
    )
    ignored = (*IGNORED, *ignore, *(_names_of(state) if isinstance(state, str | Path) else ()))
    files = _Files(paths, ignored, quiet, stop)
    stream = bursts(files.changes(), quiet=quiet, max_wait=max_wait, max_items=MAX_CHANGES)
    async with files, gate, stream:
        if at_start:
            todo.add(Changes((), rescan=True))
            gate.poke("start")
        async for burst in stream:
            # Those that a busy gate ignores are nobody's business any more.
            if on_busy != "ignore" or not gate.in_flight:
                todo.add(Changes(burst.items, burst.rescan))
                gate.poke(Changes(burst.items, burst.rescan).reason)


class _Files:
    """Watches files in a thread; entered while `changes` is iterated."""

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        ignored: tuple[str, ...],
        quiet: float,
        stop: anyio.Event | None,
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if not given:
            msg = "watch needs at least one path"
            raise ValueError(msg)
        self._roots = [os.path.abspath(path) for path in given]  # noqa: PTH100 (keeps its links)
        self._ignored = ignored
        self._step = max(1, min(STEP, int(quiet * 1000 / 4)))
        self._stop = stop
        self._stopped = threading.Event()
        self._thread = anyio.CapacityLimiter(1)
        self._tasks: TaskGroup | None = None
        self._seen: dict[str, Look] = {}
        self._watched: dict[str, tuple[int, int]] = {}
        self._watcher: Generator[set[tuple[Any, str]]] | None = None

    async def __aenter__(self) -> Self:
        await self._in_thread(self._begin)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._until_stopped, name="stops watching files")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._tasks is not None  # noqa: S101 (it was entered)
        self._tasks.cancel_scope.cancel("watching files is over")
        await self._tasks.__aexit__(None, None, None)

    async def changes(self) -> AsyncGenerator[FileChange]:
        """Watch until stopped."""
        try:
            while not self._stopped.is_set():
                for change in await self._in_thread(self._next):
                    yield change
            for change in await self._in_thread(self._rescan):
                yield change
        finally:
            with anyio.CancelScope(shield=True):
                await self._in_thread(self._close)

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(function, limiter=self._thread)

    async def _until_stopped(self) -> None:
        # The thread can't be cancelled, but looks at its event all the time.
        try:
            await (anyio.sleep_forever() if self._stop is None else self._stop.wait())
        finally:
            self._stopped.set()

    # --- in the thread --------------------------------------------------------------------------

    def _begin(self) -> None:
        try:
            import watchfiles as _  # noqa: F401, PLC0415 (an extra)
        except ImportError as exc:
            msg = "watch needs watchfiles: pip install 'mellea-like[watch]'"
            raise ImportError(msg) from exc
        for root in self._roots:
            if not os.path.exists(root):  # noqa: PTH110 (as above)
                msg = f"can't watch {root}: there is no such file or directory"
                raise FileNotFoundError(msg)
        self._seen = scan(self._roots, self._ignored)

    def _next(self) -> list[FileChange]:
        """Wait for a change or a timeout; never for longer than that."""
        began = self._watcher is None
        if self._watcher is None:
            self._watcher = self._open()
            if self._watcher is None:  # All that was watched is gone. It may come back.
                self._stopped.wait(TIMEOUT / 1000)
                return self._rescan()
        changes: list[FileChange] = []
        for kind, path in sorted(next(self._watcher, ()), key=itemgetter(1)):
            changes += self._noted(kind.raw_str(), path)
        if began:
            changes += self._rescan()
        if identities(self._roots) != self._watched:
            self._close()
        return changes

    def _open(self) -> Generator[set[tuple[Any, str]]] | None:
        import watchfiles  # noqa: PLC0415 (an extra)

        self._watched = identities(self._roots)
        if not self._watched:
            return None
        return watchfiles.watch(
            *self._watched,
            watch_filter=self._counts,
            step=self._step,
            debounce=2 * self._step,
            rust_timeout=TIMEOUT,
            yield_on_timeout=True,
            stop_event=self._stopped,
            raise_interrupt=False,
        )

    def _close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _counts(self, _change: object, path: str) -> bool:
        inside = [root for root in self._roots if path == root or _is_in(path, root)]
        return any(not is_ignored(path, root, self._ignored) for root in inside)

    def _noted(self, kind: Literal["added", "modified", "deleted"], path: str) -> list[FileChange]:
        """Note a change as seen; what came or went with its directory is told too."""
        change = FileChange(kind, Path(path))
        if kind == "deleted":
            inside = [] if path in self._seen else [p for p in self._seen if _is_in(p, path)]
            for gone in (path, *inside):
                self._seen.pop(gone, None)
            return [change, *(FileChange("deleted", Path(gone)) for gone in inside)]
        if not os.path.isdir(path):  # noqa: PTH112 (as above)
            look = look_at(path)
            if look is not None:
                self._seen[path] = look
            return [change]
        # Files that were in it before the system watched it are told by nobody else.
        found = scan([path], self._ignored) if kind == "added" else {}
        known = {path: self._seen[path] for path in found if path in self._seen}
        self._seen.update(found)
        return [change, *differences(known, found)]

    def _rescan(self) -> list[FileChange]:
        before, self._seen = self._seen, scan(self._roots, self._ignored)
        return differences(before, self._seen)


def _names_of(state: str | Path) -> set[str]:
    """Return patterns of what is written when a state is: the file, its link and its drafts."""
    names = {escape(Path(state).name), escape(Path(state).resolve().name)}
    return names | {f".{name}.*" for name in names}


def _is_in(path: str, directory: str) -> bool:
    return path.startswith(directory + os.sep)
