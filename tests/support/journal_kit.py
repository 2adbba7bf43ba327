"""Helpers for tests of journals: they make calls to record, and inspect files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends import FunctionBackend
from mellea_like.batch import Journal, read_items, read_run
from mellea_like.batch.journal.journal import OpenJournal
from mellea_like.core.result import SamplingResult
from mellea_like.core.slice import Slice
from mellea_like.errors import JournalError

IDENTITY = {"strategy": {"name": "rejection", "loop_budget": 3}, "model": "m", "input": None}


async def sampled(
    name: str, passing: int | None = 2, slices: list[Slice] | None = None
) -> SamplingResult[Any]:
    """Run a real call in which the iteration ``passing`` passes, or none if it is None."""
    replies = iter(range(1, 100))
    backend = FunctionBackend(lambda request: f"reply {next(replies)} to {name}")
    check = Requirement(
        "is the right one",
        lambda c: (c.text.startswith(f"reply {passing} "), "it is another one"),
        inline=True,
    )
    strategy = RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=1)
    told = None if slices is None else slices.append
    return await strategy.sample(f"say {name}", [check], on_slice=told)


async def finish(
    store: OpenJournal, item: int, attempt: int, outcome: SamplingResult[Any] | Exception
) -> None:
    """Record an attempt's outcome, and wait until it is on disk."""
    done = anyio.Event()
    errors: list[JournalError | None] = []

    def then(error: JournalError | None) -> None:
        errors.append(error)
        done.set()

    store.finish(item, attempt, outcome, then)
    await done.wait()
    if errors[0] is not None:
        raise errors[0]


async def write_item(
    store: OpenJournal, item: int, attempt: int = 1, passing: int | None = 2
) -> SamplingResult[Any]:
    """Sample an item, and record it as a run does."""
    slices: list[Slice] = []
    store.begin(item, attempt, f"digest {item}", f"item {item}", {"row": item})
    result = await sampled(f"item {item}", passing, slices)
    for slice_ in slices:
        store.slice(item, attempt, slice_)
    await finish(store, item, attempt, result)
    return result


async def check_takes_nothing(store: OpenJournal, result: SamplingResult[Any], words: str) -> None:
    """Check that all calls on a journal raise this error."""
    import pytest  # Here: a process that only writes a journal needs none.

    for call in (
        lambda: store.begin(1, 1, "", "", None),
        lambda: store.slice(1, 1, result.slices[0]),
        lambda: store.pause(1, 1, (), lambda error: None),
    ):
        with pytest.raises(JournalError, match=words):
            call()
    for waited in (finish(store, 1, 1, result), store.lookup(0, 1)):
        with pytest.raises(JournalError, match=words):
            await waited


async def write_run(path: Path, items: int) -> None:
    """Write a complete run of some items."""
    async with Journal(path).open(IDENTITY) as store:
        for item in range(items):
            await write_item(store, item)


async def run_of(path: Path) -> dict[str, Any]:
    """Read a journal's run, in a thread."""
    return await to_thread.run_sync(read_run, path)


async def items_of(path: Path) -> list[dict[str, Any]]:
    """Read a journal's items, in a thread."""
    return await to_thread.run_sync(lambda: list(read_items(path)))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 (nobody tells of it)
            await anyio.sleep(0.002)


def plain(result: SamplingResult[Any]) -> Any:
    """Return a result as the journal should return it."""
    return json.loads(json.dumps(result.to_dict()))


def copy_of(path: Path, target: Path) -> Path:
    """Copy a journal as a kill at this moment would leave it, its log included."""
    for end in ("", "-wal"):
        if path.with_name(path.name + end).exists():
            shutil.copy(path.with_name(path.name + end), target.with_name(target.name + end))
    return target


def bytes_beside(path: Path) -> dict[str, bytes]:
    """Return the contents of all files in a journal's folder."""
    return {
        found.name: bytes(found.readlink()) if found.is_symlink() else found.read_bytes()
        for found in path.parent.iterdir()
        if found.is_file() or found.is_symlink()
    }


def integrity(path: Path) -> str:
    """Return the result of SQLite's integrity check of a database."""
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def execute(path: Path, *statements: str) -> None:
    """Execute a statement on a journal's database directly."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def child_code(code: str) -> list[str]:
    """Return the command that runs code in a new process."""
    return [sys.executable, "-c", textwrap.dedent(code)]


@contextlib.contextmanager
def child(code: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run code in another process, wait for its first line, and kill it at the end."""
    process = subprocess.Popen(
        [*child_code(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


HOLD = """
    import sys, anyio
    from mellea_like.batch import Journal
    from journal_kit import IDENTITY, write_item

    async def main():
        async with Journal(sys.argv[1]).open(IDENTITY) as store:
            if len(await store.lookup(0, 1)) == 0:
                await write_item(store, 0)
            print("open", flush=True)
            await anyio.sleep(60)

    anyio.run(main)
"""
"""Opens a journal, writes an item unless there is one, and holds it."""
