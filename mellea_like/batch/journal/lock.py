"""One process at a time writes a journal: a lock beside it, which the kernel frees at any death.

The lock is on a file of its own. A lock on the database file itself would be lost, by POSIX's
rules, as soon as anything in this process closed that file, and with it those that SQLite holds.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mellea_like.errors import JournalError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalLock"]

MARK = "mellea_like journal, written by process"
_CONTENT = re.compile(rb"(?:%b (\d+)\n)?" % MARK.encode("ascii"))
_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
)

_held: set[int] = set()


def _forget_locks() -> None:
    # A forked child shares its parent's locks, and would keep them when the parent is dead.
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


class JournalLock:
    """The right to write a journal, from its making to `release`.

    The file of the lock is there as long as it is held, and is left behind where a process was
    killed; nobody holds it then.

    Args:
        journal: the journal's path.

    Raises:
        JournalError: another process has the lock, or this one has it already, or the lock's file
            can't be made or is somebody else's.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._path = journal.with_name(f"{journal.name}-lock")
        self._descriptor = self._acquire()
        _held.add(self._descriptor)

    def _acquire(self) -> int:
        if sys.platform == "win32":  # pragma: no cover
            msg = "journals need file locks (flock), which this system lacks"
            raise JournalError(msg)
        while True:
            descriptor = self._opened()
            try:
                content = self._locked(descriptor)
                if self.holds_file(descriptor):
                    self._sign(descriptor, content)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # Its last holder has just removed it.

    def _opened(self) -> int:
        try:
            descriptor = os.open(self._path, _FLAGS, 0o600)
        except OSError as exc:
            why = "it is a symbolic link" if self._path.is_symlink() else exc.strerror
            msg = f"journal {self._journal}: its lock {self._path.name} can't be made: {why}"
            raise JournalError(msg) from exc
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise JournalError(self._foreign())
        return descriptor

    def _locked(self, descriptor: int) -> bytes:
        """Lock the file, and return what is in it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = _signature(descriptor)
            who = "another process"
            if holder is not None:
                mine = holder == os.getpid()
                who = f"this process ({holder}) already" if mine else f"process {holder}"
            msg = (
                f"journal {self._journal} is in use by {who}: only one at a time may write it;"
                " wait for that run to end, or use another journal"
            )
            raise JournalError(msg) from exc
        except OSError as exc:  # pragma: no cover (a file system without locks)
            msg = f"journal {self._journal}: its file system has no locks: {exc.strerror}"
            raise JournalError(msg) from exc
        return os.pread(descriptor, 200, 0)

    def _sign(self, descriptor: int, content: bytes) -> None:
        if _CONTENT.fullmatch(content) is None:
            raise JournalError(self._foreign())
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{MARK} {os.getpid()}\n".encode("ascii"), 0)
        except OSError as exc:
            msg = f"journal {self._journal}: its lock can't be written: {exc.strerror}"
            raise JournalError(msg) from exc

    def _foreign(self) -> str:
        return (
            f"journal {self._journal}: {self._path} is where its lock belongs, but that is"
            " something else: move it away, or give the journal another name"
        )

    def holds_file(self, descriptor: int | None = None) -> bool:
        """Tell whether the locked file is still the one at its path.

        Args:
            descriptor: an open file; by default the lock's own.

        Returns:
            False where it was moved, deleted or replaced: others could lock another one there.
        """
        try:
            there = self._path.lstat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(descriptor or self._descriptor))

    def release(self) -> None:
        """Let others write the journal, and remove the lock's file."""
        if self._descriptor not in _held:
            return
        _held.remove(self._descriptor)
        if self.holds_file():
            with suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)


def _signature(descriptor: int) -> int | None:
    """Read the process id of whoever holds a lock; it may be just about to write it."""
    for _ in range(20):
        found = _CONTENT.fullmatch(os.pread(descriptor, 200, 0))
        if found is not None and found[1] is not None:
            return int(found[1])
        time.sleep(0.005)
    return None
