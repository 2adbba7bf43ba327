"""What a page is made of is in the package that users install."""

from __future__ import annotations

import tarfile
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = sorted(path.name for path in files("mellea_like.report").joinpath("templates").iterdir())


def test_the_parts_of_a_page_are_found():
    assert PARTS == [
        "base.html.jinja",
        "call.html.jinja",
        "dark.css",
        "macros.html.jinja",
        "page.css",
        "page.js",
        "run.html.jinja",
        "trace.css",
    ]


def test_they_are_in_the_wheel_and_in_the_source_distribution(tmp_path, monkeypatch):
    build = pytest.importorskip("hatchling.build", reason="only a build has hatchling")
    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / build.build_wheel(str(tmp_path))) as archive:
        wheel = archive.namelist()
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        sdist = archive.getnames()
    for part in PARTS:
        assert f"mellea_like/report/templates/{part}" in wheel
        assert any(name.endswith(f"/mellea_like/report/templates/{part}") for name in sdist)
