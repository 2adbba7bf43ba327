"""The benchmark of rounds meets its target with replayed draws, on any machine."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import rounds  # noqa: E402


def test_the_replayed_draws_meet_the_target(monkeypatch):
    monkeypatch.setattr(rounds, "BUDGETS", (2,))
    # The mean of forty orders is 1.26, and that of three within 0.1 of it.
    assert rounds.misses(rounds.measure(3), times=1.16) == []
