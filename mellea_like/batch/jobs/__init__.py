"""Runs that submit the requests of each round together, as jobs of a provider's batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def jobs_path(journal: Path) -> Path:
    """Return the path of the file that records the jobs of a journal's run."""
    return journal.with_name(f"{journal.name}-jobs")
