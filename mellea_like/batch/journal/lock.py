"""One process at a time writes a journal: a lock beside it, which the kernel frees at any death.

The lock is on a separate file. A lock on the database file itself would be lost, by POSIX's
rules, as soon as anything in this process closed that file, and with it those that SQLite holds.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from mellea_like.errors import JournalError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalLock"]

_MARK = b"mellea_like journal, written by process "
_SIGNED = re.compile(rb"%b(\d+)\n" % _MARK)

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
    """The right to write a journal, until `release`; its file is there as long as it is held."""

    def __init__(self, journal: Path) -> None:
        self.path = journal.with_name(f"{journal.name}-lock")
        self._journal = journal
        while True:
            descriptor = self._locked()
            if self._is_at_path(descriptor):
                break
            os.close(descriptor)  # Its last holder has just removed it.
        self._descriptor = descriptor
        _held.add(descriptor)

    def _locked(self) -> int:
        if sys.platform == "win32":  # pragma: no cover
            msg = "journals need file locks (flock), which this system lacks"
            raise JournalError(msg)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(descriptor, 200, 0)
            if content and not content.startswith(_MARK):
                msg = (
                    f"journal {self._journal}: {self.path} is where its lock belongs, but that is"
                    " something else: move it away, or give the journal another name"
                )
                raise JournalError(msg)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _MARK + b"%d\n" % os.getpid(), 0)
        except BlockingIOError as exc:
            who = self._holder(descriptor)
            os.close(descriptor)
            msg = (
                f"journal {self._journal} is in use by {who}: only one at a time may write it;"
                " wait for that run to end, or use another journal"
            )
            raise JournalError(msg) from exc
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @staticmethod
    def _holder(descriptor: int) -> str:
        found = _SIGNED.fullmatch(os.pread(descriptor, 200, 0))
        if found is None:  # It is just about to sign.
            return "another process"
        process = int(found[1])
        return (
            f"this process ({process}) already" if process == os.getpid() else f"process {process}"
        )

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(descriptor))
        except OSError:
            return False

    def release(self) -> None:
        """Let others write the journal, and remove the lock's file."""
        if self._descriptor not in _held:
            return
        _held.remove(self._descriptor)
        if self._is_at_path(self._descriptor):
            with suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)
