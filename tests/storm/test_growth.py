"""Nothing grows faster than its work: each row is run at a size and at four times the size.

The exponent is the logarithm, to the base of 4, of how many times as much the larger one took, over
what size 1 takes: 1 is in proportion, 2 quadratic, and 0 does not grow at all. Function calls are
counted, SQLite's steps, and bytes of memory and of text: none of them depends on how busy the
machine is.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import math
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from pydantic import BaseModel

from mellea_like import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Requirement,
    Vote,
)
from mellea_like.backends import FunctionBackend
from mellea_like.batch import read_items, read_run, sample_many
from mellea_like.batch.journal.reader import read_block
from mellea_like.batch.unique import UniqueReplies
from mellea_like.estimate import plan
from mellea_like.export import export
from mellea_like.limits import ConcurrencyLimiter, LimitedBackend
from mellea_like.report import call_report, run_report

pytestmark = [pytest.mark.storm, pytest.mark.timeout(120)]

MOST = 1.2
"""The exponent that nothing may exceed."""
WORDS = [f"word{n}" for n in range(97)]
never = Requirement("is never met", lambda c: (False, "it is too short"), inline=True)


class Even(BaseModel):
    n: int


# --- what is counted --------------------------------------------------------------------------


def calls_of(function: Callable[[], object]) -> int:
    """Count the function calls in this thread."""
    counted = 0

    def count(_frame: object, event: str, _called: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def peak_of(function: Callable[[], object]) -> int:
    """Return how many bytes more there were at most while a function ran."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = function()
        peak = tracemalloc.get_traced_memory()[1] - before
        del kept
        return peak
    finally:
        tracemalloc.stop()


def steps_of(path: Path, function: Callable[[sqlite3.Connection], object]) -> int:
    """Count the steps of SQLite's machine, by the hundred."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.set_progress_handler(count, 100)
        function(connection)
    return counted


# --- what is run ------------------------------------------------------------------------------


def text(number: int) -> str:
    """Return a text of forty words; of two numbers, no two are near each other."""
    return " ".join(WORDS[(number * step + number // 97) % 97] + str(number) for step in range(40))


def told(replies: Callable[[int], str]) -> FunctionBackend:
    """Return a backend that gives one reply after the other."""
    numbers = itertools.count()

    async def answer(_request: object) -> str:
        await anyio.lowlevel.checkpoint()
        return replies(next(numbers))

    return FunctionBackend(answer)


def sampled(strategy: Any, action: str = "Say a word.", **given: Any) -> Any:
    return anyio.run(partial(strategy.sample, action, **given))


def in_depth(depth: int) -> Any:
    """A conversation of so many turns."""
    backend = told(lambda n: f"reply {n}")
    return sampled(MultiTurnStrategy(backend, loop_budget=depth, requirements=[never]))


def batch(items: int, passes_at: int = 2, **given: Any) -> None:
    """Sample so many items, each of which passes at a draw of so many."""
    right = Requirement("right", lambda c: (c.text == "yes", "it is wrong"), inline=True)
    drawn: dict[str, int] = {}

    async def answer(request: Any) -> str:
        await anyio.lowlevel.checkpoint()
        asked = request.messages[0].content
        drawn[asked] = drawn.get(asked, 0) + 1
        return "yes" if drawn[asked] == passes_at else f"no {asked}"

    tries = RejectionSamplingStrategy(
        FunctionBackend(answer), loop_budget=passes_at + 1, requirements=[right]
    )

    async def run() -> None:
        names = (f"item {n}" for n in range(items))
        source = list(names) if given.get("breadth_first") else names
        async with sample_many(tries, source, **{"concurrency": 8, **given}) as results:
            async for item in results:
                assert item.success
                drawn.pop(item.item, None)

    anyio.run(run)


class Runs:
    """Finished journals, each made once."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def of(self, items: int) -> Path:
        path = self.place / f"{items}.db"
        if not path.exists():
            batch(items, journal=path)
        return path

    def new(self) -> Path:
        return self.place / f"new {len(list(self.place.iterdir()))}.db"


def journal_bytes(runs: Runs, depth: int) -> int:
    backend = told(lambda n: f"reply {n}")
    talk = MultiTurnStrategy(backend, loop_budget=depth, requirements=[never])
    path = runs.new()

    async def run() -> None:
        async with sample_many(talk, ["Say a word."], concurrency=1, journal=path) as results:
            async for _ in results:
                pass

    anyio.run(run)
    with closing(sqlite3.connect(path)) as connection:
        [(trace,)] = connection.execute("SELECT length(trace) FROM results")
        [(slices,)] = connection.execute("SELECT sum(length(body)) FROM slices")
    return int(trace) + int(slices)


def looked_through(runs: Runs, items: int) -> int:
    path = runs.of(items)

    def look(connection: sqlite3.Connection) -> None:
        for first in range(0, items, 50):
            which = first, first + 50, 50
            assert read_block(connection, path, which, unfinished=True) == []

    return steps_of(path, look)


def at_once(calls: int) -> None:
    backend = LimitedBackend(told(lambda n: f"reply {n % 3}"), ConcurrencyLimiter(16))
    first = Requirement("first", lambda c: c.text == "reply 0", inline=True)
    tries = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=2, requirements=[first]
    )

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(calls):
                tasks.start_soon(tries.sample, "Say a word.")

    anyio.run(run)


def vote(draws: int) -> None:
    backend = told(lambda n: f"answer {n % 2}")
    # Two answers that are tied as long as there are draws.
    selection = Vote(n=draws, confidence=0.999)
    sampled(RejectionSamplingStrategy(backend, loop_budget=draws, selection=selection))


def claimed(replies: int, unique: float) -> UniqueReplies:
    """Have so many items each get a reply that no other one has."""
    kept = UniqueReplies(unique)
    for n in range(replies):
        assert kept.claim(n, 1, text(n)) is None
        kept.settle(n)
    return kept


def parsed(draws: int) -> None:
    backend = told(lambda n: json.dumps({"n": n}))
    sampled(
        RejectionSamplingStrategy(backend, loop_budget=draws, requirements=[never]), format=Even
    )


def exported(runs: Runs, items: int, format: Any) -> Any:
    return export(runs.of(items), runs.place / f"{format}.jsonl", format=format, card=False)


def page(runs: Runs, items: int) -> str:
    path = runs.of(items)
    return run_report(read_run(path), read_items(path))


def once_more(of: Callable[[Callable[[], object]], float], function: Any) -> Any:
    """Run a function before it is measured, so that what is made once is not counted."""

    def measure(runs: Runs, size: int) -> float:
        function(runs, size)
        return of(partial(function, runs, size))

    return measure


# --- the table --------------------------------------------------------------------------------


class Row(NamedTuple):
    """What is measured, and the smaller size."""

    measure: Callable[[Runs, int], float]
    size: int


ROWS = {
    "a record's bytes, by depth": Row(lambda _, n: len(json.dumps(in_depth(n).to_dict())), 25),
    "writing a record, by depth": Row(lambda _, n: calls_of(in_depth(n).to_dict), 100),
    "a journal's bytes, by depth": Row(journal_bytes, 25),
    "a call's page, by depth": Row(lambda _, n: len(call_report(in_depth(n).to_dict())), 25),
    "a conversation, by depth": Row(lambda _, n: calls_of(partial(in_depth, n)), 100),
    "looking through a finished run": Row(looked_through, 200),
    "resuming a finished run": Row(
        lambda runs, n: calls_of(partial(batch, n, journal=runs.of(n))), 100
    ),
    "a vote with confidence": Row(lambda _, n: calls_of(partial(vote, n)), 100),
    "unique=True: memory": Row(lambda _, n: peak_of(partial(claimed, n, 1.0)), 1000),
    "unique=0.8: memory": Row(once_more(peak_of, lambda _, n: claimed(n, 0.8)), 50),
    "unique=0.8: work": Row(lambda _, n: calls_of(partial(claimed, n, 0.8)), 50),
    "replies of a format": Row(lambda _, n: calls_of(partial(parsed, n)), 40),
    "calls at once": Row(lambda _, n: calls_of(partial(at_once, n)), 50),
    "calls at once: memory": Row(lambda _, n: peak_of(partial(at_once, n)), 100),
    "items": Row(lambda _, n: calls_of(partial(batch, n)), 50),
    "items with a journal": Row(
        lambda runs, n: calls_of(partial(batch, n, journal=runs.new())), 50
    ),
    "items in breadth": Row(lambda _, n: calls_of(partial(batch, n, breadth_first=True)), 50),
    "rounds in breadth": Row(lambda _, n: calls_of(partial(batch, 8, n, breadth_first=True)), 10),
    "rounds in breadth with a journal": Row(
        lambda runs, n: calls_of(partial(batch, 8, n, breadth_first=True, journal=runs.new())), 10
    ),
    "a plan": Row(lambda runs, n: calls_of(partial(plan, runs.of(n))), 200),
    "an export of SFT": Row(lambda runs, n: calls_of(partial(exported, runs, n, "openai")), 100),
    "an export of DPO": Row(lambda runs, n: calls_of(partial(exported, runs, n, "dpo")), 100),
    "a report": Row(lambda runs, n: calls_of(partial(page, runs, n)), 200),
    "a report: bytes": Row(lambda runs, n: len(page(runs, n)), 200),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[Runs]:
    logging.disable()
    yield Runs(tmp_path_factory.mktemp("runs"))
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", ROWS)
def test_nothing_grows_faster_than_its_work(runs, name):
    measure, size = ROWS[name]
    measure(runs, 1)  # What is made once, such as caches and imports, belongs to no size.
    least = measure(runs, 1)
    few, many = measure(runs, size) - least, measure(runs, 4 * size) - least
    assert few > 0
    exponent = math.log(many / few, 4)
    assert exponent <= MOST, f"{few:,.0f} at {size}, and {many:,.0f} at {4 * size}"


class Flat(NamedTuple):
    """What is run, and how many bytes more it may take for each item that there is more."""

    function: Callable[[Runs, int], object]
    most: int


FLAT = {
    "items": Flat(lambda _, n: batch(n), 600),
    "a plan": Flat(lambda runs, n: plan(runs.of(n)), 100),
    "an export": Flat(lambda runs, n: exported(runs, n, "kto"), 300),
    "a report": Flat(page, 400),
}


@pytest.mark.xdist_group("journals")  # Large ones are made once for all.
@pytest.mark.parametrize("name", FLAT)
def test_many_items_take_hardly_more_memory_than_few(runs, name):
    function, most = FLAT[name]
    # Below some 800 items, what grows is Python's lists of freed objects, which have an end.
    function(runs, 800)  # Makes what is made once, the journals too.
    runs.of(3200)
    few, many = (peak_of(partial(function, runs, size)) for size in (800, 3200))
    assert (many - few) / 2400 <= most


def test_a_draw_in_breadth_takes_little_more_than_one_in_depth():
    batch(1, breadth_first=True)
    depth, breadth = (calls_of(partial(batch, 100, breadth_first=first)) for first in (False, True))
    assert breadth <= 1.3 * depth
