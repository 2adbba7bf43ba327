"""Reading a journal: one that is being written, one that is finished, one whose run was killed.

Reading needs no lock and changes neither the journal nor what was last written beside it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.batch.journal import schema
from mellea_like.batch.journal.file import (
    check,
    check_tables,
    connect,
    damaged,
    has_log,
    look,
    problems,
    sound_rows,
)
from mellea_like.batch.journal.records import item_record
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from mellea_like.batch.journal.records import Row

__all__ = ["StoredItem", "opened", "read_block", "read_items", "read_run", "run_facts"]

BLOCK = 100
"""How many items are read at a time."""

EVER = sys.maxsize
"""An item's id is below this."""


class StoredItem(NamedTuple):
    """What a journal knows of an item.

    Attributes:
        id: its position in the input, from 0.
        digest: the digest of what was asked.
        attempts: how often it was begun.
        result: the item as `read_items` gives it if it is finished, else None.
    """

    id: int
    digest: str
    attempts: int
    result: dict[str, Any] | None


def read_run(path: str | Path, *, check: bool = True) -> dict[str, Any]:
    """Read what a journal says of its run.

    Args:
        path: the journal's path. It may be in use.
        check: whether to check all of the file, which takes seconds for each gigabyte. False is
            for those who read all items too, for that checks it.

    Returns:
        ``format`` (``"mellea_like.run"``), ``version``, ``identity`` (what the run was begun with),
        ``started`` and ``ended`` (ISO 8601, UTC; None while it runs and after it was killed),
        ``counts`` (items by status) and ``prices`` (of each model, or None).

    Raises:
        JournalError: it is no journal, one of another format version, or damaged.
    """
    with opened(Path(path), whole=check) as connection, _snapshot(connection):
        facts = run_facts(connection, Path(path))
        counts: dict[str, int] = {"passed": 0, "failed": 0, "errored": 0}
        counts |= dict(connection.execute(schema.COUNT_RESULTS))
        (items,) = connection.execute(schema.COUNT_ITEMS).fetchone()
    counts["unfinished"] = items - sum(counts.values())
    return {
        "format": "mellea_like.run",
        "version": 1,
        "identity": facts["identity"],
        "started": facts["started"],
        "ended": facts.get("ended"),
        "counts": counts,
        "prices": facts.get("prices"),
    }


def read_items(
    path: str | Path, *, traces: bool = True, only: int | None = None
) -> Iterator[dict[str, Any]]:
    """Read what a journal knows of each item, a block at a time.

    Args:
        path: the journal's path. It may be in use: each block is as of when it is read.
        traces: whether to read the record of each call (``trace``), with all its slices.
        only: the id of a single item to read; the rest of the file is neither read nor checked,
            unless the item isn't there.

    Yields:
        For each item that was begun, in the order of the input: ``id`` (its position there, from
        0), ``label``, ``data``, ``status`` (``"passed"``, ``"failed"``, ``"errored"`` or
        ``"unfinished"``), ``attempts``, ``error`` (``type`` and ``message``, or None), ``started``
        and ``elapsed`` (of the last attempt), ``usage`` (of all attempts, also those that were
        killed) and ``trace`` (what ``SamplingResult.from_dict`` takes, or None).

    Raises:
        JournalError: it is no journal, one of another format version, or damaged.
    """
    path = Path(path)
    first, end = (0, EVER) if only is None else (only, only + 1)
    with opened(path, whole=only is None) as connection:
        while block := read_block(connection, path, (first, end, BLOCK), traces=traces):
            for _, record in block:
                yield record
            first = block[-1][1]["id"] + 1
        if first == only:
            check_tables(connection, path, whole=True)


def read_block(
    connection: sqlite3.Connection, path: Path, which: tuple[int, int, int], *, traces: bool
) -> list[tuple[str, dict[str, Any]]]:
    """Read some items, as of one moment.

    Args:
        connection: the open journal.
        path: its path.
        which: the first item's id, the id after the last one's, and how many at most.
        traces: whether to read the record of each call.

    Returns:
        For each item its digest and what `read_items` gives.

    Raises:
        JournalError: the journal is damaged.
    """
    with problems(path), _snapshot(connection):
        rows = connection.execute(schema.SELECT_ITEMS, which).fetchall()
        if not rows:
            return []
        for row in rows:
            if not (schema.is_sound(row[:5]) and (row[5] is None or schema.is_sound(row[5:]))):
                raise damaged(path, f"item {row[0]} is not as it was written")
        span = rows[0][0], rows[-1][0]
        attempts = _by_item(sound_rows(connection, schema.SELECT_ATTEMPTS, span, path))
        if traces:
            slices = _by_item(sound_rows(connection, schema.SELECT_SLICES, span, path))
            usages = {item: _usage(of_item) for item, of_item in slices.items()}
        else:
            slices = None
            usages = {row[0]: row[1:] for row in connection.execute(schema.SELECT_USAGES, span)}
    try:
        return [
            (
                row[1],
                item_record(
                    row[:4],
                    None if row[5] is None else row[5:-1],
                    attempts.get(row[0], ()),
                    usages.get(row[0], (0, 0, 0, 0)),
                    None if slices is None else slices.get(row[0], ()),
                ),
            )
            for row in rows
        ]
    except (KeyError, ValueError) as exc:
        raise damaged(path, f"items {span[0]} to {span[1]} lack a part ({exc!r})") from exc


def run_facts(connection: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Read what is said of the run as a whole.

    Args:
        connection: the open journal.
        path: its path.

    Returns:
        The values by name.

    Raises:
        JournalError: the journal is damaged.
    """
    with problems(path):
        facts = {n: json.loads(v) for n, v in sound_rows(connection, schema.SELECT_RUN, (), path)}
    if not {"identity", "started"} <= set(facts):
        raise damaged(path, "it does not say which run it belongs to")
    return facts


@contextmanager
def opened(path: Path, *, whole: bool = True) -> Generator[sqlite3.Connection]:
    """Open a journal to read it, and make sure that it is one and holds together.

    Args:
        path: its path.
        whole: whether to check all of the file; else whoever reads a part finds the damage there.

    Yields:
        The connection.

    Raises:
        JournalError: it is no journal, one of another format version, or damaged.
    """
    if look(path) is None:
        msg = f"journal {path}: there is no such file"
        raise JournalError(msg)
    check(path)
    with problems(path), closing(_connected(path)) as connection:
        connection.execute("PRAGMA query_only = ON")
        check_tables(connection, path, whole=whole)
        yield connection


def _connected(path: Path) -> sqlite3.Connection:
    """Open a journal for reading, so that nothing changes and nothing is left.

    Where there is a write-ahead log, a connection that may not write leaves it alone. Where there
    is none, only one that may write removes the empty one that SQLite makes to read.
    """
    if has_log(path):
        return connect(path, "ro")
    connection = connect(path, "rw")
    try:
        connection.execute(schema.COUNT_TABLES).fetchone()
    except sqlite3.Error as exc:
        connection.close()
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
            # Nothing can be made beside it; so nobody writes it either.
            return connect(path, "ro&immutable=1")
        raise
    return connection


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Read from one moment's state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _by_item(rows: Sequence[Row]) -> dict[int, list[Row]]:
    return {item: list(of_item) for item, of_item in groupby(rows, itemgetter(0))}


def _usage(slices: Sequence[Row]) -> tuple[int, ...]:
    return tuple(sum(row[place] for row in slices) for place in range(3, 7))
