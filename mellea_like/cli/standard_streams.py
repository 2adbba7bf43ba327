"""Write to terminals, pipes and files, without letting a model's text control the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from mellea_like.cli.exit_codes import Exit, Problem, fail, os_errors
from mellea_like.core.display import printable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

STANDARD = "-"
"""The path that means standard input or standard output."""


def ready_streams() -> None:
    """Replace standard input and error if closed; escape output that can't be encoded."""
    for name, mode in (("stdin", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 (open to the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write(text: str, stream: TextIO) -> None:
    """Write to a stream and flush it; without a reader of its pipe, discard the text."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError:
        silence(stream)
        raise


def warn(lines: str | Iterable[str]) -> None:
    """Write lines to standard error, with control characters escaped, and ignore write errors."""
    for line in [lines] if isinstance(lines, str) else lines:
        with contextlib.suppress(OSError):
            write(printable(line) + "\n", sys.stderr)


def silence(stream: TextIO) -> None:
    """Discard all further output to a stream, including Python's last flush at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def is_special(path: Path) -> bool:
    """Return whether a path is that of a pipe, a device or a directory."""
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 (never raise)


def check_folder(option: str, path: Path) -> None:
    """Refuse a file whose folder doesn't exist or can't be written into."""
    if not os.path.isdir(path.parent):  # noqa: PTH112 (never raises)
        fail(f"{option}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        fail(f"{option}: can't write into the directory {path.parent}")


def write_output(text: str) -> None:
    """Write to standard output; raise a `Problem` if that fails."""
    with os_errors("can't write to standard output"):
        write(text, sys.stdout)


@contextlib.contextmanager
def writing(name: str) -> Generator[None]:
    """Turn an error of writing to a file, or to `STANDARD` output, into a `Problem`."""
    try:
        with os_errors(f"can't write {'standard output' if name == STANDARD else name}"):
            yield
    except Problem as problem:
        if name == STANDARD:
            silence(sys.stdout)
        if isinstance(problem.__cause__, BrokenPipeError):
            msg = "the program reading standard output has closed it"
            raise Problem(msg, Exit.NOTHING_PASSED) from problem
        raise
