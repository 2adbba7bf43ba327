"""A journal whose last write was torn: cut off, or followed by random bytes."""

from __future__ import annotations

import random
import shutil
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import anyio
from journal_kit import IDENTITY, copy_of, integrity, write_item

from mellea_like.batch import Journal

ITEMS = 4
KINDS = ("cut", "zeros", "garbage")


class Written(NamedTuple):
    """A journal as a kill would leave it, with the log's length after each commit."""

    path: Path
    log: bytes
    lengths: list[int]


def write(folder: Path) -> Written:
    """Write a journal with one commit per item."""

    async def run() -> Written:
        path = folder / "whole.db"
        lengths: list[int] = []
        async with Journal(path).open(IDENTITY) as store:
            for item in range(ITEMS):
                await write_item(store, item)
                lengths.append(log_of(path).stat().st_size)
            left = copy_of(path, folder / "left.db")
        return Written(left, log_of(left).read_bytes(), lengths)

    return anyio.run(run)


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def tear(written: Written, folder: Path, step: int, first: int = 0) -> dict[int, int]:
    """Tear the log at every ``step``th byte; return how often so many results had survived."""
    seen: dict[int, int] = {}
    torn = folder / "torn.db"
    for number, place in enumerate(range(first, len(written.log), step)):
        kind = KINDS[number % len(KINDS)]
        rest = len(written.log) - place
        tail = {"cut": b"", "zeros": bytes(rest), "garbage": random.Random(place).randbytes(rest)}
        shutil.copy(written.path, torn)
        log_of(torn).write_bytes(written.log[:place] + tail[kind])
        survived = anyio.run(resumed, torn)
        # What was committed before the tear is there. Where zeros were to come, zeros do no harm.
        expected = bisect_right(written.lengths, place)
        assert survived - expected in ({0, 1} if kind == "zeros" else {0}), (kind, place)
        assert integrity(torn) == "ok", (kind, place)
        seen[survived] = seen.get(survived, 0) + 1
    return seen


async def resumed(path: Path) -> int:
    """Resume a run to its end; return how many results it found."""
    async with Journal(path).open(IDENTITY) as store:
        known = await store.lookup(0, ITEMS)
        results = [item.id for item in known if item.finished]
        assert results == list(range(len(results)))
        for item in range(len(results), ITEMS):
            await write_item(store, item, attempt=1 + sum(i.id == item for i in known))
    async with Journal(path).open(IDENTITY) as store:
        again = await store.lookup(0, ITEMS)
        assert [item.finished for item in again] == [True] * ITEMS
    return len(results)
