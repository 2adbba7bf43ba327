"""The pictures of the documentation are what their script draws."""

from __future__ import annotations

import json
import logging
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def script(name):
    spec = spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def draw():
    return script("draw")


def test_pictures_are_up_to_date(draw, caplog):
    caplog.set_level(logging.CRITICAL)
    for name, picture in draw.PICTURES.items():
        drawn = (PICTURES / name).read_text(encoding="utf-8")
        assert drawn == picture(), f"{name}: run python docs/pictures/draw.py"


def test_the_picture_of_the_peers_and_their_table_show_the_same_figures(draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "draw", draw)
    assert (PICTURES / "peers.svg").read_text(encoding="utf-8") == script("peers").peers()
    rows = json.loads((PICTURES / "peers.json").read_text(encoding="utf-8"))["rows"]
    page = (PICTURES.parent / "benchmarks.md").read_text(encoding="utf-8")
    for row in rows:
        begin = f"| {row['name']} | {row['lanes']} | {row['p50']:.2f} | {row['p95']:.2f} | "
        assert begin in page, "run python benchmarks/peers.py --write"


@pytest.mark.parametrize("name", ["report.png", "waterfall.png"])
def test_pictures_of_reports_are_small(name):
    # What they show is compared in tests/browser.
    assert 20_000 < (PICTURES / name).stat().st_size < 200_000
