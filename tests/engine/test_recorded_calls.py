"""Random calls come out as they did when they were recorded, in everything that users can see.

After an intended change, name it in ``differential.INTENDED``, or record the calls again:
``python tests/support/differential.py record 500`` with the path below.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from differential import INTENDED, differences, played, recorded
from oracle_trace import LOOPS

RECORDING = Path(__file__).with_name("recorded_calls.jsonl.xz")
PARTS = [0, *(pytest.param(part, marks=pytest.mark.storm) for part in range(1, 5))]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("loop", LOOPS)
def test_calls_come_out_as_recorded(loop, part):
    seeds = range(part * 100, part * 100 + 100)
    old = {key: trace for key, trace in recorded(RECORDING) if key[0] in seeds and key[1] == loop}
    assert len(old) == len(seeds)
    found = {key: differences(trace, played(*key)) for key, trace in old.items()}
    differing = {seed: list(map(str, new[:3])) for (seed, _), new in found.items() if new}
    assert not differing, f"{len(differing)} calls differ; replay one with: differential.py show"


def test_intended_differences_have_reasons():
    assert all(place and reason for place, reason in INTENDED)
