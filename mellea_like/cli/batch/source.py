"""The rows of a batch: looked through before the run where that can be, then taken one by one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mellea_like.batch.rows.files import read_rows
from mellea_like.batch.rows.formats import BadRow, Row, RowFormat, format_of
from mellea_like.cli.batch.identity import digest_of
from mellea_like.cli.batch.options import STANDARD
from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.terminal import one_line, warn
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
    from io import BufferedReader

    from mellea_like.cli.batch.options import OnBadLine
    from mellea_like.cli.batch.prompt import PromptTemplate

__all__ = ["RowSource"]

MOST_WARNINGS = 10
"""How many bad lines are told one by one."""

LARGE = 20 * 2**20
"""Bytes of a file that is looked through for a second or more."""

_NO_JSON = (
    "Standard input is read as JSON lines: for other rows say --input-format csv, or --input-format"
    " tsv"
)

_NO_ROW: Any = object()


class RowSource:
    """The rows of the input that a prompt can be made of."""

    def __init__(
        self,
        given: str,
        format: RowFormat | None,
        template: PromptTemplate,
        *,
        on_bad: OnBadLine = "stop",
        most: int | None = None,
    ) -> None:
        self.path = None if given == STANDARD else Path(given)
        self.columns: Mapping[str, str] | None = None
        self.bad = 0
        self._template = template
        self._on_bad = on_bad
        self._most = most
        self._total: int | None = None
        self._name = "standard input" if self.path is None else str(self.path)
        self._assumed = format is None and self.path is None
        self._hint = ""
        self.format = self._format(format)
        self._piped = self.path is None or not self.path.is_file()
        if self._piped and self.format is RowFormat.PARQUET:
            msg = f"{self._name}: Parquet can't be read from a pipe: name a file"
            raise Problem(msg, Exit.USAGE)
        self._place = "row" if self.format is RowFormat.PARQUET else "line"
        self._file: BufferedReader | None = None
        self._first: Row = _NO_ROW
        self._rest: Iterator[Row] = iter(())
        self._reading = False

    @property
    def total(self) -> int | None:
        """How many rows there are, where that is known."""
        return self._total

    def digest(self) -> str | None:
        """Say what the input is, so that another run can tell whether it is the same."""
        if self._piped:
            return None
        with self._trouble(), self._open() as file:
            return digest_of(file)

    def look_through(self, *, quiet: bool = False) -> None:
        """Read a file to its end, or a pipe to its first row, and find what is wrong."""
        if self._piped:
            with self._trouble():
                self._file = self._open()
                self._rest = self._good(self._file)
                self._first = self._next()
            found = self._first is not _NO_ROW
        else:
            with self._trouble(), self._open() as file:
                if not quiet and os.fstat(file.fileno()).st_size > LARGE:
                    warn(f"Looking through {self._name} ...")
                if self.format is RowFormat.PARQUET:
                    from mellea_like.batch.rows.parquet import (  # noqa: PLC0415 (an extra)
                        parquet_columns,
                    )

                    self.columns = parquet_columns(file)
                self._total = sum(1 for _ in self._good(file))
            found = self._total > 0
        if self.bad and not found:
            msg = f"{self._name}: no {self._place} of it can be read{self._hint}"
            raise Problem(msg)

    def rows(self) -> _Rows | AsyncGenerator[Row]:
        """Give the rows for a run."""
        return self._pipe() if self._piped else _Rows(self)

    def again(self) -> Generator[Row]:
        """Read the rows of a file once more; what is wrong was told before."""
        with self._trouble(), self._open() as file:
            yield from self._good(file, told=True)

    def close(self) -> None:
        """Close the input, unless a thread still waits for it."""
        if self._file is not None and not self._reading:
            self._file.close()

    async def _pipe(self) -> AsyncGenerator[Row]:
        row = self._first
        while row is not _NO_ROW:
            yield row
            self._reading = True
            with self._trouble():
                row = await run_in_thread(self._next)
            self._reading = False

    def _next(self) -> Row:
        return next(self._rest, _NO_ROW)

    def _good(self, file: BufferedReader, *, told: bool = False) -> Generator[Row]:
        def bad(row: BadRow) -> None:
            if not told or self._on_bad == "stop":
                self._bad(row)

        def named(names: list[str]) -> None:
            self.columns = dict.fromkeys(names, "string")

        taken = 0
        for row in read_rows(file, self.format, bad, named):
            try:
                self._template.fill(row, self._place)
            except BadRow as exc:
                bad(exc)
                continue
            yield row
            taken += 1
            if taken == self._most:
                return

    def _bad(self, row: BadRow) -> None:
        said = one_line(f"{self._name}: {row}")
        if self._assumed and str(row).startswith("line 1 isn't JSON"):
            self._hint = f"\n{_NO_JSON}"
        if self._on_bad == "stop":
            msg = (
                f"{said}{self._hint}\nMend it, or leave out what can't be read: --on-bad-line skip"
            )
            raise Problem(msg)
        self.bad += 1
        if self.bad <= MOST_WARNINGS:
            warn(f"Left out: {said}")
        elif self.bad == MOST_WARNINGS + 1:
            warn("Left out: ... and more.")

    def _format(self, given: RowFormat | None) -> RowFormat:
        if given is not None:
            return given
        if self.path is None:
            return RowFormat.JSONL
        try:
            return format_of(self.path)
        except ValueError as exc:
            if not self.path.is_file():
                return RowFormat.JSONL
            formats = ", ".join(RowFormat)
            msg = f"INPUT: {exc}: say how rows stand in it: --input-format {formats}"
            raise Problem(msg, Exit.USAGE) from exc

    def _open(self) -> BufferedReader:
        if self.path is not None:
            return self.path.open("rb")
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
            msg = "standard input can't be read: it is closed; name a file"
            raise Problem(msg, Exit.USAGE)
        if sys.stdin.isatty():
            warn("Reading rows from the terminal: end them with Ctrl-D.")
        # A stream of our own: a thread that waits for the terminal's would end the process badly.
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")

    @contextlib.contextmanager
    def _trouble(self) -> Generator[None]:
        try:
            yield
        except OSError as exc:
            msg = f"can't read {self._name}: {exc.strerror or exc}"
            raise Problem(msg) from exc
        except ImportError as exc:
            raise Problem(str(exc)) from exc
        except ValueError as exc:
            msg = f"{self._name}: {one_line(str(exc))}"
            raise Problem(msg) from exc


class _Rows:
    """The rows of a file, with their number."""

    def __init__(self, source: RowSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.total or 0

    def __iter__(self) -> Iterator[Row]:
        return self._source.again()
