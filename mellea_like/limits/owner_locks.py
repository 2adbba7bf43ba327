"""Locks that show which owners of a store are alive.

A process becomes an owner when it opens the store. Each owner holds a lock on one byte of a file.
The kernel releases a process's locks when the process dies, no matter how. A process id would be
less reliable, because another process may reuse it. These are POSIX locks: a forked child inherits
none of them, but a process loses all its locks on a file as soon as it closes any descriptor of
the file. So a process opens each file of locks once, and keeps it open until it is no longer an
owner.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path


_opened: dict[tuple[int, int], OwnerLocks] = {}
_lock = Lock()


def _forget() -> None:
    for locks in _opened.values():
        with suppress(OSError):
            os.close(locks.descriptor)
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@dataclass(slots=True, eq=False)
class OwnerLocks:
    """The owners' locks on one file. ``mine`` has the numbers of this process's owners."""

    descriptor: int
    mine: set[int] = field(default_factory=set[int])

    def hold(self, number: int) -> None:
        """Mark an owner as alive, until `release` or the death of this process."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        self.mine.add(number)

    def release(self, number: int) -> None:
        """Mark an owner of this process as gone."""
        with _lock:
            self.mine.discard(number)
            with suppress(OSError):
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, number)
                if not self.mine and self in _opened.values():
                    found = os.fstat(self.descriptor)
                    del _opened[found.st_dev, found.st_ino]
                    os.close(self.descriptor)

    def lives(self, number: int) -> bool:
        """Return whether an owner is alive, in this process or another."""
        if number in self.mine:
            return True
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:
            return True
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, number)
        return False


def owner_locks(path: Path) -> OwnerLocks:
    """Return the locks in a file; open the file if this process doesn't have it open."""
    if sys.platform == "win32":  # pragma: no cover
        msg = "it needs Unix file locks, which Windows doesn't have: use WSL"
        raise OSError(None, msg)
    with _lock:
        with suppress(FileNotFoundError):
            there = path.stat()
            found = _opened.get((there.st_dev, there.st_ino))
            if found is not None:
                return found
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        there = os.fstat(descriptor)
        return _opened.setdefault((there.st_dev, there.st_ino), OwnerLocks(descriptor))
