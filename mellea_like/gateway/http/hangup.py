"""SIGHUP asks a server to reload its configuration, or means that its terminal was closed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Terminal:
    """The terminal that a server was started from. Create it before SIGHUP gets a handler."""

    def __init__(self) -> None:
        # A server that was started with nohup, which ignores SIGHUP, outlives its terminal.
        self._ends_the_server = os.isatty(2) and not _is_ignored(signal.SIGHUP)

    def was_closed(self) -> bool:
        """Return whether the terminal has been closed, so that SIGHUP must end the server."""
        return self._ends_the_server and not os.isatty(2)


def signals_to_handle(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those of the signals that were not ignored when the process started, and SIGHUP."""
    # Under nohup, SIGHUP still asks to reload the configuration.
    return [number for number in numbers if number == signal.SIGHUP or not _is_ignored(number)]


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN
