"""The page of extras has a row for each extra of the package, and for no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_page_has_a_row_for_each_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    page = (ROOT / "docs" / "extras.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(project["optional-dependencies"])
