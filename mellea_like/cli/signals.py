"""Signals that end a command: the first cancels, the second breaks off, a third one ends it here.

An event loop's own handler does the first two for SIGINT, but it is missing where SIGINT is
ignored, as in what a script starts with ``&``; and nothing does so for SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
from anyio.lowlevel import current_token

from mellea_like.cli.exits import Exit
from mellea_like.cli.terminal import is_terminal, warn, write
from mellea_like.runtime.native import call_soon

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import FrameType

__all__ = ["Ending", "terminable"]

T = TypeVar("T")

SHOW_CURSOR = "\x1b[?25h"


class Ending:
    """What the signals do that end a command.

    Args:
        at_once: called before a third signal ends the process.
    """

    def __init__(self, at_once: Callable[[], object]) -> None:
        self._at_once = at_once
        self._received: list[int] = []
        self._cancel: Callable[[], object] | None = None
        self._interrupted = False

    @property
    def code(self) -> int:
        """The exit code."""
        others = any(number != signal.SIGINT for number in self._received)
        return Exit.TERMINATED if others else Exit.INTERRUPTED

    def run(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an event loop; the first signal cancels the function.

        Args:
            function: an async function.
            *arguments: its arguments.

        Returns:
            What it returns.

        Raises:
            KeyboardInterrupt: it was cancelled, or broken off.
        """

        async def cancellable() -> list[T]:
            with anyio.CancelScope() as scope:
                self._cancel = partial(call_soon, current_token(), scope.cancel)
                try:
                    return [await function(*arguments)]
                finally:
                    self._cancel = None
            return []

        results = anyio.run(cancellable)
        if not results:
            self._interrupt()
        return results[0]

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal.

        Args:
            number: which.

        Raises:
            KeyboardInterrupt: nothing is left to cancel.
        """
        self._received.append(number)
        if self._interrupted:
            self._leave()
        cancel, self._cancel = self._cancel, None
        if cancel is None:
            self._interrupt()
        cancel()

    def _interrupt(self) -> NoReturn:
        self._interrupted = True
        raise KeyboardInterrupt

    def _leave(self) -> NoReturn:
        self._at_once()
        with contextlib.suppress(OSError):
            if is_terminal(sys.stderr):
                write(SHOW_CURSOR, sys.stderr)
        warn("Interrupted.")
        os._exit(self.code)


@contextlib.contextmanager
def terminable(
    *signals: signal.Signals, at_once: Callable[[], object] = lambda: None
) -> Generator[Ending]:
    """Let SIGINT (Ctrl-C) and SIGTERM end what runs, so that no process of ours is left behind.

    A signal that is ignored stays so.

    Args:
        *signals: others that are to do so too.
        at_once: called before a third signal ends the process.

    Yields:
        What they do.
    """
    ending = Ending(at_once)
    before: dict[signal.Signals, Any] = {}
    try:
        # Not in the main thread, signals are someone else's.
        with contextlib.suppress(ValueError):
            for number in (signal.SIGINT, signal.SIGTERM, *signals):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, ending.receive)
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
