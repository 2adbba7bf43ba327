"""Rows in Parquet files; needs the extra ``arrow``."""

from __future__ import annotations

import base64
import datetime as dt
import importlib
import math
from typing import TYPE_CHECKING, Any, cast

from mellea_like.batch.rows.formats import BadRow, Row, RowWriter, as_json
from mellea_like.core.conversation import Message
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

_MESSAGE = [("role", pa.string()), ("content", pa.string())]
_TYPES = {
    "text": pa.string(),
    "json": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "transcript": pa.list_(pa.struct(_MESSAGE)),
    "messages": pa.list_(pa.struct(_MESSAGE)),
    "thoughts": pa.list_(pa.struct([*_MESSAGE, ("reasoning_content", pa.string())])),
    "texts": pa.list_(pa.string()),
}
"""Arrow's types, by the names of columns' types."""


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
                    yield Row(fields, number, word="row")
    except (OSError, OverflowError, pa.ArrowException) as exc:  # Python has fewer dates.
        msg = f"the Parquet file can't be read beyond row {number}: {exc}"
        raise ValueError(msg) from exc


def parquet_columns(file: BinaryIO) -> dict[str, str]:
    """Return the type that each column's values have in a `Row`, by name; rewind the file."""
    schema = _opened(file).schema_arrow
    file.seek(0)
    return {field.name: _type_of(field.type) for field in schema}


class ParquetWriter(RowWriter):
    """Writes rows to a Parquet file, in row groups. The file can be read only after `close`."""

    def __init__(self, file: BinaryIO, columns: Mapping[str, str]) -> None:
        super().__init__(file)
        self._columns = columns
        self._schema = schema_of(columns)
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a row, once its row group is full."""
        try:
            self._rows.append(fitted(record, self._columns))
        except ValueError:
            self.close()  # Otherwise the garbage collector would do it after the file was closed.
            raise
        if len(self._rows) == ROWS_WRITTEN:
            self._write_group()

    def close(self) -> None:
        """Write the last row group, and the end of the file."""
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def schema_of(columns: Mapping[str, str]) -> Any:
    """Return Arrow's schema for columns that are given with their types."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])


def fitted(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Convert a row's values to the types of its columns; raise if messages would lose a part."""
    return {name: _fit(record[name], kind) for name, kind in columns.items()}


def _fit(value: Any, kind: str) -> Any:
    if value is None or kind in {"integer", "number", "boolean", "texts"}:
        return value
    if kind == "transcript":
        return [{"role": m["role"], "content": _content(m)} for m in value]
    if kind in {"messages", "thoughts"}:
        if any(m.keys() - _FIELDS or not isinstance(m["content"], str) for m in value):
            msg = (
                "Parquet's columns have no room for tool calls and parts: write JSON Lines (.jsonl)"
            )
            raise ValueError(msg)
        return value
    return value if isinstance(value, str) and kind == "text" else as_json(value)


_FIELDS = {"role", "content", "reasoning_content"}


def _content(message: Mapping[str, Any]) -> str:
    """Return a message's text, with placeholders for its other parts and its tool calls."""
    plain = isinstance(message["content"], str) and "tool_calls" not in message
    return message["content"] if plain else Message.from_dict(message).text


def _opened(file: BinaryIO) -> Any:
    try:
        opened = parquet.ParquetFile(file)
    except (OSError, pa.ArrowException) as exc:
        msg = f"it isn't a Parquet file: {exc}"
        raise ValueError(msg) from exc
    names: list[str] = opened.schema_arrow.names
    if twice := [name for name in names if names.count(name) > 1]:
        msg = f"two columns are named {twice[0]!r}"
        raise ValueError(msg)
    return opened


def _type_of(type_: Any) -> str:
    if pa.types.is_boolean(type_):
        return "boolean"
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return "integer"
    return "number" if pa.types.is_floating(type_) else "text"


def _without_nanoseconds(batch: Any) -> Any:
    """Cut times to microseconds, the finest that Python has; otherwise, pyarrow could raise."""
    coarse = pa.schema([field.with_type(_coarse(field.type)) for field in batch.schema])
    return batch.cast(coarse, safe=False)


def _coarse(type_: Any) -> Any:
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        return pa.timestamp("us", type_.tz)
    if pa.types.is_duration(type_) and type_.unit == "ns":
        return pa.duration("us")
    return pa.time64("us") if type_ == pa.time64("ns") else type_


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
