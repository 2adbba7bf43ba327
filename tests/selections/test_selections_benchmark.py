"""The benchmark of selections: what it replays meets its targets, whatever the machine."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import selections  # noqa: E402


@pytest.mark.storm
@pytest.mark.timeout(180)
@pytest.mark.parametrize("table", ["votes", "first", "coverage"])
def test_the_replayed_draws_meet_the_targets(table, capsys, monkeypatch):
    monkeypatch.setattr(selections, "missed", [])
    selections.TABLES[table](10 if table == "coverage" else 2)
    assert "|--:|" in capsys.readouterr().out
    assert selections.missed == []


def test_a_replayed_escalation_costs_less_than_the_big_model_alone_and_covers_more():
    tasks = [list(zip(*task, strict=True)) for task in selections.graded()[1::2]]
    runs = selections.escalation_runs(tasks, 0.5, "GSM8K/1", 2)

    def mean(small, after=None):
        costs, covered = zip(*selections.escalated(runs, small, 4, after), strict=True)
        return statistics.fmean(costs), statistics.fmean(covered)

    alone, covered = mean(0)
    fixed, _ = mean(4)
    learnt, both = mean(8, selections.ExpectedCost(selections.PRICES))
    assert max(fixed, learnt) <= 0.65 * alone
    assert both >= covered
