"""The package of schedules costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_library_imports_no_schedule():
    code = "import sys, mellea_like; print(*(n for n in sys.modules if 'sampling.schedules' in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
