"""What tests of real processes wait for, and look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from http_server import Answer
from rows_kit import echo

QUICK = 12
"""How many requests `half` answers at once."""


def half(number: int, body: dict[str, Any]) -> Answer:
    """Answer the first ones, and let the others wait."""
    return echo(number, body) if number < QUICK else Answer("late", wait=60.0)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for what another process does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.01)


def lines(path: Path) -> int:
    """How many lines a file has; none where it isn't there."""
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # The thread has ended meanwhile.
            found += map(int, listed.read_text("ascii").split())
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
