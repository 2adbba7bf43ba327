"""Four processes share a budget and a rate through a file, and some of them are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from itertools import cycle
from math import inf

import pytest
import store_run

from mellea_like.limits import SQLiteStore

pytestmark = [pytest.mark.storm, pytest.mark.timeout(300)]

PROCESSES = 4
CALLERS = 64
MONEY = 10**15


class Fleet:
    """Processes that share a file, with the lines that each has written."""

    def __init__(self, folder, what, longest=0.01) -> None:
        self.store = SQLiteStore(folder / "store.db")
        self.folder, self.what, self.longest = folder, what, longest
        self.logs, self.processes = [], []
        self.loops = cycle(["asyncio", "trio"])

    def __enter__(self):
        for _ in range(PROCESSES):
            self.start()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.store.close()

    def start(self) -> None:
        log = self.folder / f"log{len(self.logs)}"
        arguments = (next(self.loops), self.store.path, log, CALLERS, self.longest)
        command = [sys.executable, store_run.__file__, *map(str, arguments), json.dumps(self.what)]
        self.logs.append(log)
        self.processes.append(subprocess.Popen(command))

    def kill_one(self) -> None:
        alive = [process for process in self.processes if process.poll() is None]
        if alive:
            one = random.choice(alive)
            one.kill()
            one.wait()

    def sums(self):
        return self.store.account("b", (inf,) * 4).look()

    def lines(self):
        texts = [log.read_text(encoding="ascii") for log in self.logs if log.exists()]
        return [line.split() for text in texts for line in text.splitlines()]

    def charged(self):
        ends = [line for line in self.lines() if line[0] == "end"]
        return len(ends), sum(int(line[1]) for line in ends), sum(int(line[2]) for line in ends)


LIMITS = [{"requests": 2000}, {"output_tokens": 20_000}, {"money": 40_000}]


@pytest.mark.parametrize("what", LIMITS, ids=["requests", "tokens", "money"])
@pytest.mark.parametrize("kills", [0, 2])
def test_processes_never_exceed_a_budget_and_a_death_loses_only_what_was_open(
    tmp_path, what, kills
):
    [(name, most)] = what.items()
    with Fleet(tmp_path, what, longest=0.3 if kills else 0.01) as fleet:
        while any(process.poll() is None for process in fleet.processes):
            sums = fleet.sums()
            taken = sums.spent.plus(sums.reserved)
            assert taken._replace(money=taken.money / MONEY)._asdict()[name] <= most
            if kills and sums.spent.requests > 100:
                fleet.kill_one()
                fleet.start()
                kills -= 1
            time.sleep(0.05 if not kills else random.uniform(0, 0.3))
        assert {process.wait() for process in fleet.processes} <= {0, -9}
        requests, tokens, money = fleet.charged()
        sums = fleet.sums()
        deaths = sum(process.wait() == -9 for process in fleet.processes)
    assert deaths == len(fleet.processes) - PROCESSES
    assert not kills
    spent = sums.spent
    assert sums.reserved.requests == 0
    # A process may die between its charge and its line.
    assert requests <= spent.requests <= requests + deaths
    assert tokens <= spent.output_tokens <= tokens + 30 * deaths
    assert money <= spent.money / MONEY <= money + 65 * deaths
    left = most - {"requests": requests, "output_tokens": tokens, "money": money}[name]
    assert 0 <= left <= {"requests": deaths, "output_tokens": 30, "money": 65}[name] + 65 * deaths


def test_a_rate_holds_within_two_percent_across_processes(tmp_path):
    seconds, rate = 8.0, 6000
    what = {"per_minute": rate, "burst": 0.05, "seconds": seconds}
    with Fleet(tmp_path, what) as fleet:
        assert {process.wait() for process in fleet.processes} == {0}
        went = sorted(float(line[1]) for line in fleet.lines() if line[0] == "go")
    a_second, burst = rate / 60, rate / 60 * 0.05
    whole = went[-1] - went[0]
    assert 0.98 * a_second <= (len(went) - burst) / whole <= 1.02 * a_second
    # A line is written a moment after its permit, and a busy machine makes that moment longer.
    late = 0.1 * a_second
    for first, after in zip(went, went[int(a_second + burst + late) :], strict=False):
        assert after - first >= 1
