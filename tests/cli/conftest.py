"""Fixtures for the tests of the command line."""

from __future__ import annotations

import io
import sys
from functools import partial

import anyio
import pytest
from http_server import OpenAIServer

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import SimulatedBackend
from mellea_like.backends.simulated import passes
from mellea_like.batch import sample_many
from mellea_like.cli.main import main


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command(capfd, monkeypatch):
    """Run the command in this process; return the exit code, standard output and standard error."""

    def run(*arguments, stdin=None):
        if stdin is not None:
            data = stdin.encode() if isinstance(stdin, str) else stdin
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def sample(command):
    """Run ``sample x`` against a server with these answers; return the results and the server."""

    def run(*arguments, answers=(), choose=None):
        with OpenAIServer(*answers, choose=choose) as server:
            there = ("--base-url", server.url, "--model", "m")
            return *command("sample", "x", *there, *arguments), server

    return run


@pytest.fixture(scope="session")
def write_journal(tmp_path_factory):
    """Write the journal of a run in which half of the draws pass; return its path."""

    async def go_through(path, source, budgets, more):
        backend = SimulatedBackend(seed=3, median=0.0, pass_rate=0.5)
        strategy = RejectionSamplingStrategy(backend, requirements=[passes], **budgets)
        async with sample_many(strategy, source, concurrency=4, journal=path, **more) as results:
            async for _ in results:
                pass

    def write(source, budgets, **more):
        path = tmp_path_factory.mktemp("journal") / "run.db"
        anyio.run(partial(go_through, path, source, budgets, more))
        return path

    return write
