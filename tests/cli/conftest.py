"""What the command line's tests share."""

from __future__ import annotations

import pytest

from mellea_like.cli.main import main


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command(capfd):
    """Run the command in this process; gives the exit code, standard output and standard error."""

    def run(*arguments):
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return run
