"""A rich console for standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["make_console"]

UNKNOWN_WIDTH = 120
"""Columns of what is written to a file or a pipe."""


class _SafeConsole(Console):
    """A console whose broken pipe ends the output and nothing else."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def make_console(stream: TextIO) -> Console:
    """Make a console for standard error; wide where it isn't a terminal."""
    width = None if stream.isatty() else UNKNOWN_WIDTH
    return _SafeConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)
