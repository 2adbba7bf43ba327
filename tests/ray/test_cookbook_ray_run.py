"""The cookbook's run on Ray, on a real local cluster in a separate network namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs_pages import blocks_of
from ray_namespace import run_in_namespace

pytestmark = [pytest.mark.ray, pytest.mark.timeout(160)]

ROOT = Path(__file__).resolve().parents[2]


def test_tickets_are_labelled_within_the_budget_and_the_rest_in_a_second_run(tmp_path):
    printed = run_in_namespace([ROOT / "examples" / "cookbook" / "ray_run.py"], tmp_path, 130)
    page = ROOT / "docs" / "cookbook" / "ray-run.md"
    (shown,) = (block.text for block in blocks_of(page) if block.language == "text")
    for line in shown.splitlines():
        if not line.startswith(("first:", "then:")):  # Their figures are up to the actors' pace.
            assert f"\n{line}\n" in printed, line
    first = re.search(r"^first: (\d+) of 60 labelled", printed, re.MULTILINE)
    then = re.search(r"^then: 60 of 60, (\d+) of them from the journals$", printed, re.MULTILINE)
    assert 0 < int(first[1]) < 50  # Requests, of which one in four brought no label.
    assert int(then[1]) >= int(first[1])
