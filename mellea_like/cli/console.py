"""Consoles of the ``rich`` library, and a live view on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from rich.console import RenderableType

UNKNOWN_WIDTH = 120
"""The width of output to a file or a pipe, in columns."""

REFRESHES_PER_SECOND = 8


class _SafeConsole(Console):
    """A console that ignores a broken pipe."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def make_console(stream: TextIO) -> Console:
    """Make a console for a stream, `UNKNOWN_WIDTH` columns wide if the stream isn't a terminal."""
    width = None if stream.isatty() else UNKNOWN_WIDTH
    return _SafeConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)


def live_view(render: Callable[[Console], RenderableType]) -> Live | None:
    """Make a live view, erased when it stops; return None if standard error can't be redrawn."""
    if not sys.stderr.isatty():
        return None
    console = make_console(sys.stderr)
    if console.is_dumb_terminal:
        return None
    return Live(
        get_renderable=lambda: render(console),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
