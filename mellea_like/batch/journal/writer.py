"""The file of a journal while a run writes to it, and its lock. All calls block: use a thread."""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import sys
import threading
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mellea_like.batch.journal.database import (
    SET_RUN,
    connect,
    create,
    is_there,
    journal_errors,
    make_durable,
    opened,
    raise_version,
    transaction,
)
from mellea_like.batch.journal.differences import differences, has_more_turns
from mellea_like.batch.journal.reader import read_block, run_facts
from mellea_like.batch.journal.records import to_json
from mellea_like.errors import JournalError
from mellea_like.version import __version__

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.journal.records import Row

_REOPEN_FAILED = (
    "DELETE FROM results"
    " WHERE status = 'failed'"
    " AND json_extract(trace, '$.stop_reason') IN ('exhausted', 'error')"
)
"""Deletes the results of failed items that more draws could help, so that the items continue."""

_MARK = b"mellea_like journal, written by process "
_SIGNED = re.compile(rb"%b(\d+)\n" % _MARK)

_held: set[int] = set()


def _forget_locks() -> None:
    # A forked child shares its parent's locks, and would keep them after the parent's death.
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


class JournalLock:
    """The exclusive right to write to a journal, until `release` or the death of the process.

    The lock is on a separate file: POSIX frees a process's locks on a file, here also SQLite's
    own, as soon as the process closes that file anywhere.
    """

    def __init__(self, journal: Path) -> None:
        self.path = journal.absolute().with_name(f"{journal.name}-lock")
        self._journal = journal
        while True:
            descriptor = self._locked()
            if self._is_at_path(descriptor):
                break
            os.close(descriptor)  # The last holder has just removed the file.
        self._descriptor = descriptor
        _held.add(descriptor)

    def _locked(self) -> int:
        if sys.platform == "win32":  # pragma: no cover
            msg = (
                "journals need Unix file locks, which Windows lacks: use WSL, or run without a"
                " journal"
            )
            raise JournalError(msg)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(descriptor, 200, 0)
            if content and not content.startswith(_MARK):
                msg = (
                    f"journal {self._journal}: its lock file would be {self.path}, but that is"
                    " something else: move it away, or use another name for the journal"
                )
                raise JournalError(msg)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _MARK + b"%d\n" % os.getpid(), 0)
        except BlockingIOError as exc:
            who = self._holder(descriptor)
            os.close(descriptor)
            msg = (
                f"journal {self._journal} is in use by {who}: only one run at a time can write to"
                " it; wait for that run to end, or use another journal"
            )
            raise JournalError(msg) from exc
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @staticmethod
    def _holder(descriptor: int) -> str:
        found = _SIGNED.fullmatch(os.pread(descriptor, 200, 0))
        if found is None:  # The holder has not written its id yet.
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
        """Remove the lock file, so that others can write to the journal."""
        if self._descriptor not in _held:
            return
        _held.remove(self._descriptor)
        if self._is_at_path(self._descriptor):
            with suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)


class JournalFile:
    """A journal that is open for writing: its lock and its connection. All methods block."""

    def __init__(
        self, path: Path, identity: Mapping[str, Any], *, resume: bool, notes: Mapping[str, Any]
    ) -> None:
        self._path = path
        self._using = threading.Lock()
        self._seen: dict[Path, os.stat_result] = {}
        with ExitStack() as stack, journal_errors(path):
            is_there(path)  # Refuse a bad path before a lock file is created beside it.
            lock = JournalLock(path)
            stack.callback(lock.release)
            place = path.absolute()  # A validator may change the working directory.
            self._files = place, place.with_name(f"{path.name}-wal"), lock.path
            if not is_there(path):
                first = {"identity": dict(identity), "started": timestamp()}
                create(path, {name: to_json(value) for name, value in first.items()})
            elif not resume:
                msg = (
                    f"journal {path} already exists: resume it, or use another name;"
                    " nothing in it was changed"
                )
                raise JournalError(msg)
            with opened(path) as connection:
                facts = run_facts(connection, path)
                more_turns = self._compare(facts, identity)
            self._connection = stack.enter_context(closing(connect(path, "rw")))
            make_durable(self._connection, path)
            raise_version(self._connection)
            if more_turns:
                own: Row = ("identity", to_json(dict(identity)))
                self.commit({_REOPEN_FAILED: [()], SET_RUN: [own]})
            (last,) = self._connection.execute("SELECT max(id) FROM items").fetchone()
            self.last: int = -1 if last is None else last
            versions = {"mellea_like": __version__, "Python": platform.python_version()}
            self._earlier, self._opened = list(facts.get("sittings") or ()), timestamp()
            sittings = [*self._earlier, [self._opened, None]]
            self._note({**notes, "versions": versions, "ended": None, "sittings": sittings})
            self._stack = stack.pop_all()

    def _compare(self, facts: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        """Raise if the journal is another run's; return whether failed items get more draws."""
        before, again = facts["identity"], json.loads(to_json(dict(now)))
        if has_more_turns(before, again) and facts.get("text") == "all":
            return True
        found = () if before == again else differences(before, again)
        if found:
            msg = (
                f"journal {self._path} belongs to another run: {'; '.join(map(str, found))}. Resume"
                " it the way it was started, or use another journal"
            )
            raise JournalError(msg, found)
        return False

    def commit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Write rows, grouped by their SQL, in one transaction; return once they are on disk."""
        with self._using, journal_errors(self._path), transaction(self._connection):
            for statement, of_statement in rows.items():
                self._connection.executemany(statement, of_statement)
        self._check_in_place()

    def _check_in_place(self) -> None:
        """Raise if the journal, its log or its lock file was moved, deleted or replaced."""
        for path in self._files:
            try:
                found = path.lstat()
            except OSError:
                found = None
            if found is None or not os.path.samestat(found, self._seen.setdefault(path, found)):
                msg = (
                    f"journal {self._path}: {path.name} was moved, deleted or replaced while the"
                    " run wrote to it: put it back before you resume, or use another journal"
                )
                raise JournalError(msg)

    def _note(self, facts: Mapping[str, Any]) -> None:
        self.commit({SET_RUN: [(name, to_json(value)) for name, value in facts.items()]})

    def read(self, first: int, end: int, count: int, *, unfinished: bool) -> list[StoredItem]:
        """Read ``count`` items, or unfinished ones without large data, with ids below ``end``."""
        how = {"unfinished": unfinished, "parts": not unfinished}
        with self._using:
            return read_block(self._connection, self._path, (first, end, count), **how)

    def close(self, *, ended: bool) -> None:
        """Record whether the run has ended, and close the journal."""
        try:
            now = timestamp()
            notes = {"sittings": [*self._earlier, [self._opened, now]]}
            with suppress(JournalError):
                self._note({**notes, "ended": now} if ended else notes)
        finally:
            # A read whose caller was cancelled may still be running in a thread.
            with self._using, suppress(sqlite3.Error):
                self._stack.close()


def timestamp() -> str:
    """Return the current time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat()
