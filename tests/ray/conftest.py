"""Scenes on a real cluster, in a network namespace of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray_namespace import run_in_namespace

HERE = Path(__file__).parent


@pytest.fixture
def scene(tmp_path):
    """Run a scene, and return what it says."""

    def play(name, seconds=130):
        run_in_namespace([HERE / "scenes.py", name, tmp_path], tmp_path, seconds)
        return json.loads((tmp_path / "outcome.json").read_text(encoding="utf-8"))

    return play
