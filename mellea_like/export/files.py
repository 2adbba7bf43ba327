"""Writing an export: rows as JSONL, CSV or Parquet, into a file that is there whole or not."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from mellea_like.batch.rows.formats import as_json

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import BinaryIO

__all__ = ["Container", "Writer", "placed", "writer_of"]

Container: TypeAlias = Literal["jsonl", "csv", "parquet"]


class Writer(Protocol):
    """Writes rows to a file, which stays open."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row."""

    def close(self) -> None:
        """Write what is to stand at the end."""


@contextmanager
def placed(path: Path) -> Generator[BinaryIO]:
    """Open a file beside its place, and put it there when all of it is on the disk.

    What is there already and isn't a file, a pipe for one, is written to as it is.

    Yields:
        The open file.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    mask = os.umask(0o077)
    os.umask(mask)
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~mask
    descriptor, beside = tempfile.mkstemp(".part", f".{place.name[:100]}.", place.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 (it is open)
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(mode)
        Path(beside).replace(place)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink()
        raise


def writer_of(file: BinaryIO, container: Container, columns: Mapping[str, str]) -> Writer:
    """Make what writes rows; the columns are those of all of them, with their kinds."""
    if container == "parquet":
        from mellea_like.export.arrow import ParquetRows  # noqa: PLC0415 (an extra)

        return ParquetRows(file, columns)
    return _Jsonl(file) if container == "jsonl" else _Csv(file, columns)


class _Jsonl:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(as_json(row).encode("utf-8") + b"\n")

    def close(self) -> None:
        pass


class _Csv:
    """Writes RFC 4180: lists and objects are JSON in their cells, and what is missing is empty."""

    def __init__(self, file: BinaryIO, columns: Mapping[str, str]) -> None:
        self._file = file
        self._columns = columns
        self._line(list(columns))

    def write(self, row: Mapping[str, Any]) -> None:
        self._line([_cell(row[name], kind) for name, kind in self._columns.items()])

    def close(self) -> None:
        pass

    def _line(self, cells: list[str]) -> None:
        line = io.StringIO(newline="")
        csv.writer(line).writerow(cells)
        self._file.write(line.getvalue().encode("utf-8", "backslashreplace"))


def _cell(value: Any, kind: str) -> str:
    if value is None:
        return ""
    return value if kind == "text" else as_json(value)
