"""Fixtures that the tests of batches share."""

from __future__ import annotations

from pathlib import Path

import pytest

# Imported here, because the first test that needs it would read files in its event loop.
import mellea_like.batch.journal.journal  # noqa: F401


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a run's journal, which doesn't exist yet."""
    return tmp_path / "run.db"
