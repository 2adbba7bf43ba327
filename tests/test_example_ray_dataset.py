"""The example of a Ray dataset, on a real local cluster in a network namespace of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ray_namespace import run_in_namespace

pytestmark = [pytest.mark.ray, pytest.mark.timeout(160)]


def test_example_samples_within_the_budget_and_goes_on(tmp_path):
    script = Path(__file__).resolve().parent.parent / "examples" / "ray_dataset.py"
    promised = re.findall(r"^# expect: (.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    printed = run_in_namespace([script], tmp_path, 130)
    lines = [".*".join(map(re.escape, line.split("..."))) for line in promised]
    assert len(lines) == 3
    lines_printed = iter(printed.splitlines())
    for line in lines:
        assert any(re.fullmatch(line, other) for other in lines_printed), line
