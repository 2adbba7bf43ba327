"""A run that is killed at random moments loses nothing, and repeats only what was in flight."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import kill_run
import pytest
from journal_kit import copy_of

from mellea_like.batch import read_items, read_run

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.kill, pytest.mark.timeout(900)]

CYCLES = 50
ITEMS = 1500
CONCURRENCY = 16
PROGRAM = kill_run.__file__


@dataclass
class Figures:
    """Figures of all runs together."""

    kills: int = 0
    runs: int = 0
    before_a_journal: int = 0
    acknowledged: int = 0
    kept_and_not_acknowledged: int = 0
    in_flight: list[int] = field(default_factory=list)
    calls: int = 0
    repeated: int = 0
    logs: list[int] = field(default_factory=list)
    loops: Counter[str] = field(default_factory=Counter)


class Run:
    """One run of all items, killed again and again until it ends."""

    def __init__(self, folder: Path, seen: Figures, order: str) -> None:
        folder.mkdir()
        self.order = order
        self.folder = folder
        self.seen = seen
        self.lines = {"calls": 0, "results": 0}
        self.finished: dict[int, str] = {}
        self.acknowledged: dict[int, str] = {}
        self.unpaid = 0
        self.drawn: set[tuple[int, ...]] = set()
        self.kept: set[tuple[int, ...]] = set()

    def go(self, *, kill: bool) -> bool:
        """Run, and kill the run at some moment; return whether it ended before."""
        loop = random.choice(("asyncio", "trio"))
        arguments = [str(self.folder), str(ITEMS), str(CONCURRENCY), loop, self.order]
        with (self.folder / "log").open("w+b") as log:
            process = subprocess.Popen([sys.executable, PROGRAM, *arguments], stderr=log)
            try:
                if kill:
                    self.wait_for_a_moment(process)
                    process.send_signal(signal.SIGKILL)
                process.wait()
            finally:
                process.kill()
            if process.returncode == -signal.SIGKILL:
                self.seen.kills += 1
                self.seen.loops[loop] += 1
                self.judge(killed=True)
                return False
            assert process.returncode == 0, (log.seek(0), log.read())
        self.judge(killed=False)
        return True

    def wait_for_a_moment(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for any moment in one of four cases; else for one while items are being sampled."""
        if random.random() < 0.25:
            time.sleep(random.uniform(0, 1))
            return
        calls = self.folder / "calls"
        before = calls.stat().st_size if calls.exists() else 0
        while process.poll() is None and not (calls.exists() and calls.stat().st_size > before):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.3))

    def new_lines(self, name: str) -> list[str]:
        """Return the lines since the last call. Each is written whole or not at all."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text.endswith("\n") or not text
        lines = text.splitlines()[self.lines[name] :]
        self.lines[name] += len(lines)
        return lines

    def judge(self, *, killed: bool) -> None:
        seen = self.seen
        draws = [tuple(map(int, line.split())) for line in self.new_lines("calls")]
        assert len(draws) == len(set(draws))
        calls = Counter(item for item, _ in draws)
        results = [line.split(" ", 3) for line in self.new_lines("results")]
        seen.calls += calls.total()
        # What was finished before is not sampled again.
        assert not calls.keys() & self.finished.keys()
        before = self.finished
        if (self.folder / "run.db").exists():
            # A copy, so that the next process finds what the killed one left.
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            (self.folder / "copy").mkdir()
            copy = copy_of(self.folder / "run.db", self.folder / "copy" / "run.db")
            log = copy.with_name("run.db-wal")
            seen.logs.append(log.stat().st_size if log.exists() else 0)
            self.finished = finished_in(copy)
        else:
            assert killed
            assert not calls
            assert not results
            seen.before_a_journal += 1
        # What was finished stays, and what was handed on is there, as it was handed on.
        assert before.items() <= self.finished.items()
        mine: set[int] = set()
        for number, status, replayed, value in results:
            item = int(number)
            assert item not in mine
            mine.add(item)
            assert self.finished[item] == status
            assert (status, value) == kill_run.outcome_of(item)
            assert bool(int(replayed)) == (item in before)
            self.acknowledged[item] = status
        again = self.drawn & set(draws)
        seen.repeated += len(again)
        assert not again & self.kept
        self.drawn |= set(draws)
        self.kept = kept_in(copy, self.finished) if self.finished or calls else set()
        lost = {(item, n) for item, n in draws if item not in self.finished} - self.kept
        in_flight = {item for item, _ in lost}
        # Those that are sampled, and those whose commit was under way.
        assert len(in_flight) <= 2 * CONCURRENCY
        self.unpaid += len(in_flight)
        waiting = len(self.finished.keys() - self.acknowledged.keys())
        seen.kept_and_not_acknowledged = max(seen.kept_and_not_acknowledged, waiting)
        if killed:
            seen.in_flight.append(len(in_flight))
        else:
            assert not in_flight
            assert mine == set(range(ITEMS))

    def end(self) -> None:
        """Check a run that has ended."""
        seen = self.seen
        seen.runs += 1
        seen.acknowledged += len(self.acknowledged)
        journal = self.folder / "run.db"
        assert {file.name for file in self.folder.iterdir() if file.name.startswith("run.db")} == {
            "run.db"
        }
        wanted = Counter(kill_run.outcome_of(item)[0] for item in range(ITEMS))
        assert read_run(journal)["counts"] == {**wanted, "unfinished": 0}
        paid = 0
        for item, record in zip(range(ITEMS), read_items(journal), strict=True):
            assert record["id"] == item
            assert record["status"] == kill_run.outcome_of(item)[0]
            assert (record["trace"] is None) == (record["status"] == "errored")
            if record["status"] == "passed":
                assert kill_run.outcome_of(item)[1] in json.dumps(record["trace"])
            assert record["usage"]["requests"] >= kill_run.calls_of(item)
            paid += record["usage"]["requests"]
        calls = self.lines["calls"]
        # The cost of killed attempts is kept, but for calls whose end was not written down.
        assert calls - 3 * self.unpaid <= paid <= calls


def finished_in(journal: Path) -> dict[int, str]:
    """Return the items with a result, after checking the database's integrity."""
    with closing(sqlite3.connect(f"{journal.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert (
            connection.execute("SELECT count(*) FROM results").fetchone()
            == connection.execute("SELECT count(DISTINCT item) FROM results").fetchone()
        )
        return dict(connection.execute("SELECT item, status FROM results"))


def kept_in(journal: Path, finished: Mapping[int, str]) -> set[tuple[int, ...]]:
    """Return the failed draws of unfinished items. None is repeated unless all turns are used."""
    failed = "SELECT item, iteration FROM slices WHERE json_extract(body, '$.outcome') = 'failed'"
    with closing(sqlite3.connect(f"{journal.as_uri()}?mode=ro", uri=True)) as connection:
        draws = {draw for draw in connection.execute(failed) if draw[0] not in finished}
    return {draw for draw in draws if (draw[0], kill_run.LOOP_BUDGET) not in draws}


@pytest.mark.parametrize("order", ["depth", "breadth"])  # Each on its own core.
def test_nothing_acknowledged_is_lost_in_a_hundred_kills(tmp_path, figures, order):
    seed = random.randrange(10**9)
    random.seed(seed)
    seen = Figures()
    started = time.monotonic()
    while seen.kills < CYCLES:
        run = Run(tmp_path / f"run{seen.runs}", seen, order)
        while not run.go(kill=seen.kills < CYCLES):
            pass
        run.end()
        shutil.rmtree(run.folder)
    flights = sorted(seen.in_flight)
    figures(
        f"{seen.kills} kills (seed {seed}; {dict(seen.loops)}) in {seen.runs} runs of {ITEMS:,}"
        f" items ({order} first), {CONCURRENCY} at a time, in {time.monotonic() - started:.0f} s:",
        f"  results acknowledged: {seen.acknowledged:,}; lost: 0; items with another result: 0;"
        f" kept before they were acknowledged: up to {seen.kept_and_not_acknowledged}",
        f"  killed before there was a journal: {seen.before_a_journal} times; with a log of up to"
        f" {max(seen.logs):,} bytes",
        f"  items in flight at a kill: {flights[0]} to {flights[-1]}, median"
        f" {flights[len(flights) // 2]} (at most {2 * CONCURRENCY})",
        f"  calls: {seen.calls:,}, of which repeated: {seen.repeated} (those of items in flight)",
        "  PRAGMA integrity_check: ok after each kill",
    )
    assert sum(map(bool, flights)) > CYCLES // 3
