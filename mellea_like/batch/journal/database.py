"""The file of a journal: its tables, and functions to create, open and check it.

All functions block; callers on an event loop run them in a thread.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

APPLICATION_ID = 0x4D4C6A6C
"""The application id at byte 68 of the file, ``MLjl`` (https://sqlite.org/fileformat2.html)."""

FORMAT_VERSION = 5
"""The version of the tables that new journals get, stored in the file's ``user_version``."""

WITH_PARTS = 4
"""The first version that stores large data separately, in the table ``parts``."""

READ_VERSIONS = (2, 3, WITH_PARTS, FORMAT_VERSION)
"""The format versions that can be read. Before 5, each conversation was written in full."""

TABLES = {
    "run": """CREATE TABLE run (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID""",
    "items": """CREATE TABLE items (
  id INTEGER NOT NULL PRIMARY KEY,
  digest TEXT NOT NULL,
  label TEXT NOT NULL,
  data TEXT
)""",
    "attempts": """CREATE TABLE attempts (
  item INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  started TEXT NOT NULL,
  PRIMARY KEY (item, attempt)
) WITHOUT ROWID""",
    "slices": """CREATE TABLE slices (
  item INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  requests INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  unknown INTEGER NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (item, attempt, iteration)
)""",
    "results": """CREATE TABLE results (
  item INTEGER NOT NULL PRIMARY KEY,
  attempt INTEGER NOT NULL,
  status TEXT NOT NULL,
  elapsed REAL NOT NULL,
  error TEXT,
  trace TEXT
)""",
    "parts": """CREATE TABLE parts (
  sha256 TEXT NOT NULL PRIMARY KEY,
  data BLOB NOT NULL
)""",
}
"""The tables by name, as in SQLite's own schema table.

Rows are only added, with two exceptions. The facts in ``run`` are replaced when they change, and
the results of failed items are deleted when a run is resumed with a higher loop budget.
"""

SET_RUN = "INSERT OR REPLACE INTO run VALUES (?, ?)"

BUSY_SECONDS = 10.0
"""The seconds to wait for SQLite's own locks, which other connections hold only briefly."""

_ADVICE = "restore a backup, or start a new journal; `sqlite3 FILE .recover` may save rows"

_WHY = {
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: {_ADVICE}",
    sqlite3.SQLITE_FULL: "the disk is full; make room, then run again with this journal",
    sqlite3.SQLITE_IOERR: "reading or writing it failed",
    sqlite3.SQLITE_NOTADB: "it is neither a journal nor any other SQLite database",
    sqlite3.SQLITE_PERM: "permission denied",
    sqlite3.SQLITE_READONLY: "it can't be written to",
}


@contextmanager
def journal_errors(path: Path) -> Generator[None]:
    """Enter a block in which errors of SQLite and the operating system become `JournalError`."""
    try:
        yield
    except sqlite3.Error as exc:
        why = _WHY.get(_code(exc), "it can't be used")
        name = getattr(exc, "sqlite_errorname", type(exc).__name__)
        msg = f"journal {path}: {why} ({name}: {exc})"
        raise JournalError(msg) from exc
    except UnicodeDecodeError as exc:
        raise damaged(path, f"a name or a text in it isn't UTF-8 ({exc})") from exc
    except OSError as exc:
        where = "" if exc.filename in {None, str(path)} else f": {exc.filename}"
        msg = f"journal {path}: {exc.strerror}{where}"
        raise JournalError(msg) from exc


def damaged(path: Path, what: str) -> JournalError:
    """Return the error for a damaged journal."""
    return JournalError(f"journal {path} is damaged: {what}: {_ADVICE}")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_there(path: Path) -> bool:
    """Return whether a file exists at the path; raise if the path can't be a journal's."""
    if not path.parent.is_dir():
        msg = f"journal {path}: there is no folder {path.parent}: create it first"
        raise JournalError(msg)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        msg = (
            f"journal {path} is a symbolic link, and those are not followed: pass the path of the"
            " file itself"
        )
        raise JournalError(msg)
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        msg = f"journal {path} is {what}: pass the path of a file"
        raise JournalError(msg)
    return True


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database unchecked; the mode ``ro&immutable=1`` ignores its write-ahead log."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,  # Transactions are explicit.
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Enter a block whose changes are committed together; if it raises, none of them are."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


def raise_version(connection: sqlite3.Connection) -> None:
    """Upgrade an older journal to `FORMAT_VERSION`, before rows of this version are written."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMAT_VERSION:
        with transaction(connection):
            if version < WITH_PARTS:
                connection.execute(TABLES["parts"])
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def _has_log(path: Path) -> bool:
    """Return whether a database has a write-ahead log that isn't empty."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def make_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Make commits survive a crash of this process or of the machine."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":  # pragma: no cover (a file system without shared memory)
        msg = (
            f"journal {path}: its file system doesn't support journals (no write-ahead log): use"
            " another file system"
        )
        raise JournalError(msg)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # On macOS, a plain fsync does not wait.


def create(path: Path, facts: Mapping[str, str]) -> None:
    """Create a journal with facts about its run. The file appears only when it is complete."""
    if _has_log(path):  # SQLite would take this log for an old one and remove it.
        msg = (
            f"journal {path} does not exist, but {path.name}-wal does, with what was last written"
            f" to the journal: put {path.name} back next to it, or remove {path.name}-wal"
        )
        raise JournalError(msg)
    marks = f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT_VERSION}"
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        draft = Path(folder, "draft")
        draft.touch()
        draft.chmod(0o600)
        with closing(connect(draft, "rw")) as connection:
            make_durable(connection, draft)
            connection.execute("BEGIN")
            for statement in (*marks, *TABLES.values()):
                connection.execute(statement)
            connection.executemany(SET_RUN, facts.items())
            connection.execute("COMMIT")
        draft.rename(path)
    place = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(place)  # Now the name is on disk too.
    finally:
        os.close(place)


@contextmanager
def opened(path: Path, *, whole: bool = True) -> Generator[sqlite3.Connection]:
    """Open a journal for reading and check it; with ``whole``, check the entire file."""
    # The full check takes seconds per gigabyte. Without it, damage shows only when it is read.
    with journal_errors(path):
        if not is_there(path):
            msg = f"journal {path}: there is no such file"
            raise JournalError(msg)
        with closing(_readable(path)) as connection:
            _check(connection, path)
            if whole:
                read_whole(connection, path)
            yield connection


def _readable(path: Path) -> sqlite3.Connection:
    """Open a journal for reading without changing anything or leaving anything behind."""
    if _has_log(path):
        return connect(path, "ro")
    # SQLite creates an empty log, which only a connection that may write removes again.
    connection = connect(path, "rw")
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException as exc:
        connection.close()
        unwritable = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
        if isinstance(exc, sqlite3.Error) and _code(exc) in unwritable:
            # No file can be created beside it, so no other process can be writing to it.
            return connect(path, "ro&immutable=1")
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise if a database isn't a journal, is damaged, or has a version that can't be read."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        msg = (
            f"{path} is not a journal, but an empty file or another application's: use another name"
        )
        raise JournalError(msg)
    if version not in READ_VERSIONS:
        age = "a newer" if version > FORMAT_VERSION else "an older"
        msg = (
            f"journal {path} has format version {version}, but this version of mellea_like reads"
            f" and writes {FORMAT_VERSION}: use {age} mellea_like for it, or another journal"
        )
        raise JournalError(msg)
    tables = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex_%'"
    found = dict(connection.execute(tables))
    if "slices" in found:
        found["slices"] = found["slices"].removesuffix(" WITHOUT ROWID")
    if version < WITH_PARTS:
        found.setdefault("parts", TABLES["parts"])
    if found != TABLES:
        raise damaged(path, "its tables are not those of a journal")


def read_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Check the integrity of the whole database; raise if it is damaged."""
    [(answer,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if answer != "ok":
        raise damaged(path, answer)
