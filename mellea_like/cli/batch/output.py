"""Where the results of a batch go: files that are never half of one run and half of another."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mellea_like.batch.rows.files import begins_results, row_writer
from mellea_like.batch.rows.formats import RowFormat, format_of
from mellea_like.cli.batch.options import STANDARD
from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.terminal import is_terminal, printable, silence
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import BinaryIO

    from mellea_like.batch.rows.formats import RowWriter

__all__ = ["Output", "ReaderLeft"]

LONGEST_HEAD = 100_000
"""How many bytes of a file's first line are looked at."""


class ReaderLeft(Exception):
    """Nobody reads standard output any more."""


class Output:
    """A file of results, or standard output."""

    def __init__(
        self,
        option: str,
        given: str,
        format: RowFormat | None,
        *,
        replace: bool,
        renew: bool = False,
    ) -> None:
        self.path = None if given == STANDARD else Path(os.path.realpath(given))
        self._option = option
        self._name = "standard output" if self.path is None else given
        self.format = self._format(given, format)
        self._file: BinaryIO | None = None
        self._writer: RowWriter | None = None
        self._beside: Path | None = None
        self._new = False
        self.rows = 0
        self._at_once = False
        if self.path is None:
            if self.format is RowFormat.PARQUET:
                msg = f"{option}: Parquet can't be written to standard output: name a file"
                raise Problem(msg, Exit.USAGE)
            return
        self._check(self.path, replace=replace, renew=renew)

    @property
    def whole_at_its_end(self) -> bool:
        """Whether it can't be read before its end."""
        return self.format is RowFormat.PARQUET

    def begin(self, columns: Mapping[str, str] | None, *, at_once: bool) -> None:
        """Open it."""
        with self._trouble():
            self._file = self._open()
            self._writer = row_writer(self._file, self.format, columns)
            self._at_once = at_once and not self.whole_at_its_end

    async def write(self, record: Mapping[str, Any]) -> None:
        """Write a result."""
        assert self._writer is not None  # noqa: S101 (it was begun)
        with self._trouble():
            self._writer.write(record)
            self.rows += 1
            await self._flush()
        if self._at_once:
            self.publish()

    def publish(self) -> None:
        """Put what was written in its place, where it can't be lost, and go on there."""
        if self._beside is None or self._file is None or self.path is None:
            return
        with self._trouble():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._beside.replace(self.path)
            self._beside = None

    async def close(self, *, keep: bool) -> None:
        """End it."""
        file, writer, self._writer = self._file, self._writer, None
        if file is None or writer is None:
            return
        try:
            if keep:
                with self._trouble():
                    writer.close()
                    await self._flush()
                self.publish()
                with self._trouble():
                    file.close()
        finally:
            self._file = None
            with contextlib.suppress(OSError):  # What could not be written before.
                file.close()
            self.remove_leftovers(keep=keep)

    def remove_leftovers(self, *, keep: bool) -> None:
        """Take away what is beside the file, and a new file without a result that isn't kept."""
        useless = self.path if self._new and not keep and not self.rows else None
        for leftover in (self._beside, useless):
            if leftover is not None:
                leftover.unlink(missing_ok=True)

    def _format(self, given: str, format: RowFormat | None) -> RowFormat:
        if format is not None:
            return format
        if self.path is None:
            return RowFormat.JSONL
        try:
            return format_of(given)
        except ValueError as exc:
            if self.path.exists() and not self.path.is_file():
                return RowFormat.JSONL
            formats = ", ".join(RowFormat)
            msg = (
                f"{self._option}: {exc}: say how rows are to stand in it: --output-format {formats}"
            )
            raise Problem(msg, Exit.USAGE) from exc

    def _check(self, path: Path, *, replace: bool, renew: bool) -> None:
        if path.is_dir():
            msg = f"{self._option}: {self._name} is a directory: name a file"
            raise Problem(msg)
        if path.is_file() and not replace and not (renew and self._is_of_results(path)):
            what = " and holds no results of a batch" if renew else ""
            msg = (
                f"{self._option}: {self._name} is there already{what}: name another file, or"
                " replace it with --force"
            )
            raise Problem(msg)
        with self._trouble():
            if not path.parent.is_dir():
                msg = f"{self._option}: there is no directory {path.parent}"
                raise Problem(msg)
            if not os.access(path.parent, os.W_OK) or (
                path.exists() and not os.access(path, os.W_OK)
            ):
                msg = f"{self._option}: {self._name} can't be written: Permission denied"
                raise Problem(msg)

    def _is_of_results(self, path: Path) -> bool:
        with self._trouble(), path.open("rb") as file:
            return begins_results(file.readline(LONGEST_HEAD), self.format)

    def _open(self) -> BinaryIO:
        if self.path is None:
            return io.BytesIO()
        if self.path.exists() and not self.path.is_file():
            return self.path.open("wb")  # A pipe or a device.
        if self.path.exists() or self.whole_at_its_end:
            self._beside = self.path.with_name(f".{self.path.name}.part")
            self._beside.unlink(missing_ok=True)
            return self._beside.open("xb")
        self._new = True
        return self.path.open("xb")

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

    @contextlib.contextmanager
    def _trouble(self) -> Generator[None]:
        try:
            yield
        except BrokenPipeError as exc:
            if self.path is None:
                silence(sys.stdout)
            raise ReaderLeft from exc
        except OSError as exc:
            if self.path is None:
                silence(sys.stdout)
            msg = f"can't write {self._name}: {exc.strerror or exc}"
            raise Problem(msg) from exc
        except ImportError as exc:
            raise Problem(str(exc)) from exc


def _send(data: bytes) -> None:
    if is_terminal(sys.stdout):
        sys.stdout.write(printable(data.decode("utf-8")))
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()
