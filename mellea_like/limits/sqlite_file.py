"""The SQLite file of a store of budgets and rates: its tables, owners and transactions.

When a process opens the file, it becomes a new owner. All reservations of an owner in one account
are a single row of the table ``held``. The row is deleted when the owner is found to be dead.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.errors import StoreError
from mellea_like.limits.bucket import Level
from mellea_like.limits.budget_accounts import Amounts, StoreSums
from mellea_like.limits.owner_locks import OwnerLocks, owner_locks

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path


APPLICATION_ID = 0x4D4C7374
"""The application id in the file, ``MLst`` at byte 68 (https://sqlite.org/fileformat2.html)."""

FORMAT_VERSION = 1

TABLES = """
CREATE TABLE accounts (
  name TEXT NOT NULL PRIMARY KEY,
  requests NOT NULL,
  input_tokens NOT NULL,
  output_tokens NOT NULL,
  money NOT NULL,
  unknown INTEGER NOT NULL,
  denied INTEGER NOT NULL,
  started REAL
) WITHOUT ROWID;
CREATE TABLE held (
  account TEXT NOT NULL,
  owner INTEGER NOT NULL,
  requests NOT NULL,
  input_tokens NOT NULL,
  output_tokens NOT NULL,
  money NOT NULL,
  PRIMARY KEY (account, owner)
) WITHOUT ROWID;
CREATE TABLE owners (number INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE waiting (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  account TEXT NOT NULL,
  owner INTEGER NOT NULL,
  seen REAL NOT NULL
);
CREATE INDEX waiting_for ON waiting (account);
CREATE TABLE buckets (
  name TEXT NOT NULL PRIMARY KEY,
  held REAL NOT NULL,
  at REAL NOT NULL,
  taken REAL NOT NULL
) WITHOUT ROWID;
"""
"""The tables. Numbers too large for SQLite's integers are stored as texts."""

BUSY_MILLISECONDS = 200
"""How long the event loop may block on another process's transaction (usually for 0.02 ms)."""

OPEN_SECONDS = 1.0
"""How long the event loop may block to open the file, while others may open it, too."""

UNSEEN = 2.0
"""A process that doesn't renew its place in an account's queue for this many seconds loses it."""

WHY = {
    sqlite3.SQLITE_NOTADB: "it is neither a store nor any other SQLite database: use another path",
    sqlite3.SQLITE_CORRUPT: "it is damaged ({}): remove it (this forgets what was spent)",
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it can't be written",
    sqlite3.SQLITE_PERM: "it can't be written",
}
"""Explanations of SQLite's errors by their codes, with a place for SQLite's own explanation."""

LARGEST = 2**63 - 1

NOTHING = Amounts()


class FileLocked(StoreError):
    """Another process has locked the file, perhaps only for a moment."""


@dataclass(slots=True, eq=False)
class OpenFile:
    """The file as opened by one process, which is one owner until it closes the file."""

    db: sqlite3.Connection
    locks: OwnerLocks
    owner: int
    _process: int = field(default_factory=os.getpid)
    _finished: bool = False

    @property
    def levels(self) -> _Levels:
        """The levels of the buckets."""
        return _Levels(self.db)

    @property
    def ours(self) -> bool:
        """Whether this process, and not the process that forked it, has opened the file."""
        return self._process == os.getpid()

    @property
    def usable(self) -> bool:
        """Whether the file is open and was opened by this process."""
        return self.ours and not self._finished

    def finish(self) -> None:
        """Release all reservations, and close the file."""
        if not self.usable:
            return
        self._finished = True
        with suppress(sqlite3.Error), closing(self.db):
            self.bury(self.owner)
        self.locks.release(self.owner)

    def bury(self, owner: int) -> None:
        """Remove an owner, its reservations and its places in queues."""
        self.db.execute("DELETE FROM held WHERE owner = ?", (owner,))
        self.db.execute("DELETE FROM waiting WHERE owner = ?", (owner,))
        self.db.execute("DELETE FROM owners WHERE number = ?", (owner,))

    # --- accounts ------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """Delete an account and all reservations in it."""
        self.db.execute("DELETE FROM accounts WHERE name = ?", (name,))
        self.db.execute("DELETE FROM held WHERE account = ?", (name,))

    def sums(self, name: str) -> StoreSums:
        """Return the sums of an account, except for what is reserved."""
        row = self.db.execute("SELECT * FROM accounts WHERE name = ?", (name,)).fetchone()
        if row is None:
            return StoreSums()
        _, *spent, unknown, denied, started = row
        age = None if started is None else max(0.0, time.time() - started)
        return StoreSums(_amounts(spent), unknown=unknown, denied=denied, age=age)

    def reserved(self, name: str, *, by_dead: bool = False) -> Amounts:
        """Return the total that living owners have reserved; a transaction removes dead owners.

        With ``by_dead``, dead owners count, too: this is faster, because no locks are tried.
        """
        total = NOTHING
        rows = self.db.execute(
            "SELECT owner, requests, input_tokens, output_tokens, money FROM held"
            " WHERE account = ?",
            (name,),
        ).fetchall()
        for owner, *row in rows:
            if by_dead or self.locks.lives(owner):
                total = total.plus(_amounts(row))
            elif self.db.in_transaction:
                self.bury(owner)
        return total

    def begin(self, name: str) -> None:
        """Record the time of the first reservation in an account."""
        self.db.execute(
            "INSERT INTO accounts VALUES (?, 0, 0, 0, 0, 0, 0, ?) ON CONFLICT (name)"
            " DO UPDATE SET started = coalesce(started, excluded.started)",
            (name, time.time()),
        )

    def deny(self, name: str) -> None:
        """Count a denied request in an account."""
        self.db.execute(
            "INSERT INTO accounts VALUES (?, 0, 0, 0, 0, 0, 1, NULL) ON CONFLICT (name)"
            " DO UPDATE SET denied = denied + 1",
            (name,),
        )

    def held(self, name: str) -> Amounts:
        """Return the total that this owner has reserved in an account."""
        row = self.db.execute(
            "SELECT requests, input_tokens, output_tokens, money FROM held"
            " WHERE account = ? AND owner = ?",
            (name, self.owner),
        ).fetchone()
        return NOTHING if row is None else _amounts(row)

    def hold(self, name: str, more: Amounts) -> None:
        """Add to the total that this owner has reserved in an account."""
        amounts = self.held(name).plus(more)
        if amounts == NOTHING:
            self.db.execute("DELETE FROM held WHERE account = ? AND owner = ?", (name, self.owner))
        else:
            self.db.execute(
                "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?)",
                (name, self.owner, *map(_column, amounts)),
            )

    def pay(self, owed: dict[str, tuple[Amounts, Amounts, int]]) -> None:
        """Charge costs to accounts, and release reservations; see ``SQLiteStore._owed``."""
        for name, (back, charged, unknown) in owed.items():
            self.hold(name, NOTHING.minus(back))
            spent = self.sums(name).spent.plus(charged)
            self.db.execute(
                "UPDATE accounts SET requests = ?, input_tokens = ?, output_tokens = ?, money = ?,"
                " unknown = unknown + ? WHERE name = ?",
                (*map(_column, spent), unknown, name),
            )

    # --- those who wait ------------------------------------------------------------------------

    def is_before(self, name: str, number: int | None) -> bool:
        """Return whether any owner has a place below ``number`` in an account's queue.

        With None, any place counts. Outdated places and places of dead owners don't count.
        """
        now, before = time.monotonic(), LARGEST if number is None else number
        places = self.db.execute(
            "SELECT owner, seen FROM waiting WHERE account = ? AND number < ?", (name, before)
        ).fetchall()
        return any(
            now - UNSEEN < seen <= now + UNSEEN and self.locks.lives(owner)
            for owner, seen in places
        )

    def take_place(self, name: str, number: int | None) -> int:
        """Join the queue for an account, or renew the place there; return the place's number."""
        place = number, name, self.owner, time.monotonic()
        insert = "INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?)"
        return self.db.execute(insert, place).lastrowid or 0

    def leave_place(self, number: int) -> None:
        """Give up the place with this number in an account's queue."""
        self.db.execute("DELETE FROM waiting WHERE number = ?", (number,))


@dataclass(slots=True)
class _Levels:
    """The table of buckets."""

    db: sqlite3.Connection

    def get(self, name: str) -> Level | None:
        found = self.db.execute(
            "SELECT held, at, taken FROM buckets WHERE name = ?", (name,)
        ).fetchone()
        return None if found is None else Level(*found)

    def __setitem__(self, name: str, level: Level) -> None:
        self.db.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?)", (name, *level))


def _amounts(row: Sequence[Any]) -> Amounts:
    return Amounts(*map(int, row))


def _column(number: float) -> int | str:
    """Return a whole number as a column's value; a number too large for SQLite becomes text."""
    return int(number) if -LARGEST <= number <= LARGEST else str(int(number))


def open_file(path: Path) -> OpenFile:
    """Open or create the file as a new owner, and remove dead owners with their reservations."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=OPEN_SECONDS,
    )
    locks, number = None, 0
    try:
        _begin(db)
        locks = owner_locks(path.with_name(f"{path.name}-owners"))
        db.execute("BEGIN IMMEDIATE")
        number = db.execute("INSERT INTO owners VALUES (NULL)").lastrowid or 0
        locks.hold(number)  # This must precede the row that makes the owner visible.
        file = OpenFile(db, locks, number)
        for (other,) in db.execute("SELECT number FROM owners").fetchall():
            if not locks.lives(other):
                file.bury(other)
        db.execute("COMMIT")
        db.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    except BaseException:
        db.close()
        if locks is not None:
            locks.release(number)
        raise
    return file


def _begin(db: sqlite3.Connection) -> None:
    """Create the tables in an empty file, or make sure that the file is a store."""
    db.execute("PRAGMA page_size = 1024")  # Changes write whole pages.
    db.execute("BEGIN IMMEDIATE")
    (kind,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    elif (kind, version) != (APPLICATION_ID, FORMAT_VERSION):
        whose = f"has format version {version}" if kind == APPLICATION_ID else "isn't a store"
        msg = f"the existing database {whose}: use another path"
        raise ValueError(msg)
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")
    # Commits survive the death of the process, but a power cut may lose the last ones.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA wal_autocheckpoint = 4000")


@contextmanager
def errors_named(path: Path) -> Generator[None]:
    """Turn errors of SQLite and of the operating system into store errors that name the file."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as exc:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        kind = FileLocked if code == sqlite3.SQLITE_BUSY else StoreError
        other = "it can't be opened ({0.strerror})" if isinstance(exc, OSError) else "{}"
        msg = f"store {path}: {WHY.get(code, other).format(exc)}"
        raise kind(msg) from exc
