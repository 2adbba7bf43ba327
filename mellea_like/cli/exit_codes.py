"""Exit codes, and errors that the user can fix."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from mellea_like.core.display import one_line

if TYPE_CHECKING:
    from collections.abc import Generator


class Exit:
    """The exit codes of ``mellea-like``."""

    PASSED = 0
    NOTHING_PASSED = 1
    USAGE = 2
    SETUP = 3
    """A backend or configuration error."""
    INTERRUPTED = 130
    TERMINATED = 143


class Problem(Exception):
    """An error that the user can fix. The message is one sentence."""

    def __init__(self, message: str, code: int = Exit.SETUP) -> None:
        super().__init__(message)
        self.code = code


def misuse(message: str) -> NoReturn:
    """Raise a `Problem` with the command line itself."""
    raise Problem(message, Exit.USAGE)


def fail(message: str) -> NoReturn:
    """Raise a `Problem` with anything but the command line, such as a file or a server."""
    raise Problem(message)


@contextmanager
def os_errors(what: str) -> Generator[None]:
    """Turn an error of the operating system, or a text that isn't UTF-8, into a `Problem`."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"{what}: {getattr(exc, 'strerror', None) or exc}"
        raise Problem(msg) from exc


@contextmanager
def value_errors(place: str, code: int = Exit.USAGE) -> Generator[None]:
    """Turn a `ValueError` into a `Problem` that begins with its place: an option or a file."""
    try:
        yield
    except ValueError as exc:
        msg = f"{place}: {one_line(str(exc), 2000)}"
        raise Problem(msg, code) from exc


def needs_unix(command: str) -> None:
    """Refuse a command on Windows, which lacks the signals that it needs."""
    if sys.platform == "win32":
        fail(f"{command} needs Unix signals, which Windows lacks: run it in WSL or in a container")
