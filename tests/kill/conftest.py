"""A fixture with which tests that kill processes report figures."""

from __future__ import annotations

import pytest


@pytest.fixture
def figures(record_property):
    """Print lines when all tests have ended, including lines from other processes."""

    def write(*lines: str) -> None:
        record_property("figures", "\n".join(lines))

    return write


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(text)
