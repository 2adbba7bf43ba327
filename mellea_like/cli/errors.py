"""What is said about an error, and where log records go."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING

from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.sample.output import refused, spent
from mellea_like.cli.terminal import one_line, warn
from mellea_like.errors import BackendError, LimitExceeded, MelleaError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["code_of", "logs", "report", "sentence"]


def code_of(error: Exception) -> int:
    """Say with which exit code an error ends the command."""
    if isinstance(error, Problem):
        return error.code
    return Exit.NOTHING_PASSED if isinstance(error, LimitExceeded) else Exit.SETUP


def sentence(error: Exception, *, debug: bool = False) -> str:
    """Say what an error says, in words of the command line."""
    if isinstance(error, LimitExceeded):
        return spent(error)
    if isinstance(error, BackendError):
        return refused(error)
    message = str(error) or type(error).__name__
    if isinstance(error, (Problem, MelleaError)):
        return message
    hint = "" if debug else " (--debug shows where)"
    return f"{type(error).__name__}: {one_line(message)}{hint}"


def report(error: Exception, *, debug: bool) -> str:
    """Write an error to standard error."""
    message = sentence(error, debug=debug)
    if debug:
        warn("".join(traceback.format_exception(error)).splitlines())
    warn(f"mellea-like: {message}".splitlines())
    return message


@contextlib.contextmanager
def logs(*, debug: bool) -> Generator[None]:
    """Keep the library's warnings, which say what progress says, for ``--debug``."""
    logger = logging.getLogger("mellea_like")
    handler = logging.StreamHandler(sys.stderr) if debug else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
