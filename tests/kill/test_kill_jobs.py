"""A run by jobs that is killed at random moments finds its jobs again, and pays for none twice."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress

import jobs_run
import pytest
from jobs_server import jobs_server

from mellea_like.batch import read_items, read_run

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

ITEMS = 60
KILLS = 12
"""For each of three providers."""

SETTINGS = {
    "validating": 40.0,
    "work": 400.0,
    "window": 10.0**8,
    "faults": [
        {"on": "create", "fault": "lose", "after": 1, "times": 1},
        {"on": "create", "fault": "status_after", "after": 2, "times": 1},
        {"on": "download", "fault": "half", "after": 1, "times": 2},
        {"on": "look", "fault": "status", "after": 5, "times": 2, "status": 503},
    ],
}


@pytest.mark.parametrize("provider", ["openai", "anthropic", "mistral"])
def test_no_job_is_lost_or_paid_twice(tmp_path, provider, figures):
    moments = random.Random(provider)
    kills = sittings = 0
    with jobs_server(provider, tmp_path / "server.db", speed=1000, **SETTINGS) as server:
        while True:
            command = [
                sys.executable,
                jobs_run.__file__,
                tmp_path,
                provider,
                server.url,
                str(ITEMS),
            ]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            sittings += 1
            with subprocess.Popen(command, **pipes) as run:
                run.stdout.readline()
                if kills < KILLS:
                    with suppress(subprocess.TimeoutExpired):
                        run.wait(timeout=moments.uniform(0.0, 1.2))
                    if run.poll() is None:
                        run.kill()
                        kills += 1
                        continue
                _, said = run.communicate()
                assert run.returncode == 0, said
                break
        bill, jobs, paid = map(server.ask, ("bill", "jobs", "paid"))
    items = list(read_items(tmp_path / "run.db"))
    counts = read_run(tmp_path / "run.db")["counts"]
    assert counts["passed"] + counts["failed"] == len(items) == ITEMS
    assert bill["direct"]["requests"] == 0
    spent = [item["usage"] for item in items]
    sent, received = (sum(u[name] for u in spent) for name in ("input_tokens", "output_tokens"))
    assert sum(u["requests"] for u in spent) == bill["jobs"]["requests"]
    assert sent * 1000 + received * 4000 == bill["jobs"]["nano"]
    assert len(set(map(tuple, paid))) == len(paid)
    draws = sum(len(item["trace"]["slices"]) for item in items)
    assert draws == bill["jobs"]["requests"]
    figures(f"{provider}: {kills} kills in {sittings} sittings, {len(jobs)} jobs for {draws} draws")
