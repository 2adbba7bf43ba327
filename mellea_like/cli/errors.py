"""The wording of errors on the command line, and where log records go."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import traceback
from typing import TYPE_CHECKING, TypeVar

from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.cli.standard_streams import warn
from mellea_like.core.display import one_line, with_reason
from mellea_like.core.generation import REJECTED
from mellea_like.errors import BackendError, CircuitOpen, JournalError, LimitExceeded, MelleaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.slice import Slice

T = TypeVar("T")

FORESEEN = (Problem, MelleaError, ImportError)
"""Errors whose messages are written for users; an `ImportError` names the missing extra."""

BUDGETS = {
    "requests": "requests",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
    "cost": "money",
}
"""The kinds of ``--budget``, with their names in `Budget`."""

_IN_PYTHON = re.compile(r" \((?:max_retry_after|rate_limit_attempts|attempts)=[^)]*\)")


def run_command(run: Callable[[T, SignalHandler], int], options: T, signals: SignalHandler) -> int:
    """Run a command, and report an error in a sentence; return the exit code."""
    debug: bool | None = getattr(options, "debug", None)
    with contextlib.nullcontext() if debug is None else logs(debug=debug):
        try:
            return run(options, signals)
        except Exception as error:
            if debug is None and not isinstance(error, FORESEEN):
                raise  # Without --debug, there is no other way to see where it was raised.
            report(error, debug=bool(debug))
            return code_of(error)


def code_of(error: Exception) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Problem):
        return error.code
    return Exit.NOTHING_PASSED if isinstance(error, LimitExceeded) else Exit.SETUP


def sentence(error: Exception, *, debug: bool = False) -> str:
    """Return the message of an error, worded for users of the command line."""
    message = str(error) or type(error).__name__
    if isinstance(error, LimitExceeded):
        first = error.__cause__
        because = "" if first is None else f"; the first error was: {one_line(str(first))}"
        return f"nothing passed: {in_options(message)}{because}"
    if isinstance(error, BackendError) and error.retry_after is not None:
        told = isinstance(error, CircuitOpen) or "come back in" in message
        message += "" if told else f"; come back in {error.retry_after:.6g} s"
    if isinstance(error, BackendError):  # Its notes say how often it was tried.
        notes: list[str] = getattr(error, "__notes__", [])
        tries = [note for note in notes if note.startswith(("tried ", "refused "))]
        return _IN_PYTHON.sub("", "; ".join([message, *tries]))
    if isinstance(error, FORESEEN):
        return message
    hint = "" if debug else " (--debug shows where)"
    return f"{type(error).__name__}: {one_line(message)}{hint}"


def in_options(message: str, max_tokens: str | None = "--max-tokens") -> str:
    """Replace the library's names in a budget's error with the names of options.

    ``max_tokens`` is the option that limits a reply; None if there is none.
    """
    names = {value: kind for kind, value in BUDGETS.items()}
    found = re.sub(
        r"a higher (\w+) limit", lambda m: f"a higher --budget {names.get(m[1], m[1])}", message
    )
    less = "" if max_tokens is None else f", or a lower {max_tokens}"
    found = found.replace(", or a lower max_tokens", less)
    return re.sub(r"budget '(this (?:call|run))'", r"the budget of \1", found)


def rejected_early(slice_: Slice) -> bool:
    """Return whether a draw's reply was rejected before it was complete."""
    return slice_.generation is not None and slice_.generation.finish_reason == REJECTED


def problems_of(slice_: Slice) -> list[str]:
    """Return the reasons why a draw did not pass, with the checks as the user wrote them."""
    problems = [in_options(slice_.reason)] if slice_.reason else []
    problems += [
        with_reason(requirement.name, verdict.reason) for requirement, verdict in slice_.failures
    ]
    error = slice_.error
    if error is not None:
        problems.append(in_options(str(error)) or type(error).__name__)
    return problems


def report(error: Exception, *, debug: bool) -> str:
    """Write an error to standard error, with its traceback if ``debug``; return the message."""
    message = sentence(error, debug=debug)
    if debug:
        warn("".join(traceback.format_exception(error)).splitlines())
    warn(f"mellea-like: {message}".splitlines())
    return message


@contextlib.contextmanager
def reading(*sources: Path) -> Generator[None]:
    """Turn errors from reading journals or a trace into a `Problem` with a one-line message."""
    try:
        yield
    except (JournalError, ValueError) as exc:
        said = one_line(str(exc))
        named = any(str(source) in said for source in sources)
        msg = said if named else f"{sources[0]}: {said}"
        raise Problem(msg) from exc
    except OSError as exc:
        msg = f"{exc.filename or sources[0]} can't be read: {exc.strerror or exc}"
        raise Problem(msg) from exc


@contextlib.contextmanager
def logs(*, debug: bool) -> Generator[None]:
    """While the block runs, write log records to standard error if ``debug``; else discard them."""
    logger = logging.getLogger("mellea_like")
    handler = logging.StreamHandler(sys.stderr) if debug else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
