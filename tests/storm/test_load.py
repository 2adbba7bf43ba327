"""Thousands of calls at once through one limiter: they finish, within bounds, and leave nothing.

What a call takes is the same among ten thousand: ``benchmarks/load.py --check`` has that many.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "load.py"


def run_load(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), "--check", "--only", "calls", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_thousands_of_calls_at_once_finish_in_52_kibibytes_each_and_leave_nothing(loop):
    table = run_load("--loops", loop, "--rounds", "1", "--calls", "2500", "--collectors")
    assert table.count(f"| {loop} |") == 1


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_thousand_calls_at_once_finish_through_an_adaptive_limiter_too(loop):
    arguments = ["--loops", loop, "--limiters", "adaptive", "--rounds", "1", "--calls", "1000"]
    run_load(*arguments, "--collectors")


def test_some_hundred_calls_at_once_finish_and_leave_nothing():
    arguments = ["--loops", "trio", "--limiters", "adaptive", "--rounds", "1", "--calls", "300"]
    assert "| trio | adaptive |" in run_load(*arguments, "--collectors")
