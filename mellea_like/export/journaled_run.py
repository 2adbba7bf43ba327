"""`Run`: a run, read from one journal or from several."""

from __future__ import annotations

from itertools import chain, islice
from operator import ne
from typing import TYPE_CHECKING, Any

from mellea_like.batch.journal.reader import journal_paths
from mellea_like.batch.journal.together import JournalsTogether
from mellea_like.batch.rows.formats import HALVES, whole
from mellea_like.export.formats import COLUMNS, draw_rows
from mellea_like.report.views import ItemView
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mellea_like.batch.journal.journal import Journal

__all__ = ["Run"]

ROWS = 1000
"""The number of rows in a batch of Arrow's."""


class Run:
    """A run, read from one journal or from several as if they were one.

    The journals can be read while they are still being written. Tools that support Arrow's C stream
    interface can read a `Run` directly, as a table with one row for each draw:
    ``polars.DataFrame(run)``, ``pandas.DataFrame.from_arrow(run)``,
    ``duckdb.sql("SELECT * FROM run")``.

    Args:
        journals: paths of journals, `Journal` objects, or directories. In a directory, as a run on
            Ray leaves it, all files that end in ``.db`` are read. A journal that is named twice is
            read once.

    Raises:
        TypeError: an argument is neither a path nor a `Journal`.
        ValueError: no journal is given.
        JournalError: a file isn't a journal, is of another format version, or is damaged.
    """

    def __init__(self, *journals: str | os.PathLike[str] | Journal) -> None:
        self._paths = journal_paths(*journals)
        if not self._paths:
            msg = "a Run needs at least one journal"
            raise ValueError(msg)
        self._together = JournalsTogether(self._paths)
        self._runs = self._together.runs

    @property
    def journals(self) -> tuple[Path, ...]:
        """The journals' paths, in the order in which they are read."""
        return self._paths

    @property
    def facts(self) -> dict[str, Any]:
        """The record of the run, as `read_run` returns it. The counts of all journals are added up.

        If a setting in ``identity`` differs between journals, such as the input of a Ray run's
        shards, its value is a text that says so.
        """
        runs = self._runs
        if len(runs) == 1:
            return dict(runs[0].plain)
        ended = [run.ended for run in runs]
        identities = [run.identity for run in runs]
        prices: dict[str, Any] = {}
        for run in runs:
            prices |= run.prices or {}
        return {
            **runs[0].plain,
            "identity": {name: _common(name, identities) for name in _names(identities)},
            "started": min(filter(None, (run.started for run in runs))),
            "ended": None if None in ended else max(filter(None, ended)),
            "counts": {
                status: sum(run.counts.get(status, 0) for run in runs)
                - self._together.counted_twice[status]
                for status in _names([run.counts for run in runs])
            },
            "prices": prices or None,
            "text": self.text,
            "sittings": [pair for run in runs for pair in run.sittings],
        }

    @property
    def text(self) -> str:
        """The texts that the journal keeps: ``"all"``, ``"best"`` or ``"none"``; see `Journal`.

        Of several journals, this is the setting that keeps the least.
        """
        kept = [run.text for run in self._runs]
        return next((text for text in ("none", "best") if text in kept), "all")

    def items(self, *, parts: bool = True) -> Iterator[dict[str, Any]]:
        """Read all items, one after another, as `read_items` does.

        An item that was sampled again with ``--again`` counts as one item. It has the draws and the
        usage of both runs, and the result of the later run.

        Args:
            parts: whether to read the data of large images, as in `read_items`.

        Yields:
            The items of each journal, with the name of the journal added as ``journal``.

        Raises:
            JournalError: a journal is damaged, or no longer exists.
        """
        for path, item in self._together.items(parts=parts):
            yield {"journal": path.name, **item.plain}

    def to_arrow(self) -> Any:
        """Read all draws into a table, for `polars.from_arrow` and other functions.

        Each draw is a row with the columns of an export in the format ``"parquet"``. An item
        without draws also has a row. The table holds all draws in memory. If there are too many for
        that, pass the `Run` itself to the other tool, or export it to a file. Lone surrogates are
        replaced by U+FFFD, and the number of rows that this changes is logged.

        Returns:
            A `pyarrow.Table`.

        Raises:
            ImportError: pyarrow is missing: the extra ``arrow``.
            JournalError: a journal is damaged, or no longer exists.
        """
        return _reader_of(self.items()).read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of all draws, in batches of rows (Arrow's PyCapsule interface)."""
        return _reader_of(self.items()).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"Run({', '.join(repr(str(path)) for path in self._paths)})"


def _reader_of(items: Iterable[Mapping[str, Any]]) -> Any:
    """Return an Arrow reader of items' draws, which makes its batches of rows as they are read."""
    from mellea_like.batch.rows.parquet import fitted, pa, schema_of  # noqa: PLC0415 (an extra)

    def batches() -> Iterator[Any]:
        rows, halves = chain.from_iterable(map(draw_rows, map(ItemView, items))), 0
        while block := list(islice(rows, ROWS)):
            written = [whole(row) for row in block]
            halves += sum(map(ne, block, written))
            fitting = [fitted(row, COLUMNS) for row in written]
            yield pa.RecordBatch.from_pylist(fitting, schema=schema_of(COLUMNS))
        if halves:
            warn("to_arrow: %s (%d)", HALVES, halves)

    return pa.RecordBatchReader.from_batches(schema_of(COLUMNS), batches())


def _names(dicts: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in dicts for name in one))


def _common(name: str, identities: Sequence[Mapping[str, Any]]) -> Any:
    values = [identity.get(name) for identity in identities]
    if all(value == values[0] for value in values):
        return values[0]
    return f"differs between the {len(values)} journals"
