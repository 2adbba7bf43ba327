"""Read a journal, whether its run is still running, has finished, or was killed.

Reading needs no lock, and changes neither the journal nor its write-ahead log.
"""

from __future__ import annotations

import base64
import json
import sys
from array import array
from contextlib import contextmanager
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mellea_like.batch.journal.database import damaged, journal_errors, opened, read_whole
from mellea_like.batch.journal.records import item_record
from mellea_like.errors import JournalError
from mellea_like.report.views import ItemView

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mellea_like.batch.journal.records import Drawn, Row

__all__ = ["read_items", "read_run"]

BLOCK = 100
"""The number of items to read at a time."""

_ITEMS = (
    "SELECT items.id, items.digest, items.label, items.data, results.item, results.attempt,"
    " results.status, results.elapsed, results.error, results.trace"
    " FROM items LEFT JOIN results ON results.item = items.id"
    " WHERE items.id >= ? AND items.id < ? AND (results.item IS NULL OR NOT ?)"
    " ORDER BY items.id LIMIT ?"
)
_ATTEMPTS = (
    "SELECT * FROM attempts WHERE item IN (SELECT value FROM json_each(?)) ORDER BY item, attempt"
)
_SLICES = (
    "SELECT * FROM slices WHERE item IN (SELECT value FROM json_each(?))"
    " ORDER BY item, attempt, iteration"
)
_PART = "SELECT data FROM parts WHERE sha256 = ?"


class StoredItem(ItemView):
    """An item in a journal; ``slices`` has all draws of an unfinished one, even replaced ones."""

    def __init__(self, record: dict[str, Any], slices: tuple[Drawn, ...]) -> None:
        super().__init__(record)
        self.slices = slices


def journal_paths(*journals: object) -> tuple[Path, ...]:
    """Return the path of each journal once, given paths, `Journal` objects or directories."""
    found: dict[Path, Path] = {}
    for given in journals:
        place: Any = getattr(given, "path", given)
        if not isinstance(place, str | PathLike):
            msg = f"a run can be read only from a journal or its path, not from {given!r}"
            raise TypeError(msg)
        path = Path(cast("str | PathLike[str]", place))
        inside = sorted(path.glob("*.db")) if path.is_dir() else [path]
        if not inside:
            msg = f"{path} is a directory without a journal: none of its files ends in .db"
            raise JournalError(msg)
        for one in inside:
            found.setdefault(one.resolve(), one)
    return tuple(found.values())


def read_run(path: str | Path, *, check: bool = True) -> dict[str, Any]:
    """Read the record of a run from its journal.

    Args:
        path: the journal's path. The journal may be in use.
        check: whether to check the whole file for damage, which takes seconds per gigabyte. Use
            False if you also read all items, because `read_items` checks the file as well.

    Returns:
        A dictionary. ``format`` is ``"mellea_like.run"``, and ``version`` is the version of this
        format. ``identity`` has the settings that the run was begun with. ``started`` and ``ended``
        are times in UTC as ISO 8601; ``ended`` is None while the run is running and after a kill.
        ``counts`` has the number of items by status, including ``"unfinished"``. ``prices`` has the
        prices of each model, or is None. ``text`` is as in `Journal`. ``versions`` has the versions
        of mellea_like and Python, or is None. ``sittings`` has a pair of times for each time that
        the journal was opened for writing: when it was opened, and when it was closed. The second
        time is None while the journal is open and after a kill.

    Raises:
        JournalError: the file isn't a journal, is of another format version, or is damaged.
    """
    with opened(Path(path), whole=check) as connection, _snapshot(connection):
        facts = run_facts(connection, Path(path))
        counts = {"passed": 0, "failed": 0, "errored": 0}
        counts |= dict(connection.execute("SELECT status, count(*) FROM results GROUP BY status"))
        (items,) = connection.execute("SELECT count(*) FROM items").fetchone()
    counts["unfinished"] = items - sum(counts.values())
    return {
        "format": "mellea_like.run",
        "version": 1,
        "identity": facts["identity"],
        "started": facts["started"],
        "ended": facts.get("ended"),
        "counts": counts,
        "prices": facts.get("prices"),
        "text": facts.get("text", "all"),
        "versions": facts.get("versions"),
        "sittings": facts.get("sittings") or [],
    }


def read_items(
    path: str | Path, *, only: int | None = None, parts: bool = True
) -> Iterator[dict[str, Any]]:
    """Read the record of each item, a block at a time.

    Args:
        path: the journal's path. The journal may be in use; each block shows the items as
            they are when the block is read.
        only: the id of a single item to read. The rest of the file is then neither read nor
            checked, unless the item is missing.
        parts: whether to read the data of large images, sounds and files. With False, the data is
            replaced by a dict with its ``sha256`` and its number of ``bytes``, for programs that
            show placeholders.

    Yields:
        A dictionary for each item that was begun, in the order of the input. ``id`` is the item's
        position in the input, from 0. ``digest`` is equal for equal items. ``label`` and ``data``
        describe the item. ``status`` is ``"passed"``, ``"failed"``, ``"errored"`` or
        ``"unfinished"``, and ``error`` has the error's ``type`` and ``message``, or is None.
        ``attempts`` is the number of attempts; ``started`` and ``elapsed`` are those of the last
        attempt, and ``usage`` is that of all attempts, including killed ones. ``trace`` is the
        argument for ``SamplingResult.from_dict``, or None. ``drawn`` has an unfinished item's
        draws so far, in the form of a trace's ``slices``, but without the prompts; ``rounds`` has
        the calls of ``read_only`` tools in a draw, with their answers. It is empty for other items.

    Raises:
        JournalError: the file isn't a journal, is of another format version, or is damaged.
    """
    path = Path(path)
    first, end = (0, sys.maxsize) if only is None else (only, only + 1)
    with opened(path, whole=only is None) as connection:
        while block := read_block(connection, path, (first, end, BLOCK), parts=parts):
            for stored in block:
                yield cast("dict[str, Any]", stored.plain)
            first = block[-1].id + 1
        if first == only:
            read_whole(connection, path)


def repeated(paths: Iterable[Path]) -> Callable[[str], bool]:
    """Return a function that tells whether several items of the journals have a given digest."""
    hashes = array("q")  # They take less memory than the digests.
    for path in paths:
        with opened(path, whole=False) as connection, journal_errors(path):
            hashes.extend(hash(row[0]) for row in connection.execute("SELECT digest FROM items"))
    ordered = sorted(hashes)
    found = {one for one, other in pairwise(ordered) if one == other}
    return lambda digest: hash(digest) in found


def read_block(
    connection: sqlite3.Connection,
    path: Path,
    which: tuple[int, int, int],
    *,
    unfinished: bool = False,
    parts: bool = True,
) -> list[StoredItem]:
    """Read items in one snapshot; ``which`` is (first id, end id, limit)."""
    first, end, limit = which
    with journal_errors(path), _snapshot(connection):
        rows = connection.execute(_ITEMS, (first, end, unfinished, limit)).fetchall()
        if not rows:
            return []
        ids = json.dumps([row[0] for row in rows])
        attempts = _by_item(connection.execute(_ATTEMPTS, (ids,)))
        slices = _by_item(connection.execute(_SLICES, (ids,)))

    @cache
    def data_of(sha256: str) -> str:
        found = connection.execute(_PART, (sha256,)).fetchone()
        if found is None:
            raise KeyError(sha256)
        return base64.b64encode(found[0]).decode("ascii")

    try:
        return [
            StoredItem(
                *item_record(
                    row[:4],
                    None if row[4] is None else row[4:],
                    attempts.get(row[0], ()),
                    slices.get(row[0], ()),
                    data_of if parts else None,
                ),
            )
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as exc:
        span = f"items {rows[0][0]} to {rows[-1][0]}"
        raise damaged(path, f"{span} lack a part ({exc!r})") from exc


def run_facts(connection: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Return the journal's facts about its run, such as ``identity`` and ``started``, by name."""
    try:
        facts = {name: json.loads(value) for name, value in connection.execute("SELECT * FROM run")}
    except (TypeError, ValueError):
        facts = {}
    if not {"identity", "started"} <= set(facts):
        raise damaged(path, "it does not say which run it belongs to")
    return facts


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Enter a block in which all reads see the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _by_item(rows: Iterator[Row]) -> dict[int, list[Row]]:
    return {item: list(of_item) for item, of_item in groupby(rows, itemgetter(0))}
