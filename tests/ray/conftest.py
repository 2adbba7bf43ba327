"""Scenes on a real cluster in a separate network namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray_namespace import run_in_namespace

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """Play all scenes on one cluster, because starting a cluster takes most of the time."""
    directory = tmp_path_factory.mktemp("scenes")
    run_in_namespace([HERE / "scenes.py", directory], directory, 480)
    return json.loads((directory / "outcome.json").read_text(encoding="utf-8"))


@pytest.fixture
def scene(outcomes):
    """Return a scene's outcome."""

    def said(name):
        assert "failed" not in outcomes[name], outcomes[name]["failed"]
        return outcomes[name]

    return said
