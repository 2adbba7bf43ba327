"""Results into JSONL, CSV and Parquet files, a row at a time."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from mellea_like.batch.rows.formats import RowFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

__all__ = [
    "RESULT_FIELDS",
    "RowWriter",
    "as_json",
    "begins_results",
    "flat",
    "flat_names",
    "row_writer",
]

RESULT_FIELDS = (
    "id",
    "line",
    "output",
    "success",
    "status",
    "reasons",
    "error",
    "iterations",
    "elapsed",
    "requests",
    "input_tokens",
    "output_tokens",
    "unknown",
)
"""The columns of a result in a file that has columns, besides those of its input."""

_NOT_ESCAPED_BY_JSON = re.compile(
    r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_RESULT_AS_JSON = re.compile(rb'\{"id": \d+, "line": ')
_PARQUET = b"PAR1"


class RowWriter(Protocol):
    """Writes results, as plain records, to a file."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one."""
        ...

    def close(self) -> None:
        """Write what is to stand at the end; the file stays open."""
        ...


def row_writer(
    file: BinaryIO, format: RowFormat, columns: Mapping[str, str] | None = None
) -> RowWriter:
    """Make what writes results.

    ``columns`` are the input's columns with their types (``string``, ``int64``, ``double`` or
    ``bool``), to stand before the result's; without them a column ``input`` holds rows as JSON.
    """
    if format is RowFormat.PARQUET:
        from mellea_like.batch.rows.parquet import ParquetWriter  # noqa: PLC0415 (an extra)

        return ParquetWriter(file, columns)
    if format is RowFormat.JSONL:
        return _JsonlWriter(file)
    return _CsvWriter(file, columns, "," if format is RowFormat.CSV else "\t")


def begins_results(start: bytes, format: RowFormat) -> bool:
    """Tell by its first line whether a file may be one of results, or is empty."""
    if not start:
        return True
    if format is RowFormat.PARQUET:
        return start.startswith(_PARQUET)
    if format is RowFormat.JSONL:
        return _RESULT_AS_JSON.match(start) is not None
    delimiter = "," if format is RowFormat.CSV else "\t"
    [names] = csv.reader([start.decode("utf-8", "replace").splitlines()[0]], delimiter=delimiter)
    last = [name.removeprefix("result_") for name in names[-len(RESULT_FIELDS) :]]
    return last == list(RESULT_FIELDS)


def as_json(value: Any) -> str:
    """Write a value as JSON in one line, whatever reads lines, and fit for a terminal."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _NOT_ESCAPED_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _JsonlWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(as_json(record).encode("utf-8") + b"\n")

    def close(self) -> None:
        """Nothing is left to write."""


class _CsvWriter:
    def __init__(self, file: BinaryIO, columns: Mapping[str, str] | None, delimiter: str) -> None:
        self._file = file
        self._delimiter = delimiter
        self._columns = None if columns is None else tuple(columns)
        self._line(flat_names(self._columns))

    def write(self, record: Mapping[str, Any]) -> None:
        self._line([_cell(value) for value in flat(record, self._columns)])

    def close(self) -> None:
        """Nothing is left to write."""

    def _line(self, cells: Sequence[str]) -> None:
        line = io.StringIO(newline="")
        csv.writer(line, delimiter=self._delimiter).writerow(cells)
        self._file.write(line.getvalue().encode("utf-8", "backslashreplace"))


def flat_names(columns: Sequence[str] | None) -> list[str]:
    """Name the columns of a file of results; the result's give way to those of the input."""
    names = ["input"] if columns is None else list(columns)
    taken = set(names)
    for field in RESULT_FIELDS:
        name = field
        while name in taken:
            name = f"result_{name}"
        taken.add(name)
        names.append(name)
    return names


def flat(record: Mapping[str, Any], columns: Sequence[str] | None) -> list[Any]:
    """Return a result as the values of columns, in the order of `flat_names`."""
    given = record["input"]
    before = [as_json(given)] if columns is None else [given.get(name) for name in columns]
    output, error = record["output"], record["error"]
    after = {
        **{name: record[name] for name in RESULT_FIELDS if name in record},
        **record["usage"],
        "output": output if output is None or isinstance(output, str) else as_json(output),
        "reasons": "; ".join(record["reasons"]),
        "error": None if error is None else f"{error['type']}: {error['message']}",
    }
    return before + [after[name] for name in RESULT_FIELDS]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else as_json(value)
