"""`watch`: run a function again when files change. This needs the extra ``watch``."""

from __future__ import annotations

import math
import os
import time
from fnmatch import fnmatchcase
from glob import escape
from inspect import isawaitable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import anyio

from mellea_like.coalescing.gathering_window import GatheringWindow, due_at
from mellea_like.coalescing.rerun.gate import RerunGate
from mellea_like.core.argument_checks import real_number, takes
from mellea_like.lazy import needs_extra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator

    from mellea_like.coalescing.rerun.gate import OnBusy, RerunStatus

__all__ = ["IGNORED", "Changes", "FileChange", "watch"]

IGNORED = (
    # Version control, environments, caches.
    ".git", ".hg", ".svn", ".jj", ".venv", "node_modules", "__pycache__", "*.py[cod]", ".tox",
    ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints",
    # Files that editors and desktops write beside others.
    ".idea", ".vscode", "*~", "*.sw?", ".*.sw?", "4913", ".#*", "#*#", "*___jb_???___",
    ".goutputstream-*", ".~lock.*", "flycheck_*", ".DS_Store", "Thumbs.db",
)  # fmt: skip
"""Patterns for the names of files and directories whose changes don't count."""

MAX_CHANGES = 10_000
"""The most changes to keep for one tick. If there are more, `Changes.rescan` is True."""

STEP = 50
"""The milliseconds after which watchfiles checks again for notices from the system."""

TIMEOUT = 50
"""The milliseconds after which watchfiles returns if nothing changes."""

Kind = Literal["added", "modified", "deleted"]


class FileChange(NamedTuple):
    """A change of a file or directory.

    Attributes:
        kind: the kind of change: ``"added"``, ``"modified"`` or ``"deleted"``.
        path: the absolute path of the file or directory.
    """

    kind: Kind
    path: Path


class Changes(NamedTuple):
    """The changes that led to a tick of `watch`, that is, to one run of its function.

    Attributes:
        files: the changes, with each path only once.
        rescan: whether other files may have changed, because there were too many changes to keep,
            or because this is the first tick, before any change.
    """

    files: tuple[FileChange, ...]
    rescan: bool

    @property
    def reason(self) -> str:
        """A short description of the changes, for people to read."""
        if not self.files:
            return "start"
        kind, path = self.files[0]
        rest = len(self.files) - 1
        more = f", and {rest} more" if rest else ""
        return f"{path.name} {kind}{more}"


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
    state: str | Path | None = None,
    on_status: Callable[[RerunStatus], object] | None = None,
) -> None:
    """Run a function again when files change: once for each burst of changes, one run at a time.

    `watch` continues until it is cancelled, or ``stop`` is set. Each run of the function is called
    a tick. Exceptions of ticks are logged.

    Args:
        paths: the files to watch, and directories, which are watched with everything in them.
        tick: an async function. If it takes an argument, it gets the `Changes` since the beginning
            of the last tick that succeeded.
        quiet: the seconds without a change after which the tick begins.
        max_wait: the longest time from the first change until the tick begins, in seconds, however
            many more changes come.
        min_interval: the shortest time from the beginning of one tick to the beginning of the
            next, in seconds.
        on_busy: what to do after changes during a tick. ``"queue"`` runs one more tick afterwards.
            ``"ignore"`` does nothing. ``"restart"`` cancels the tick and starts it again, no
            matter how long it has run. That suits a tick that never ends by itself, such as a
            server. It doesn't suit a tick that takes longer than the pauses between changes.
        at_start: whether to run one tick before any change.
        ignore: shell patterns for the names of files and directories to ignore, in addition to
            `IGNORED`. They don't apply to ``paths`` themselves.
        stop: an event that ends `watch`. Once it is set, earlier changes are still handled, and
            then `watch` returns.
        state: the path of a file that keeps the numbers of ticks, as for `RerunGate`, so that
            ``min_interval`` works across processes. Files with that name don't count as changed.
        on_status: a plain function that is called with the `RerunStatus` whenever the status
            changes. Each burst of changes counts as one submission, and so does the start.

    Raises:
        CoalescingError: the state file is damaged or can't be written.
        FileNotFoundError: a path doesn't exist.
        ImportError: watchfiles is not installed.
        OSError: the system can't watch so many files.
        TypeError: ``tick`` can't be called, or another argument has the wrong type.
        ValueError: there is no path, or a number is out of range.
    """
    pending = PendingChanges(MAX_CHANGES)
    wants_changes = callable(tick) and not takes(tick, 0)
    function = cast("Callable[..., Awaitable[object]]", tick)

    async def run() -> None:
        changes = pending.take()
        try:
            given = function(changes) if wants_changes else function()
            if not isawaitable(given):
                msg = f"the tick of watch must be an async function; it returned {given!r}"
                raise TypeError(msg)
            await given
        except BaseException:
            pending.put_back(changes)
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
    real_number("watch: quiet", quiet, least=0, unit="seconds")
    real_number("watch: max_wait", max_wait, least=0, unit="seconds")
    ignored = (*IGNORED, *ignore, *(() if state is None else _names_of(state)))
    files = _Files(paths, ignored, GatheringWindow(quiet, max_wait), stop or anyio.Event())
    await anyio.to_thread.run_sync(files.open)
    async with gate:
        try:
            if at_start:
                pending.add(Changes((), rescan=True))
                gate.poke("start")
            while (changes := await files.next_changes()) is not None:
                # Changes that a busy gate ignores are dropped.
                if on_busy != "ignore" or not gate.in_flight:
                    pending.add(changes)
                    gate.poke(changes.reason)
        finally:
            with anyio.CancelScope(shield=True):
                await files.close()


class PendingChanges:
    """The changes that no tick has handled yet."""

    def __init__(self, max_paths: int) -> None:
        self._max_paths = max_paths
        self._files: dict[Path, FileChange] = {}
        self._rescan = False

    def __bool__(self) -> bool:
        return bool(self._files)

    def add(self, changes: Changes) -> None:
        """Add changes. A path that has changed before keeps its position."""
        self._rescan |= changes.rescan
        for change in changes.files:
            if change.path in self._files or len(self._files) < self._max_paths:
                self._files[change.path] = change
            else:
                self._rescan = True

    def take(self) -> Changes:
        changes = Changes(tuple(self._files.values()), self._rescan)
        self._files, self._rescan = {}, False
        return changes

    def put_back(self, changes: Changes) -> None:
        """Put back changes that were not handled, before newer changes."""
        later = self.take()
        self.add(changes)
        self.add(later)


class _Files:
    """Watches files with the library watchfiles, in worker threads that run one at a time."""

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        ignored: tuple[str, ...],
        window: GatheringWindow,
        stop: anyio.Event,
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if not given:
            msg = "watch needs at least one path"
            raise ValueError(msg)
        self._roots = [os.path.abspath(path) for path in given]  # noqa: PTH100 (keeps its links)
        self._ignored = ignored
        self._window = window
        self._stop = stop
        self._last_look = False
        self._step = max(1, min(STEP, int(window.quiet * 1000 / 4)))
        self._thread = anyio.CapacityLimiter(1)
        self._watched: dict[str, tuple[int, int]] = {}
        self._notices: Generator[set[tuple[Any, str]]] | None = None
        self._first: list[FileChange] = []

    def open(self) -> None:
        """Start watching. Every change from now on will be seen."""
        with needs_extra("watch", "watch needs watchfiles"):
            import watchfiles as _  # noqa: F401, PLC0415 (an extra)
        for root in self._roots:
            if not os.path.exists(root):  # noqa: PTH110 (as above)
                msg = f"can't watch {root}: there is no such file or directory"
                raise FileNotFoundError(msg)
        self._watched = _identities(self._roots)
        self._first = self._look()

    async def next_changes(self) -> Changes | None:
        """Wait for a burst of changes and return it; None if stopped and nothing is left."""
        gathered = PendingChanges(MAX_CHANGES)
        first = last = 0.0
        found, self._first = self._first, []
        while True:
            now = anyio.current_time()
            if found:
                first, last = first if gathered else now, now
                gathered.add(Changes(tuple(found), rescan=False))
            if self._last_look:
                return gathered.take() if gathered else None
            if now >= due_at(self._window, first, last, bool(gathered)):
                return gathered.take()
            self._last_look = self._stop.is_set()  # This look still sees changes.
            found = await anyio.to_thread.run_sync(self._next, limiter=self._thread)

    async def close(self) -> None:
        await anyio.to_thread.run_sync(self._close, limiter=self._thread)

    # --- in the thread --------------------------------------------------------------------------

    def _next(self) -> list[FileChange]:
        changes = self._look()
        before, self._watched = self._watched, _identities(self._roots)
        if before != self._watched:  # Editors replace files when they save.
            self._close()
            changes += self._look()
            for path in {**before, **self._watched}:
                if path not in self._watched:
                    changes.append(FileChange("deleted", Path(path)))
                elif path not in before:
                    changes += self._noted("added", path)
                elif self._watched[path] != before[path]:
                    changes += self._noted("modified", path)
        return changes

    def _look(self) -> list[FileChange]:
        """Return new changes. The wait for them is short, because a thread can't be cancelled."""
        import watchfiles  # noqa: PLC0415 (an extra)

        try:
            if self._notices is None and self._watched:
                self._notices = watchfiles.watch(
                    *self._watched,
                    watch_filter=lambda _, path: self._counts(path),
                    step=self._step,
                    debounce=2 * self._step,
                    rust_timeout=TIMEOUT,
                    yield_on_timeout=True,
                    raise_interrupt=False,
                )
            notices = None if self._notices is None else next(self._notices, None)
        except FileNotFoundError:
            notices = None
        if notices is None:  # The watched path is gone, but it may return.
            self._close()
            time.sleep(TIMEOUT / 1000)
            return []
        return [
            change
            for kind, path in sorted(notices, key=itemgetter(1))
            for change in self._noted(kind.raw_str(), path)
        ]

    def _close(self) -> None:
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _counts(self, path: str) -> bool:
        inside = [root for root in self._roots if Path(path).is_relative_to(root)]
        return any(not is_ignored(path, root, self._ignored) for root in inside)

    def _noted(self, kind: Kind, path: str) -> Iterator[FileChange]:
        """Yield a change and, for a new directory, its files, which the system may not report."""
        yield FileChange(kind, Path(path))
        if os.path.isdir(path) and (kind == "added" or path in self._roots):  # noqa: PTH112
            for directory, _, names in os.walk(path):
                files = [os.path.join(directory, name) for name in names]  # noqa: PTH118
                yield from (FileChange("added", Path(each)) for each in files if self._counts(each))


def is_ignored(path: str, root: str, patterns: Iterable[str]) -> bool:
    """Return whether a path, or a directory between ``root`` and the path, has an ignored name."""
    names = Path(path).relative_to(root).parts
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _identities(roots: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the device and inode of each existing path."""
    found: dict[str, tuple[int, int]] = {}
    for root in roots:
        try:
            status = os.stat(root)  # noqa: PTH116 (as above)
        except OSError:
            continue
        found[root] = status.st_dev, status.st_ino
    return found


def _names_of(state: str | Path) -> set[str]:
    """Return patterns for a state file, the file that it links to, and their temporary files."""
    names = {escape(Path(state).name), escape(Path(state).resolve().name)}
    return names | {f".{name}.*" for name in names}
