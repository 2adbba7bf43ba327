"""Signals that end the command as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

__all__ = ["terminable"]


@contextlib.contextmanager
def terminable(*signals: signal.Signals) -> Generator[list[int]]:
    """Let a SIGTERM end the call as Ctrl-C does, so that no process of ours is left behind.

    Args:
        *signals: others that are to do so too.

    Yields:
        The signals received so far.
    """
    received: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    before: dict[signal.Signals, Any] = {}
    try:
        # Not in the main thread, signals are someone else's.
        with contextlib.suppress(ValueError):
            for number in (signal.SIGTERM, *signals):
                before[number] = signal.signal(number, interrupt)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
