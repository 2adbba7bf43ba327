"""What a journal file holds: its marks, its tables, and every statement that reads or writes them.

A row is written once and never changed. Its last column is a checksum of the others, for SQLite
has none of its own: a flipped bit in a text would be read as another text.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

__all__ = [
    "APPLICATION_ID",
    "COUNT_ITEMS",
    "COUNT_RESULTS",
    "COUNT_TABLES",
    "FORMAT_VERSION",
    "INSERT_ATTEMPT",
    "INSERT_ITEM",
    "INSERT_RESULT",
    "INSERT_SLICE",
    "LAST_ITEM",
    "MARKS",
    "OLDEST_SQLITE",
    "SELECT_ATTEMPTS",
    "SELECT_ITEMS",
    "SELECT_RUN",
    "SELECT_SLICES",
    "SELECT_USAGES",
    "SET_RUN",
    "TABLES",
    "is_sound",
    "with_checksum",
]

APPLICATION_ID = 0x4D4C6A6C
"""What the file says that it is: ``MLjl``, at byte 68 (https://sqlite.org/fileformat2.html)."""

FORMAT_VERSION = 1
"""The version of these tables, in the file's ``user_version``."""

OLDEST_SQLITE = (3, 37, 0)
"""The first SQLite with STRICT tables."""

MARKS = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT_VERSION}")
"""What marks a file; a PRAGMA takes no parameters."""

TABLES = {
    "run": """CREATE TABLE run (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL,
  crc INTEGER NOT NULL
) STRICT, WITHOUT ROWID""",
    "items": """CREATE TABLE items (
  id INTEGER NOT NULL PRIMARY KEY,
  digest TEXT NOT NULL,
  label TEXT NOT NULL,
  data TEXT,
  crc INTEGER NOT NULL
) STRICT""",
    "attempts": """CREATE TABLE attempts (
  item INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  started TEXT NOT NULL,
  crc INTEGER NOT NULL,
  PRIMARY KEY (item, attempt)
) STRICT, WITHOUT ROWID""",
    "slices": """CREATE TABLE slices (
  item INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  requests INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  unknown INTEGER NOT NULL,
  body TEXT NOT NULL,
  crc INTEGER NOT NULL,
  PRIMARY KEY (item, attempt, iteration)
) STRICT, WITHOUT ROWID""",
    "results": """CREATE TABLE results (
  item INTEGER NOT NULL PRIMARY KEY,
  attempt INTEGER NOT NULL,
  status TEXT NOT NULL,
  elapsed REAL NOT NULL,
  error TEXT,
  trace TEXT,
  crc INTEGER NOT NULL
) STRICT""",
}
"""Each table by its name, as SQLite's own schema table has it."""

SET_RUN = "INSERT OR REPLACE INTO run VALUES (?, ?, ?)"
INSERT_ITEM = "INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?, ?)"
INSERT_ATTEMPT = "INSERT INTO attempts VALUES (?, ?, ?, ?)"
INSERT_SLICE = "INSERT INTO slices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_RESULT = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)"

COUNT_ITEMS = "SELECT count(*) FROM items"
COUNT_TABLES = "SELECT count(*) FROM sqlite_schema"
COUNT_RESULTS = "SELECT status, count(*) FROM results GROUP BY status"
LAST_ITEM = "SELECT max(id) FROM items"
SELECT_RUN = "SELECT name, value, crc FROM run"
SELECT_ITEMS = (
    "SELECT items.id, items.digest, items.label, items.data, items.crc, results.item,"
    " results.attempt, results.status, results.elapsed, results.error, results.trace, results.crc"
    " FROM items LEFT JOIN results ON results.item = items.id"
    " WHERE items.id >= ? AND items.id < ? ORDER BY items.id LIMIT ?"
)
SELECT_ATTEMPTS = (
    "SELECT item, attempt, started, crc FROM attempts WHERE item BETWEEN ? AND ?"
    " ORDER BY item, attempt"
)
SELECT_SLICES = (
    "SELECT item, attempt, iteration, requests, input_tokens, output_tokens, unknown, body, crc"
    " FROM slices WHERE item BETWEEN ? AND ? ORDER BY item, attempt, iteration"
)
SELECT_USAGES = (
    "SELECT item, sum(requests), sum(input_tokens), sum(output_tokens), sum(unknown)"
    " FROM slices WHERE item BETWEEN ? AND ? GROUP BY item"
)


def with_checksum(*fields: Any) -> tuple[Any, ...]:
    """Return a row with its checksum (CRC-32) at the end.

    Args:
        *fields: the row: texts, ints, floats and None.

    Returns:
        The row, one column longer.
    """
    # ascii() writes the same value in the same way in each version of Python; repr() does not.
    return (*fields, crc32(ascii(fields).encode("ascii")))


def is_sound(row: tuple[Any, ...]) -> bool:
    """Tell whether a row is as it was written.

    Args:
        row: the row, its checksum at the end.

    Returns:
        Whether the checksum is that of the other columns.
    """
    return with_checksum(*row[:-1]) == row
