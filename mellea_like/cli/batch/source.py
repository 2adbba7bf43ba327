"""The rows of a batch's input: a file is checked before the run, a pipe is read during the run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from mellea_like.batch.rows.files import read_rows
from mellea_like.batch.rows.formats import (
    RESULT_FIELDS,
    BadRow,
    Row,
    RowFormat,
    format_of,
    input_of,
    of_results,
)
from mellea_like.cli.exit_codes import Exit, fail, misuse, os_errors, value_errors
from mellea_like.cli.standard_streams import STANDARD, is_special, warn
from mellea_like.core.display import one_line
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
    from io import BufferedReader

    from mellea_like.cli.batch.options import OnBadLine
    from mellea_like.cli.batch.prompt import PromptTemplate

MOST_WARNINGS = 10
"""The maximum number of bad lines that are reported one by one."""

PIECE = 2**20
"""How many bytes of a file to read at a time for its digest."""

_DIGEST = re.compile(r"(\d+) bytes, sha256 ([0-9a-f]{24})")

LARGE = 50 * 2**20
"""A file of more bytes takes seconds to read, so a message announces that it is being read."""


def digest_of(option: str, path: Path, *, quiet: bool = True) -> str:
    """Return a digest of a file, by which another run recognizes the same file."""
    if not path.is_file():
        misuse(f"{option}: {path} is a pipe, but a journal needs a file that can be read again")
    with os_errors(f"{option}: can't read {path}"), path.open("rb") as file:
        if not quiet:
            _tell_of_large(file)
        digest = hashlib.file_digest(file, "sha256")
        return f"{file.tell()} bytes, sha256 {digest.hexdigest()[:24]}"


def _begins(path: Path, digest: str) -> bool:
    """Return whether a file begins with the content that an earlier digest describes."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        return False
    left, hashed = int(found[1]), hashlib.sha256()
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, PIECE))):
            hashed.update(piece)
            left -= len(piece)
    return not left and hashed.hexdigest().startswith(found[2])


def _tell_of_large(file: BufferedReader) -> None:
    if os.fstat(file.fileno()).st_size > LARGE:
        warn(f"Reading {file.name} ...")


class RowSource:
    """Reads the rows of a batch's input, and reports or skips those that don't fit the prompt."""

    def __init__(
        self,
        given: str,
        template: PromptTemplate,
        *,
        on_bad: OnBadLine = "stop",
        most: int | None = None,
        again: bool = False,
        share: tuple[int, int] | None = None,
    ) -> None:
        self.path = None if given == STANDARD else Path(given)
        self.columns: Mapping[str, str] | None = None
        self.bad = 0
        self.total: int | None = None
        self._template = template
        self._on_bad = on_bad
        self._most = most
        self._again = again
        self._share = share  # (process, processes), or None for all.
        self._name = "standard input" if self.path is None else str(self.path)
        self._piped = self.path is None or is_special(self.path)
        self._format = RowFormat.JSONL
        if self.path is not None and not (self._piped and not self.path.suffix):
            with value_errors("INPUT"):
                self._format = format_of(self.path)
        self._file: BufferedReader | None = None
        self._rest: Iterator[Row] = iter(())
        self._reading = False

    def __len__(self) -> int:
        return self.total or 0

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows of the file, after `look_through` has reported the file's errors."""
        with self._trouble(), self._open() as file:
            yield from self._good(file, told=True)

    def rows(self) -> RowSource | AsyncGenerator[Row]:
        """Return the rows for a run."""
        return self._pipe() if self._piped else self

    def digest(self, earlier: str | None = None) -> str | None:
        """Return the digest of the input file, or None for a pipe.

        If rows have only been appended since the digest ``earlier`` was made, return ``earlier``.
        """
        if self.path is None or self._piped:
            return None
        grows = self._format is not RowFormat.PARQUET  # Parquet files can't be extended.
        if earlier is not None and grows and _begins(self.path, earlier):
            return earlier
        return digest_of("INPUT", self.path)

    def look_through(self, *, quiet: bool = False) -> None:
        """Read a file to its end, or a pipe to its first row, and report errors."""
        with self._trouble():
            file = self._open()
            if self._piped:
                self._file = file
                rows = self._good(file)
                first = list(islice(rows, 1))
                self._rest = chain(first, rows)
                found = len(first)
            else:
                with file:
                    if not quiet:
                        _tell_of_large(file)
                    if self._format is RowFormat.PARQUET:
                        from mellea_like.batch.rows.parquet import (  # noqa: PLC0415 (an extra)
                            parquet_columns,
                        )

                        self._name_columns(parquet_columns(file))
                    self.total = found = sum(1 for _ in self._good(file))
        if self.bad and not found:
            what = "row" if self._format is RowFormat.PARQUET else "line"
            fail(f"{self._name}: not a single {what} can be read")
        if not found:
            which = " that did not pass" if self._again else ""
            warn(f"mellea-like: {self._name} has no rows{which}")

    def close(self) -> None:
        """Close a pipe that was opened, unless a thread is still reading it."""
        if self._file is not None and not self._reading:
            self._file.close()

    async def _pipe(self) -> AsyncGenerator[Row]:
        while True:
            self._reading = True
            with self._trouble():
                row = await run_in_thread(self._next)
            self._reading = False
            if row is None:
                return
            yield row

    def _next(self) -> Row | None:
        return next(self._rest, None)

    def _good(self, file: BufferedReader, *, told: bool = False) -> Iterator[Row]:
        def bad(row: BadRow) -> None:
            if not told or self._on_bad == "stop":
                self._bad(row)

        def named(names: list[str]) -> None:
            self._name_columns(dict.fromkeys(names, "text"))

        def fitting() -> Iterator[Row]:
            for place, row in enumerate(read_rows(file, self._format, bad, named)):
                if self._most is None and not self._has(place):
                    continue
                try:
                    asked = input_of(row) if self._again else row
                    if asked is not None and self._share is not None:
                        asked.place = place
                    if asked is not None:
                        self._template.fill(asked)
                        yield asked
                except BadRow as exc:
                    bad(exc)

        rows = islice(fitting(), self._most)
        return rows if self._share is None else (row for row in rows if self._has(row.place or 0))

    def _has(self, place: int) -> bool:
        """Return whether this process samples the row at ``place``, the row's position from 0."""
        return self._share is None or place % self._share[1] == self._share[0]

    def _name_columns(self, columns: Mapping[str, str]) -> None:
        """Store the input's columns; ``--again`` leaves out an earlier run's result columns."""
        self.columns = columns
        if self._again and of_results(list(columns)):
            own = dict(list(columns.items())[: -len(RESULT_FIELDS)])
            self.columns = None if list(own) == ["input"] else own

    def _bad(self, row: BadRow) -> None:
        said = one_line(f"{self._name}: {row}")
        if self._on_bad == "stop":
            fail(f"{said}\nFix the line or the prompt, or skip such lines with --on-bad-line skip")
        self.bad += 1
        if self.bad <= MOST_WARNINGS:
            warn(f"Left out: {said}")
        elif self.bad == MOST_WARNINGS + 1:
            warn("Left out: ... and more.")

    def _open(self) -> BufferedReader:
        if self.path is not None:
            return self.path.open("rb")
        if sys.stdin.isatty():
            warn("Reading rows from the terminal; press Ctrl-D to finish.")
        # Python would crash at exit if a thread still waited for sys.stdin itself.
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")

    @contextlib.contextmanager
    def _trouble(self) -> Generator[None]:
        with value_errors(self._name, Exit.SETUP), os_errors(f"can't read {self._name}"):
            yield
