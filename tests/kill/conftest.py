"""What the tests that kill processes have: a place to say what they have seen."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def figures(capsys):
    """Write lines to the terminal, also where pytest keeps what tests print."""

    def write(*lines: str) -> None:
        with capsys.disabled():
            sys.stdout.write("\n" + "".join(f"{line}\n" for line in lines))

    return write
