"""Read the draws of items as Arrow tables; needs the extra ``arrow``."""

from __future__ import annotations

from itertools import chain, islice
from operator import ne
from typing import TYPE_CHECKING, Any

from mellea_like.batch.rows.formats import HALVES, whole
from mellea_like.batch.rows.parquet import fitted, pa, schema_of
from mellea_like.export.formats import COLUMNS, draw_rows
from mellea_like.report.views import ItemView
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROWS = 1000
"""The number of rows in a record batch."""


def reader_of(items: Iterable[Mapping[str, Any]]) -> Any:
    """Return a reader of items' draws. Its record batches are made one by one as they are read."""
    return pa.RecordBatchReader.from_batches(schema_of(COLUMNS), _batches(items))


def _batches(items: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    rows, halves = chain.from_iterable(map(draw_rows, map(ItemView, items))), 0
    while block := list(islice(rows, ROWS)):
        written = [whole(row) for row in block]
        halves += sum(map(ne, block, written))
        fitting = [fitted(row, COLUMNS) for row in written]
        yield pa.RecordBatch.from_pylist(fitting, schema=schema_of(COLUMNS))
    if halves:
        warn("to_arrow: %s (%d)", HALVES, halves)


def table_of(items: Iterable[Mapping[str, Any]]) -> Any:
    """Read the draws of items into a table."""
    return reader_of(items).read_all()
