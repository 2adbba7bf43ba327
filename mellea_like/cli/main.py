"""Run the command line: streams, signals and usage errors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.cli.signals import SignalHandler, terminable
from mellea_like.cli.standard_streams import ready_streams, silence, warn
from mellea_like.lazy import needs_extra

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    ready_streams()
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] (replies would be lost)
        warn("mellea-like: standard output is closed")
        return Exit.SETUP
    with terminable() as signals:
        try:
            return _run(sys.argv[1:] if argv is None else argv, signals)
        except KeyboardInterrupt:
            warn(signals.last_words())
            return signals.code


def _run(argv: Sequence[str], signals: SignalHandler) -> int:
    try:
        with needs_extra("cli", "the command line needs typer and rich"):
            import typer  # noqa: PLC0415 (an extra)
            from rich import console as _  # noqa: F401, PLC0415 (an extra)
    except ImportError as exc:
        warn(f"mellea-like: {exc}")
        return Exit.SETUP
    from mellea_like.cli.app import app  # noqa: PLC0415

    command: Any = typer.main.get_command(app)
    try:
        code = command.main(list(argv), "mellea-like", standalone_mode=False, obj=signals)
    except Problem as problem:
        warn(f"mellea-like: {problem}".splitlines())
        return problem.code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:  # For example, the help was written to a full disk.
        silence(sys.stdout)
        warn(f"mellea-like: can't write to standard output: {error.strerror or error}")
        return Exit.SETUP
    except Exception as error:
        # Typer's usage errors have no common base class in all its versions.
        if not hasattr(error, "format_message"):
            raise
        return _usage(error)
    if code == Exit.INTERRUPTED:  # In Typer or in the command.
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> int:
    from mellea_like.specification.section import RENAMED  # noqa: PLC0415 (for mistakes only)

    context, message = error.ctx, error.format_message()
    was = str(getattr(error, "option_name", ""))
    now = RENAMED.get(was.removeprefix("--"))
    if now is not None and any(f"--{now}" in one.opts for one in context.command.params):
        warn(f"mellea-like: {was} is now called --{now}")
        return Exit.USAGE
    if message:  # Otherwise help was shown because there was no command.
        # Newer versions of Typer use pydantic, whose messages have a prefix.
        sentence = message.replace("Value error, ", "").replace("\n\t", " ").rstrip(".")
        path = "mellea-like" if context is None else context.command_path
        warn([f"mellea-like: {sentence}", f"Try '{path} --help'."])
    return Exit.USAGE
