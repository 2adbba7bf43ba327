"""The pictures of reports in the documentation can be taken again, and then show the same."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"


def size_of(png: Path) -> tuple[int, int]:
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", head[16:])


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    command = [sys.executable, PICTURES / "report.py", directory]
    subprocess.run(command, check=True, env=environ, timeout=55)
    return directory


@pytest.mark.parametrize("name", ["report.png", "waterfall.png"])
def test_a_picture_taken_again_shows_as_much(taken, name):
    (width, height), (again, tall) = size_of(PICTURES / name), size_of(taken / name)
    assert width == again
    assert tall == pytest.approx(height, abs=200)  # Another reply is longer, or has other faults.
    ratio = (taken / name).stat().st_size / (PICTURES / name).stat().st_size
    assert ratio == pytest.approx(1, abs=0.4)
