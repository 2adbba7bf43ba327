"""What the tests that kill processes have: a place to say what they have seen."""

from __future__ import annotations

import pytest


@pytest.fixture
def figures(record_property):
    """Have lines written when all tests have ended, also those of another process."""

    def write(*lines: str) -> None:
        record_property("figures", "\n".join(lines))

    return write


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(text)
