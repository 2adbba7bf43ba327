"""Signals that end a command: the first cancels it, the second ends the process immediately.

By itself, an event loop cancels its task at SIGINT, but not at SIGTERM. If SIGINT is ignored (as in
a command that a script starts with ``&``), the loop doesn't react to it either. A second
``KeyboardInterrupt`` is never raised, because it could occur anywhere in the event loop.
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

from mellea_like.cli.exit_codes import Exit
from mellea_like.cli.standard_streams import warn, write
from mellea_like.runtime.event_loops import call_soon

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import FrameType

T = TypeVar("T")

SHOW_CURSOR = "\x1b[?25h"
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class SignalHandler:
    """Handles signals: the first cancels the command, the second ends the process immediately."""

    def __init__(self) -> None:
        self.last_words: Callable[[], str] = lambda: "Interrupted."
        self.at_once: Callable[[], object] = lambda: None
        self._received: list[int] = []
        self._cancel: Callable[[], object] | None = None

    @property
    def code(self) -> int:
        """The exit code: 130 if all signals were SIGINT, otherwise 143."""
        others = any(number != signal.SIGINT for number in self._received)
        return Exit.TERMINATED if others else Exit.INTERRUPTED

    def run(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a function in an event loop; raise ``KeyboardInterrupt`` if a signal cancels it."""

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
            raise KeyboardInterrupt
        return results[0]

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Cancel the function, or raise without one; at the second signal, end the process."""
        self._received.append(number)
        if len(self._received) > 1:
            self._leave()
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()

    def _leave(self) -> NoReturn:
        self.at_once()
        with contextlib.suppress(OSError):
            if sys.stderr.isatty():
                write(SHOW_CURSOR, sys.stderr)
        warn(self.last_words())
        os._exit(self.code)


@contextlib.contextmanager
def terminable() -> Generator[SignalHandler]:
    """Handle Ctrl-C, SIGTERM and SIGHUP during the block, except those already ignored."""
    signals = SignalHandler()
    before: dict[int, Any] = {}
    try:
        # Only the main thread may set handlers.
        with contextlib.suppress(ValueError):
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, signals.receive)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
