"""A journal that is open for writing: its lock and its connections. Nothing here is async."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mellea_like.batch.differences import differences, said
from mellea_like.batch.journal import schema
from mellea_like.batch.journal.file import (
    connect,
    create,
    explained,
    look,
    make_durable,
    problems,
)
from mellea_like.batch.journal.lock import JournalLock
from mellea_like.batch.journal.reader import StoredItem, opened, read_block, run_facts
from mellea_like.batch.journal.records import written
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mellea_like.batch.journal.records import Row

__all__ = ["JournalDisk", "timestamp"]


class JournalDisk:
    """A journal's lock and connections, from its making to `close`.

    Args:
        path: where the journal is, or is to be.
        identity: what the run is: of the same run, if the journal is there.
        resume: whether it may be there.
        notes: what else to write down of the run, by name; it may differ from time to time.

    Attributes:
        last: the id of the last item that was begun before; -1 for none.

    Raises:
        JournalError: the journal can't be made or used, or belongs to another run.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], *, resume: bool, notes: Mapping[str, Any]
    ) -> None:
        self._path = path
        self._reads = threading.Lock()
        look(path)
        with ExitStack() as stack:
            self._lock = JournalLock(path)
            stack.callback(self._lock.release)
            with problems(path):
                existing = look(path)
                if existing is None:
                    self._create(identity)
                elif not resume:
                    msg = (
                        f"journal {path} is there already: resume it, or use another name;"
                        " nothing in it was changed"
                    )
                    raise JournalError(msg)
                with opened(path) as connection:
                    self._compare(run_facts(connection, path)["identity"], identity)
                writing = stack.enter_context(closing(connect(path, "rw")))
                make_durable(writing, path)
                # It is closed first: only a connection that may write tidies up when it is closed.
                reading = stack.enter_context(closing(connect(path, "ro")))
                (last,) = writing.execute(schema.LAST_ITEM).fetchone()
            self.last: int = -1 if last is None else last
            self._reading, self._writing = reading, writing
            self._seen: dict[Path, os.stat_result] = {}
            self._note({**notes, "ended": None})
            self._stack = stack.pop_all()

    def _create(self, identity: Mapping[str, Any]) -> None:
        facts = {"identity": dict(identity), "started": timestamp()}
        create(self._path, {name: written(value) for name, value in facts.items()})

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        found = differences(before, json.loads(written(dict(now))))
        if found:
            msg = (
                f"journal {self._path} belongs to another run: {'; '.join(said(found))}. Resume it"
                " with what it was begun with, or use another journal"
            )
            raise JournalError(msg, found)

    def commit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Write rows, all or none of them, and have them on the disk.

        Args:
            rows: the rows for each statement.

        Raises:
            JournalError: they could not be written, or the journal's file is not where it was.
        """
        writing = self._writing
        try:
            writing.execute("BEGIN IMMEDIATE")
            for statement, of_statement in rows.items():
                writing.executemany(statement, of_statement)
            writing.execute("COMMIT")
        except sqlite3.Error as exc:
            raise explained(exc, self._path) from exc
        finally:
            if writing.in_transaction:
                with suppress(sqlite3.Error):
                    writing.execute("ROLLBACK")
        self._still_there()

    def _still_there(self) -> None:
        """Make sure that what was written can be found again."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        for path in (self._path, wal):
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
        if not self._lock.holds_file():
            msg = f"journal {self._path}: its lock was removed while the run went on"
            raise JournalError(msg)

    def _note(self, facts: Mapping[str, Any]) -> None:
        rows = [schema.with_checksum(name, written(value)) for name, value in facts.items()]
        self.commit({schema.SET_RUN: rows})

    def read(self, first: int, count: int) -> list[StoredItem]:
        """Read items that were begun before.

        Args:
            first: the first one's id.
            count: how many ids to look for.

        Returns:
            What is known of them.

        Raises:
            JournalError: the journal is damaged.
        """
        which = (first, first + count, count)
        with self._reads:
            block = read_block(self._reading, self._path, which, traces=True)
        return [
            StoredItem(
                record["id"],
                digest,
                record["attempts"],
                None if record["status"] == "unfinished" else record,
            )
            for digest, record in block
        ]

    def close(self, *, ended: bool) -> None:
        """Let go of the journal.

        Args:
            ended: whether to note that the run has ended.
        """
        # A read whose caller was cancelled may still be going on in its thread.
        with self._reads, suppress(sqlite3.Error), self._stack:
            if ended:
                with suppress(JournalError):
                    self._note({"ended": timestamp()})


def timestamp() -> str:
    """Return the time of day in UTC.

    Returns:
        The time as ISO 8601 writes it.
    """
    return datetime.now(UTC).isoformat()
