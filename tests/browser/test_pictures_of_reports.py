"""The pictures of reports in the documentation can be taken again."""

from __future__ import annotations

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

pytestmark = pytest.mark.browser

SCRIPT = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures" / "report.py"


def test_pictures_can_be_taken_again(chromium, tmp_path):
    script = runpy.run_path(str(SCRIPT))
    script["record"].__globals__["ITEMS"] = 30
    # Playwright has an event loop of its own in this thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, script["record"], tmp_path / "run.db").result()
    script["shoot"](chromium, script["pages"](tmp_path / "run.db"), tmp_path)
    for name in ("report.png", "waterfall.png"):
        png = (tmp_path / name).read_bytes()
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(png) > (SCRIPT.parent / name).stat().st_size / 2
