"""Read rows from files, and write results to files. The code for Parquet is in `rows.parquet`.

Rows are read one at a time. The error for a bad row has the row's position.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from mellea_like.batch.rows.formats import (
    BadRow,
    Row,
    RowFormat,
    RowWriter,
    as_json,
    flat,
    of_results,
    result_columns,
)
from mellea_like.core.display import plural
from mellea_like.core.strict_json import read_strict

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

LONGEST_LINE = 16 * 2**20
"""The maximum number of bytes in a line, because some files have no line ends."""

PIECE = 2**20
"""The bytes to skip at a time in a line that is too long."""

_RESULT_AS_JSON = re.compile(rb'\{"id": \d+, "line": ')
_PARQUET = b"PAR1"


def read_rows(
    file: BinaryIO,
    format: RowFormat,
    on_bad: Callable[[BadRow], object] | None = None,
    on_names: Callable[[list[str]], object] | None = None,
) -> Generator[Row]:
    """Yield rows one at a time, skipping blank lines; pass errors to ``on_bad`` or raise them.

    ``on_names`` is called with the names in the first line of CSV or TSV, before any row.
    """
    if format is RowFormat.PARQUET:
        from mellea_like.batch.rows.parquet import read_parquet  # noqa: PLC0415 (an extra)

        rows = read_parquet(file)
    elif format is RowFormat.JSONL:
        rows = _jsonl(file)
    else:
        rows = _csv(file, "," if format is RowFormat.CSV else "\t", on_names)
    for row in rows:
        if isinstance(row, Row):
            yield row
        elif on_bad is None:
            raise row
        else:
            on_bad(row)


class _Lines:
    """Iterates over the lines of a file as bytes. A line that is too long raises `BadRow`."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> bytes:
        line = self.file.readline(LONGEST_LINE + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = self.file.readline(PIECE)
            msg = f"line {self.number} is longer than {LONGEST_LINE // 2**20} MB"
            raise BadRow(msg, self.number)
        if self.number == 1:
            if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                msg = (
                    "the text is UTF-16: convert it to UTF-8, for example with iconv -f UTF-16"
                    " -t UTF-8"
                )
                raise ValueError(msg)
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line


def _jsonl(file: BinaryIO) -> Generator[Row | BadRow]:
    lines = _Lines(file)
    while True:
        try:
            line = next(lines)
            if line.strip():
                yield Row(_object(line, lines.number), lines.number)
        except StopIteration:
            return
        except BadRow as bad:
            yield bad


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = read_strict(line)
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
        wrong = 'isn\'t an object such as {"text": "..."}'
    except ValueError as exc:
        wrong = f"isn't JSON: {exc}"
    msg = f"line {number} {wrong}"
    raise BadRow(msg, number)


def _csv(
    file: BinaryIO, delimiter: str, on_names: Callable[[list[str]], object] | None
) -> Generator[Row | BadRow]:
    lines = _Lines(file)
    csv.field_size_limit(LONGEST_LINE)
    # Bytes that aren't UTF-8 become lone surrogates, which `_wrong` finds.
    texts = map(partial(bytes.decode, encoding="utf-8", errors="surrogateescape"), lines)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        first = lines.number + 1
        fields: list[str] = []
        try:
            fields = next(reader)
            wrong = _wrong(fields, names)
        except StopIteration:
            return
        except BadRow as bad:
            yield bad
            continue
        except csv.Error as exc:
            cut = "unexpected end of data" in str(exc)
            wrong = "has a quote that is never closed" if cut else f"isn't CSV: {exc}"
        if wrong and names is None:
            msg = f"the first line, which must hold the column names, {wrong}"
            raise ValueError(msg)
        if wrong:
            yield BadRow(f"line {first} {wrong}", first)
        elif fields and names is None:
            names = fields
            if on_names is not None:
                on_names(names)
        elif fields and names is not None:
            yield Row(dict(zip(names, fields, strict=True)), first)


def _wrong(fields: list[str], names: list[str] | None) -> str:
    """Describe the fault in a row or, without ``names``, in the first line; ``''`` if none."""
    try:
        "".join(fields).encode("utf-8")
    except UnicodeEncodeError:
        return "isn't UTF-8 text"
    if names is not None:
        told = f"has {plural(len(fields), 'field')}, but the first line names {len(names)}"
        return told if fields and len(fields) != len(names) else ""
    for name, count in Counter(fields).most_common(1):
        if count > 1:
            return f"has {name!r} twice"
    return "" if all(map(str.strip, fields)) else "has an empty one"


def row_writer(file: BinaryIO, format: RowFormat, columns: Mapping[str, str]) -> RowWriter:
    """Return a writer of rows with these columns, given with their types."""
    if format is RowFormat.PARQUET:
        from mellea_like.batch.rows.parquet import ParquetWriter  # noqa: PLC0415 (an extra)

        return ParquetWriter(file, columns)
    if format is RowFormat.JSONL:
        return _JsonlWriter(file)
    return _CsvWriter(file, columns, "," if format is RowFormat.CSV else "\t")


def result_writer(
    file: BinaryIO, format: RowFormat, columns: Mapping[str, str] | None = None
) -> RowWriter:
    """Return a writer of results; ``columns`` has the types of the input's columns, if known."""
    own = result_columns(columns)
    writer = row_writer(file, format, own)
    return writer if format is RowFormat.JSONL else _FlatWriter(writer, columns, own)


def begins_results(start: bytes, format: RowFormat) -> bool:
    """Return whether a file that begins with ``start`` is empty or may contain results."""
    if not start:
        return True
    if format is RowFormat.PARQUET:
        return start.startswith(_PARQUET)
    if format is RowFormat.JSONL:
        return _RESULT_AS_JSON.match(start) is not None
    delimiter = "," if format is RowFormat.CSV else "\t"
    [names] = csv.reader([start.decode("utf-8", "replace").splitlines()[0]], delimiter=delimiter)
    return of_results(names)


class _JsonlWriter(RowWriter):
    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(as_json(record).encode("utf-8") + b"\n")


class _CsvWriter(RowWriter):
    """Writes CSV (RFC 4180). Lists and objects are written as JSON; missing values are empty."""

    def __init__(self, file: BinaryIO, columns: Mapping[str, str], delimiter: str) -> None:
        super().__init__(file)
        self._columns = columns
        self._delimiter = delimiter
        self._line(list(columns))

    def write(self, record: Mapping[str, Any]) -> None:
        self._line([_cell(record[name], kind) for name, kind in self._columns.items()])

    def _line(self, cells: Sequence[str]) -> None:
        line = io.StringIO(newline="")
        csv.writer(line, delimiter=self._delimiter).writerow(cells)
        self._file.write(line.getvalue().encode("utf-8", "backslashreplace"))


def _cell(value: Any, kind: str) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) and kind != "json" else as_json(value)


class _FlatWriter(RowWriter):
    """Writes results as rows with columns."""

    def __init__(
        self, writer: RowWriter, given: Mapping[str, str] | None, columns: Mapping[str, str]
    ) -> None:
        self._writer = writer
        self._given = given
        self._columns = columns

    def write(self, record: Mapping[str, Any]) -> None:
        values = flat(record, self._given)
        self._writer.write(dict(zip(self._columns, values, strict=True)))

    def close(self) -> None:
        self._writer.close()
