"""A place to run scenes: a network namespace of their own, with nothing left behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import namespace

HERE = Path(__file__).parent


@pytest.fixture
def in_namespace(tmp_path):
    """Run a program in a namespace; what it printed is shown where it fails."""
    pytest.importorskip("ray", reason="Ray is not installed: nox -s ray installs it")
    options, why = namespace.way()
    if not options:
        pytest.skip(f"this machine can't make a network namespace: {why}")

    def run(arguments, seconds):
        log = tmp_path / "log.txt"
        environ = os.environ | {
            "HOME": str(tmp_path),  # Ray keeps a token there.
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
        }
        for name in [
            n for n in environ if n.startswith(("COV_", "COVERAGE_")) or n == "RAY_ADDRESS"
        ]:
            del environ[name]
        outside = namespace.Outside([sys.executable, *map(str, arguments)], log, environ)
        try:
            status = outside.wait(seconds)
        finally:
            outside.stop()
            printed = log.read_text(encoding="utf-8", errors="replace")
            sys.stdout.write(printed[-8000:])
        assert status == 0
        assert outside.left() == []
        return printed

    return run


@pytest.fixture
def scene(in_namespace, tmp_path):
    """Run a scene, and return what it says."""

    def play(name, seconds=100):
        in_namespace([HERE / "scenes.py", name, tmp_path], seconds)
        return json.loads((tmp_path / "outcome.json").read_text(encoding="utf-8"))

    return play
