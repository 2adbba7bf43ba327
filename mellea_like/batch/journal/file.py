"""The file of a journal: making it, opening it, and refusing what is none or is damaged.

Nothing here waits for an event loop; whoever calls it does so in a thread.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mellea_like.batch.journal import schema
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

__all__ = [
    "check",
    "check_tables",
    "connect",
    "create",
    "damaged",
    "explained",
    "has_log",
    "look",
    "make_durable",
    "problems",
    "sound_rows",
]

BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by the end of the name."""

SMALLEST = 512
"""The smallest page of an SQLite database; it takes a shorter file for an empty database."""

BUSY_SECONDS = 10.0
"""How long to wait where another connection holds SQLite's own locks; each does so only briefly."""

_ADVICE = "restore a copy of it, or begin a new journal; `sqlite3 FILE .recover` may save rows"

_WHY = {
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_FULL: "the disk is full; make room, and run again with this journal to go on",
    sqlite3.SQLITE_IOERR: "the disk has failed it",
    sqlite3.SQLITE_NOTADB: "it is no journal, and no SQLite database at all",
    sqlite3.SQLITE_PERM: "the permission is missing",
    sqlite3.SQLITE_READONLY: "it can't be written",
}


def explained(error: sqlite3.Error, path: Path) -> JournalError:
    """Say what SQLite's error means for a journal.

    Args:
        error: the error.
        path: the journal's path.

    Returns:
        The error to raise.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    why = _WHY.get(code, "it can't be used")
    advice = f": {_ADVICE}" if code == sqlite3.SQLITE_CORRUPT else ""
    return JournalError(f"journal {path}: {why} ({name}: {error}){advice}")


@contextmanager
def problems(path: Path) -> Generator[None]:
    """Turn errors of SQLite and of the system into those of a journal.

    Args:
        path: the journal's path.

    Yields:
        Nothing.

    Raises:
        JournalError: instead of them.
    """
    try:
        yield
    except sqlite3.Error as exc:
        raise explained(exc, path) from exc
    except UnicodeDecodeError as exc:
        raise damaged(path, f"a text in it is none ({exc})") from exc
    except OSError as exc:
        msg = f"journal {path}: {exc.strerror}"
        raise JournalError(msg) from exc


def look(path: Path) -> os.stat_result | None:
    """Look at what is where a journal is or should be, without opening it.

    Args:
        path: the journal's path.

    Returns:
        What the system says of it; None if nothing is there.

    Raises:
        JournalError: it can't be a journal: it is a symbolic link, a folder, or empty, or one of
            the files that SQLite keeps beside it is.
    """
    if not path.parent.is_dir():
        msg = f"journal {path}: there is no folder {path.parent}: make it first"
        raise JournalError(msg)
    for beside in (path.with_name(path.name + end) for end in BESIDE):
        found = _stat(beside, path)
        if found is not None and not stat.S_ISREG(found.st_mode):
            msg = f"journal {path}: {beside.name} beside it is no regular file: remove it"
            raise JournalError(msg)
    there = _stat(path, path)
    if there is None:
        return None
    if stat.S_ISLNK(there.st_mode):
        msg = f"journal {path} is a symbolic link, and none is followed: name the file itself"
        raise JournalError(msg)
    if not stat.S_ISREG(there.st_mode):
        what = "a folder" if stat.S_ISDIR(there.st_mode) else "no regular file"
        msg = f"journal {path} is {what}: name a file"
        raise JournalError(msg)
    if there.st_size < SMALLEST:
        what = "too short to be one" if there.st_size else "empty, so it is none"
        msg = f"journal {path} is {what}: move it away, or use another name"
        raise JournalError(msg)
    return there


def _stat(path: Path, journal: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
    except OSError as exc:
        msg = f"journal {journal} can't be looked at: {exc.strerror}"
        raise JournalError(msg) from exc


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the database, without a look at what it is.

    Args:
        path: its path, of an existing file.
        mode: ``"ro"`` or ``"rw"``; ``"ro&immutable=1"`` reads the main file and nothing else.

    Returns:
        A connection for one thread at a time, with transactions that are begun by hand.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    # A file from elsewhere is not trusted: https://sqlite.org/security.html
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def has_log(path: Path) -> bool:
    """Tell whether there is something in the write-ahead log beside a database.

    Args:
        path: the database's path.

    Returns:
        False where there is no log, or an empty one.
    """
    found = _stat(path.with_name(f"{path.name}-wal"), path)
    return found is not None and found.st_size > 0


def make_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Have commits survive a crash, of this process and of the machine.

    Args:
        connection: the open database.
        path: its path.

    Raises:
        JournalError: the file system is not up to it.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":  # pragma: no cover (a file system without shared memory)
        msg = f"journal {path}: its file system can't hold one (no write-ahead log): use another"
        raise JournalError(msg)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # On macOS, where a plain one does not wait.


def check(path: Path) -> None:
    """Make sure that a file is a journal that can be read here, and make nothing beside it.

    What a journal is marked with stands in its main file from its first moment. Where it has a
    log, that is read too: without it, a main file whose pages were still being copied from the log
    when its writer died would look damaged.

    Args:
        path: the file.

    Raises:
        JournalError: it is none, or one of another format version.
    """
    if sqlite3.sqlite_version_info < schema.OLDEST_SQLITE:  # pragma: no cover (an old system)
        msg = f"journals need SQLite 3.37 or newer; this Python has {sqlite3.sqlite_version}"
        raise JournalError(msg)
    mode = "ro" if has_log(path) else "ro&immutable=1"
    with problems(path), closing(connect(path, mode)) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != schema.APPLICATION_ID:
        msg = f"journal {path}: this is a database of another application: use another name"
        raise JournalError(msg)
    if version != schema.FORMAT_VERSION:
        age = "a newer" if version > schema.FORMAT_VERSION else "an older"
        msg = (
            f"journal {path} is of format version {version}, and this version of mellea_like reads"
            f" and writes {schema.FORMAT_VERSION}: use {age} mellea_like for it, or another journal"
        )
        raise JournalError(msg)


def check_tables(connection: sqlite3.Connection, path: Path, *, whole: bool) -> None:
    """Make sure that the tables are those of a journal and that the database holds together.

    Args:
        connection: the open database.
        path: its path.
        whole: whether to read all of the file for that, which takes seconds for each gigabyte.

    Raises:
        JournalError: it is damaged.
    """
    with problems(path):
        found = dict(
            connection.execute(
                "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex_%'"
            )
        )
        answers = connection.execute("PRAGMA quick_check(1)").fetchall() if whole else [("ok",)]
    if found != schema.TABLES:
        raise damaged(path, "its tables are not those of a journal")
    if answers != [("ok",)]:
        raise damaged(path, answers[0][0])


def sound_rows(
    connection: sqlite3.Connection, statement: str, parameters: tuple[Any, ...], path: Path
) -> list[tuple[Any, ...]]:
    """Read rows and check them against their checksums.

    Args:
        connection: the open database.
        statement: one of the schema's.
        parameters: its parameters.
        path: the journal's path.

    Returns:
        The rows, without their checksums.

    Raises:
        JournalError: a row is damaged.
    """
    rows = connection.execute(statement, parameters).fetchall()
    for row in rows:
        if not schema.is_sound(row):
            raise damaged(path, f"a row that begins {row[:2]} is not as it was written")
    return [row[:-1] for row in rows]


def damaged(path: Path, what: str) -> JournalError:
    """Return the error that says that a journal is damaged.

    Args:
        path: its path.
        what: what is wrong.

    Returns:
        The error to raise.
    """
    return JournalError(f"journal {path} is damaged: {what}: {_ADVICE}")


def create(path: Path, run: Mapping[str, str]) -> None:
    """Make a new journal, complete from the moment that it has its name.

    Args:
        path: where; nothing is there.
        run: what to say of the run, by name.

    Raises:
        JournalError: it can't be made, or something is there.
    """
    for beside in (path.with_name(path.name + end) for end in BESIDE):
        found = _stat(beside, path)
        if found is not None and found.st_size and not beside.name.endswith("-shm"):
            msg = (
                f"journal {path} is not there, but {beside.name} is, and holds what was last"
                f" written to it: put {path.name} back beside it, or remove {beside.name}"
            )
            raise JournalError(msg)
    with problems(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix="-new", dir=path.parent)
        draft = Path(name)
        try:
            os.fchmod(descriptor, 0o600)  # Whatever the umask.
            os.close(descriptor)
            _fill(draft, run.items())
            _publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)
            for end in BESIDE:
                with suppress(FileNotFoundError):
                    draft.with_name(draft.name + end).unlink()


def _fill(draft: Path, run: Iterable[tuple[str, str]]) -> None:
    with closing(connect(draft, "rw")) as connection:
        make_durable(connection, draft)
        connection.execute("BEGIN IMMEDIATE")
        for statement in (*schema.MARKS, *schema.TABLES.values()):
            connection.execute(statement)
        connection.executemany(schema.SET_RUN, [schema.with_checksum(*pair) for pair in run])
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _publish(draft: Path, path: Path) -> None:
    """Give a finished file its name, unless the name is taken; both reach the disk."""
    try:
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError as exc:
        msg = f"journal {path}: another program has just made a file of that name"
        raise JournalError(msg) from exc
    except OSError:  # pragma: no cover (a file system without hard links)
        draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
