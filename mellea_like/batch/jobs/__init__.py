"""Jobs of providers' batch APIs: a run whose rounds are submitted as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["jobs_path"]


def jobs_path(journal: Path) -> Path:
    """Return the path of the file that remembers the jobs of a journal's run."""
    return journal.with_name(f"{journal.name}-jobs")
