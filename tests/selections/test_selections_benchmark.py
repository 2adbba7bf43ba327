"""The benchmark of selections: what it replays meets its targets, whatever the machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import selections  # noqa: E402


@pytest.mark.timeout(180)
@pytest.mark.parametrize("table", ["votes", "first", "coverage"])
def test_the_replayed_draws_meet_the_targets(table, capsys, monkeypatch):
    monkeypatch.setattr(selections, "missed", [])
    selections.TABLES[table](10 if table == "coverage" else 2)
    assert "|--:|" in capsys.readouterr().out
    assert selections.missed == []
