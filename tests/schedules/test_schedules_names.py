"""The package of schedules: every name is there, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mellea_like.sampling import schedules


def test_every_public_name_is_there():
    for name in schedules.__all__:
        assert getattr(schedules, name).__name__ == name
    assert set(schedules.__all__) <= set(dir(schedules))


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Lazy'"):
        schedules.Lazy  # noqa: B018 (its absence is what is tested)


def test_importing_the_library_imports_no_schedule():
    code = """
        import sys, mellea_like
        there = {name for name in sys.modules if name.startswith("mellea_like.sampling.schedules.")}
        print(*sorted(name.rpartition(".")[2] for name in there))
    """
    done = subprocess.run(
        [sys.executable, "-c", "if True:" + code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
