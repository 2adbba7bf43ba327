"""Rows in Parquet files; needs the extra ``arrow``."""

from __future__ import annotations

import base64
import datetime as dt
import importlib
import math
from typing import TYPE_CHECKING, Any, cast

from mellea_like.batch.rows.formats import (
    RESULT_FIELDS,
    BadRow,
    Row,
    RowWriter,
    as_json,
    flat,
    flat_names,
)
from mellea_like.lazy import needs_extra

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import BinaryIO

with needs_extra("arrow", "Parquet files and Arrow tables need pyarrow"):  # It has no types.
    pa: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")

ROWS_READ = 256
"""The number of rows to read at a time."""

ROWS_WRITTEN = 1000
"""The number of rows in each row group that is written."""

_TYPES = {
    "id": "int64",
    "line": "int64",
    "success": "bool",
    "iterations": "int64",
    "elapsed": "double",
    "requests": "int64",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "unknown": "int64",
}
"""The types of a result's columns, except for the columns of texts."""


def read_parquet(file: BinaryIO) -> Generator[Row | BadRow]:
    """Yield the rows of a file. Values that JSON lacks (dates, decimals, bytes) become texts."""
    number = 0
    try:
        for batch in _opened(file).iter_batches(batch_size=ROWS_READ):
            for values in _without_nanoseconds(batch).to_pylist():
                number += 1
                try:
                    fields = {name: _plain(value) for name, value in values.items()}
                except ValueError as exc:
                    yield BadRow(f"row {number} {exc}", number)
                else:
                    yield Row(fields, number)
    except (OSError, pa.ArrowException) as exc:
        msg = f"the Parquet file can't be read beyond row {number}: {exc}"
        raise ValueError(msg) from exc


def parquet_columns(file: BinaryIO) -> dict[str, str]:
    """Return the type that each column's values have in a `Row`, by name; rewind the file."""
    schema = _opened(file).schema_arrow
    file.seek(0)
    return {field.name: _type_of(field.type) for field in schema}


class GroupWriter:
    """Writes rows to a Parquet file, in row groups. The file can be read only after `close`."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self.schema = schema
        self._writer = parquet.ParquetWriter(file, schema)
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, and write the row group once it is full. Values must fit their columns."""
        self._rows.append(row)
        if len(self._rows) == ROWS_WRITTEN:
            self._write_group()

    def close(self) -> None:
        """Write the last row group, and the end of the file."""
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self.schema))
        self._rows = []


class ParquetWriter(RowWriter):
    """Writes results to a Parquet file."""

    def __init__(self, file: BinaryIO, columns: Mapping[str, str] | None) -> None:
        super().__init__(file, columns)
        before = ["string"] if columns is None else list(columns.values())
        types = before + [_TYPES.get(field, "string") for field in RESULT_FIELDS]
        names = flat_names(self._columns)
        self._types = types
        self._groups = GroupWriter(
            file,
            pa.schema(
                [(name, pa.type_for_alias(type_)) for name, type_ in zip(names, types, strict=True)]
            ),
        )

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a result."""
        names = self._groups.schema.names
        values = zip(names, flat(record, self._columns), self._types, strict=True)
        self._groups.add({name: _fit(value, type_) for name, value, type_ in values})

    def close(self) -> None:
        """Write the last row group, and the end of the file."""
        self._groups.close()


def _opened(file: BinaryIO) -> Any:
    try:
        opened = parquet.ParquetFile(file)
    except (OSError, pa.ArrowException) as exc:
        msg = f"it isn't a Parquet file: {exc}"
        raise ValueError(msg) from exc
    names: list[str] = opened.schema_arrow.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"two columns are named {twice!r}"
        raise ValueError(msg)
    return opened


def _type_of(type_: Any) -> str:
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return "int64"
    return "double" if pa.types.is_floating(type_) else "string"


def _without_nanoseconds(batch: Any) -> Any:
    """Cut times to microseconds, the finest that Python has; otherwise, pyarrow could raise."""
    for place, field in enumerate(batch.schema):
        coarse = None
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            coarse = pa.timestamp("us", field.type.tz)
        elif pa.types.is_duration(field.type) and field.type.unit == "ns":
            coarse = pa.duration("us")
        elif field.type == pa.time64("ns"):
            coarse = pa.time64("us")
        if coarse is not None:
            column = batch.column(place).cast(coarse, safe=False)
            batch = batch.set_column(place, field.name, column)
    return batch


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isinf(value):
                msg = "holds an infinite number"
                raise ValueError(msg)
            return None if math.isnan(value) else value
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case dt.date() | dt.time():  # This includes datetimes.
            return value.isoformat()
        case list() | tuple():
            return [_plain(one) for one in cast("list[Any]", value)]
        case dict():
            found = cast("dict[str, Any]", value)
            return {str(name): _plain(one) for name, one in found.items()}
        case _:  # Such as a decimal.
            return str(value)


def _fit(value: Any, type_: str) -> Any:
    if type_ != "string" or value is None:
        return value
    text = value if isinstance(value, str) else as_json(value)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
