"""Rows for the command line's batches, and a look at what came of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from http_server import Answer


def write_rows(path: Path, rows: Iterable[dict[str, Any]] | int) -> Path:
    """Write a file of rows; of a number, so many with a ``text`` and an ``n``."""
    if isinstance(rows, int):
        rows = [{"text": f"number {n}", "n": n} for n in range(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def records(path: Path | str) -> list[dict[str, Any]]:
    """Read the results, of a file or of a text, by their ids."""
    text = path.read_text(encoding="utf-8") if isinstance(path, Path) else path
    return sorted((json.loads(line) for line in text.splitlines()), key=lambda one: one["id"])


def result(number: int = 0, **more: Any) -> dict[str, Any]:
    """Make what is written of a row."""
    return {
        "id": number,
        "line": number + 1,
        "input": {"a": "x", "n": 1},
        "output": "text",
        "success": True,
        "status": "passed",
        "reasons": [],
        "error": None,
        "iterations": 2,
        "elapsed": 0.5,
        "usage": {"requests": 2, "input_tokens": 10, "output_tokens": 20, "unknown": 0},
        **more,
    }


def asked(body: dict[str, Any]) -> str:
    """The first line of what a request asks; the requirements stand below it."""
    return body["messages"][-1]["content"].partition("\n")[0]


def echo(number: int, body: dict[str, Any]) -> Answer:
    """Answer with what was asked."""
    return Answer(f"re {asked(body)}")


QUICK = 12
"""How many requests `half` answers at once."""


def half(number: int, body: dict[str, Any]) -> Answer:
    """Answer the first ones, and let the others wait."""
    return echo(number, body) if number < QUICK else Answer("late", wait=60.0)


def lines(path: Path) -> int:
    """How many lines a file has; none where it isn't there."""
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
