"""Files that may change: which count, what they looked like, and what has changed since."""

from __future__ import annotations

import os
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "IGNORED",
    "Changes",
    "FileChange",
    "Look",
    "Todo",
    "differences",
    "identities",
    "is_ignored",
    "look_at",
    "scan",
]

IGNORED = (
    # Version control, environments, caches.
    ".git", ".hg", ".svn", ".jj", ".venv", "node_modules", "__pycache__", "*.py[cod]", ".tox",
    ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints",
    # What editors and desktops write beside a file.
    ".idea", ".vscode", "*~", "*.sw?", ".*.sw?", "4913", ".#*", "#*#", "*___jb_???___",
    ".goutputstream-*", ".~lock.*", "flycheck_*", ".DS_Store", "Thumbs.db",
)  # fmt: skip
"""Names of files and directories whose changes do not count."""

Look = tuple[int, int, int]
"""When a file was changed last in ns, its size, and its inode."""


class FileChange(NamedTuple):
    """A change of a file or directory.

    Attributes:
        kind: what happened to it.
        path: its absolute path.
    """

    kind: Literal["added", "modified", "deleted"]
    path: Path


class Changes(NamedTuple):
    """What a tick of `watch` is run for.

    Attributes:
        files: what changed, each path once.
        rescan: whether there was more than could be kept, or nothing is known yet: at the start.
    """

    files: tuple[FileChange, ...]
    rescan: bool

    @property
    def reason(self) -> str:
        """What changed, in a few words."""
        if not self.files:
            return "start"
        kind, path = self.files[0]
        rest = len(self.files) - 1
        more = f", and {rest} more" if rest else ""
        return f"{path.name} {kind}{more}"


class Todo:
    """The changes that no tick has dealt with yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: dict[Path, FileChange] = {}
        self._rescan = False

    def add(self, changes: Changes) -> None:
        """Add changes; a path that is there already keeps its place."""
        self._rescan |= changes.rescan
        for change in changes.files:
            if change.path in self._files or len(self._files) < self._most:
                self._files[change.path] = change
            else:
                self._rescan = True

    def take(self) -> Changes:
        """Take all changes out."""
        changes = Changes(tuple(self._files.values()), self._rescan)
        self._files, self._rescan = {}, False
        return changes

    def put_back(self, changes: Changes) -> None:
        """Take back changes that were not dealt with; they are older than those there."""
        later = self.take()
        self.add(changes)
        self.add(later)


def is_ignored(path: str, root: str, patterns: Iterable[str]) -> bool:
    """Tell whether a path, or a directory on the way to it, has an ignored name."""
    names = Path(path).relative_to(root).parts
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def look_at(path: str) -> Look | None:
    """Look at a file."""
    try:
        found = os.stat(path)  # noqa: PTH116 (thousands of them)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def scan(roots: Iterable[str], patterns: tuple[str, ...]) -> dict[str, Look]:
    """Look at all files that count."""
    seen: dict[str, Look] = {}
    for root in roots:
        if not os.path.isdir(root):  # noqa: PTH112 (as above)
            look = look_at(root)
            if look is not None:
                seen[root] = look
        for directory, directories, files in os.walk(root):
            directories[:] = [name for name in directories if not _matches(name, patterns)]
            for name in files:
                path = os.path.join(directory, name)  # noqa: PTH118 (as above)
                if not _matches(name, patterns) and (look := look_at(path)) is not None:
                    seen[path] = look
    return seen


def differences(before: Mapping[str, Look], now: Mapping[str, Look]) -> list[FileChange]:
    """Compare what files looked like with what they look like."""
    changes = [
        FileChange("modified" if path in before else "added", Path(path))
        for path, look in now.items()
        if before.get(path) != look
    ]
    return changes + [FileChange("deleted", Path(path)) for path in before if path not in now]


def identities(roots: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return which file or directory is behind each name: an editor may have put another there."""
    found: dict[str, tuple[int, int]] = {}
    for root in roots:
        with suppress(OSError):
            status = os.stat(root)  # noqa: PTH116 (as above)
            found[root] = status.st_dev, status.st_ino
    return found


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
