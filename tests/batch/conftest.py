"""What the tests of batches share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a run's journal is to be."""
    return tmp_path / "run.db"
