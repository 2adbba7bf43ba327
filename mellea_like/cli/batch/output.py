"""Output files of a batch. A file never mixes the results of two runs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.batch.rows.files import begins_results, result_writer
from mellea_like.batch.rows.formats import RowFormat, format_of, whole
from mellea_like.cli.exit_codes import fail, misuse, value_errors
from mellea_like.cli.standard_streams import STANDARD, check_folder, is_special, writing
from mellea_like.core.display import printable
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from mellea_like.batch.rows.formats import RowWriter

LONGEST_HEAD = 100_000
"""The maximum number of bytes to read of a file's first line, to recognize a batch's results."""


def refuse_same_file(*places: tuple[str, str | Path | None]) -> None:
    """Refuse a file that is named twice; each of ``places`` is an option and the file it names."""
    seen: dict[Path, str] = {}
    for option, given in places:
        path = None if given is None else Path(given).resolve()
        if path is None or is_special(path):
            continue
        other = seen.setdefault(path, option)
        if other != option:
            misuse(f"{other} and {option} are the same file, {given}: name two different files")


class Output:
    """Writes results to standard output, or to a file whose name is temporary at first."""

    def __init__(self, option: str, given: str, *, replace: bool, renew: bool = False) -> None:
        self.path = None if given == STANDARD else Path(os.path.realpath(given))
        self._name = given
        self._format = RowFormat.JSONL
        self._file: BinaryIO | None = None
        self._writer: RowWriter | None = None
        self._beside: Path | None = None
        self._at_once = False
        self.rows = 0
        self.halves = 0
        """The number of results with lone surrogates, replaced because UTF-8 can't encode them."""
        if self.path is None or is_special(self.path):
            if self.path is not None and self.path.is_dir():
                fail(f"{option}: {given} is a directory: name a file")
            return
        with value_errors(option):
            self._format = format_of(given)
        if self.path.exists() and not replace and not (renew and self._is_of_results()):
            what = " and doesn't hold the results of a batch" if renew else ""
            fail(
                f"{option}: {given} already exists{what}: name another file, or replace it"
                " with --force"
            )
        check_folder(option, self.path)

    @property
    def whole_at_its_end(self) -> bool:
        """Whether the file can be read only once it is complete (Parquet)."""
        return self._format is RowFormat.PARQUET

    def begin(self, columns: Mapping[str, str] | None, *, at_once: bool) -> None:
        """Open the output. With ``at_once``, a file gets its final name after its first row."""
        with writing(self._name):
            if self.path is None:
                self._file = io.BytesIO()
            elif is_special(self.path):
                self._file = self.path.open("wb")  # A pipe or a device.
            else:
                self._beside = self.path.with_name(f".{self.path.name}.part")
                self._beside.unlink(missing_ok=True)
                self._file = self._beside.open("xb")
            self._writer = result_writer(self._file, self._format, columns)
            self._at_once = at_once and not self.whole_at_its_end

    async def write(self, record: Mapping[str, Any]) -> None:
        """Write a result."""
        assert self._writer is not None  # noqa: S101 (it was begun)
        with writing(self._name):
            written = whole(record)
            self._writer.write(written)
            self.rows += 1
            self.halves += written != record
            await self._flush()
        if self._at_once:
            self.publish()

    def publish(self) -> None:
        """Rename the file to its final name, and continue to write to it."""
        if self._beside is None or self._file is None or self.path is None:
            return
        with writing(self._name):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._beside.replace(self.path)
            self._beside = None

    async def close(self, *, keep: bool) -> None:
        """Close the output; without ``keep``, a file that has no final name yet is removed."""
        file, writer, self._writer = self._file, self._writer, None
        if file is None or writer is None:
            return
        try:
            if keep:
                with anyio.CancelScope(shield=True), writing(self._name):
                    writer.close()
                    await self._flush()
                    self.publish()
                    file.close()
        finally:
            self._file = None
            with contextlib.suppress(OSError):  # An earlier write may have failed.
                file.close()
            self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove the file if it still has its temporary name."""
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)

    def _is_of_results(self) -> bool:
        assert self.path is not None  # noqa: S101 (it is a file)
        with writing(self._name), self.path.open("rb") as file:
            return begins_results(file.readline(LONGEST_HEAD), self._format)

    async def _flush(self) -> None:
        file = self._file
        assert file is not None  # noqa: S101 (it was begun)
        if isinstance(file, io.BytesIO):
            data = file.getvalue()
            file.seek(0)
            file.truncate()
            await run_in_thread(_send, data)  # Its reader may be slow.
        elif not self.whole_at_its_end:
            file.flush()


def _send(data: bytes) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(printable(data.decode("utf-8")))
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()
