"""Rows that contain replies, for commands that check replies."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mellea_like.batch.rows.files import read_rows
from mellea_like.batch.rows.formats import RowFormat, format_of
from mellea_like.cli.exit_codes import Problem, os_errors
from mellea_like.cli.standard_streams import STANDARD
from mellea_like.core.display import one_line

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

REPLIES = ("reply", "output", "response", "completion", "answer", "text")
"""The fields that may contain the reply without ``--reply``; the first that exists is used."""


@contextlib.contextmanager
def opened(source: str) -> Generator[BinaryIO]:
    """Open the file of replies, or standard input if ``source`` is ``-``."""
    if source == STANDARD:
        yield sys.stdin.buffer
        return
    with os_errors(f"{source} can't be read"):
        file = Path(source).open("rb")  # noqa: SIM115 (errors while it is read are others)
    with file:
        yield file


def rows_of(source: str, file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. The name ``source`` determines the format; ``-`` means JSONL."""
    try:
        format = RowFormat.JSONL if source == STANDARD else format_of(source)
        yield from read_rows(file, format)
    except ValueError as exc:
        msg = f"{source}: {one_line(str(exc))}"
        raise Problem(msg) from exc


def field_of(row: dict[str, Any], name: str, flag: str) -> Any:
    """Return a field of a row; ``flag`` is the option that names the field, for errors."""
    if name not in row:
        msg = f"there is no field {name!r}, only {', '.join(row)}: name one with {flag} FIELD"
        raise Problem(msg)
    return row[name]
