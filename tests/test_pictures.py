"""The pictures of the documentation are what their script draws."""

from __future__ import annotations

import logging
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


@pytest.fixture(scope="module")
def draw():
    spec = spec_from_file_location("draw", PICTURES / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_up_to_date(draw, caplog):
    caplog.set_level(logging.CRITICAL)
    for name, picture in draw.PICTURES.items():
        drawn = (PICTURES / name).read_text(encoding="utf-8")
        assert drawn == picture(), f"{name}: run python docs/pictures/draw.py"


@pytest.mark.parametrize("name", ["report.png", "waterfall.png"])
def test_pictures_of_reports_are_small(name):
    # What they show is compared in tests/browser.
    assert 20_000 < (PICTURES / name).stat().st_size < 200_000
