"""Write rows as Arrow tables and as Parquet; needs the extra ``arrow``."""

from __future__ import annotations

from itertools import chain, islice
from operator import ne
from typing import TYPE_CHECKING, Any

from mellea_like.batch.rows.formats import HALVES, RowWriter, as_json, whole
from mellea_like.batch.rows.parquet import GroupWriter, pa
from mellea_like.core.conversation import Message
from mellea_like.export.formats import COLUMNS, draw_rows
from mellea_like.report.views import ItemView
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

ROWS = 1000
"""The number of rows in a record batch."""

_MESSAGE = [("role", pa.string()), ("content", pa.string())]
_TYPES = {
    "text": pa.string(),
    "json": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "messages": pa.list_(pa.struct(_MESSAGE)),
    "thoughts": pa.list_(pa.struct([*_MESSAGE, ("reasoning_content", pa.string())])),
    "texts": pa.list_(pa.string()),
}


class ParquetRows(RowWriter):
    """Writes rows as Parquet. The file can be read only after `close`."""

    def __init__(self, file: BinaryIO, columns: Mapping[str, str]) -> None:
        super().__init__(file)
        self._kinds = columns
        self._groups = GroupWriter(file, _schema(columns))

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a row."""
        fit = _fit if self._kinds is COLUMNS else _fit_exactly
        try:
            made = {name: fit(record[name], kind) for name, kind in self._kinds.items()}
        except ValueError:
            self.close()  # Otherwise the garbage collector would do it after the file was closed.
            raise
        self._groups.add(made)

    def close(self) -> None:
        """Write the last row group, and the end of the file."""
        self._groups.close()


def reader_of(items: Iterable[Mapping[str, Any]]) -> Any:
    """Return a reader of items' draws. Its record batches are made one by one as they are read."""
    return pa.RecordBatchReader.from_batches(_schema(COLUMNS), _batches(items))


def _batches(items: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    rows, halves = chain.from_iterable(map(draw_rows, map(ItemView, items))), 0
    while block := list(islice(rows, ROWS)):
        written = [whole(row) for row in block]
        halves += sum(map(ne, block, written))
        fitting = [
            {name: _fit(row[name], kind) for name, kind in COLUMNS.items()} for row in written
        ]
        yield pa.RecordBatch.from_pylist(fitting, schema=_schema(COLUMNS))
    if halves:
        warn("to_arrow: %s (%d)", HALVES, halves)


def table_of(items: Iterable[Mapping[str, Any]]) -> Any:
    """Read the draws of items into a table."""
    return reader_of(items).read_all()


def _schema(columns: Mapping[str, str]) -> Any:
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])


def _fit(value: Any, kind: str) -> Any:
    """Convert a value to its column's type."""
    if value is None or kind in {"integer", "number", "boolean"}:
        return value
    if kind == "messages":
        return [{"role": m["role"], "content": _content(m)} for m in value]
    if kind == "thoughts":
        thoughts = [m.get("reasoning_content") for m in value]
        return [
            {**m, "reasoning_content": thought}
            for m, thought in zip(_fit(value, "messages"), thoughts, strict=True)
        ]
    return as_json(value) if kind == "json" else value


def _fit_exactly(value: Any, kind: str) -> Any:
    """Convert a value to its column's type; raise if something would be lost."""
    if kind in {"messages", "thoughts"} and any(
        m.keys() - {"role", "content", "reasoning_content"} or not isinstance(m["content"], str)
        for m in value
    ):
        msg = "Parquet's columns have no room for tool calls and parts: write JSON Lines (.jsonl)"
        raise ValueError(msg)
    return _fit(value, kind)


def _content(message: Mapping[str, Any]) -> str:
    """Return a message's text, with placeholders for its other parts and its tool calls."""
    plain = isinstance(message["content"], str) and "tool_calls" not in message
    return message["content"] if plain else Message.from_dict(message).text
