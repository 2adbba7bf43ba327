"""Every file in examples/ runs offline to exit code 0, and prints what it says it does.

Lines ``# expect: TEXT`` in an example stand for lines of its output, in their order; ``...`` in
them stands for anything. An example that ``# needs: an OpenAI-compatible server`` gets one: a real
llama.cpp server on the loopback, with a model that is made for the test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_gguf import build_bigram_gguf

from mellea_like.backends.llama_process import ServerProcess

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def comments(script: Path, kind: str) -> list[str]:
    return re.findall(rf"^# {kind}: (.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)


def run(script: Path, directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    secret = ("OPENAI_", "OTEL_", "MELLEA_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(secret)}
    return subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=directory,
        env=environ | more,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=50,
    )


def unmet(expected: list[str], printed: str) -> list[str]:
    """Return the expected lines that are not found, in order, among the printed ones."""
    lines = iter(printed.splitlines())
    for position, text in enumerate(expected):
        pattern = ".*".join(map(re.escape, text.split("...")))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            return expected[position:]
    return []


KEY = "a-key-for-the-test"
SEA = "The sea is wide and blue.\nThe sea is the home of the fish.\nA wide sea is never quiet.\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a llama.cpp server; return the environment that points to it."""
    model = tmp_path_factory.mktemp("model") / "sea.gguf"
    build_bigram_gguf(SEA, model)
    config = {"name": "sea", "api_key": KEY, "context_size": 512, "parallel": 4, "threads": 1}
    process = ServerProcess(model, config)
    try:
        process.start()
        give_up = time.monotonic() + 30
        while (address := process.address()) is None:
            assert time.monotonic() < give_up, "the server did not start"
            time.sleep(0.02)
        yield {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": KEY}
    finally:
        process.stop()


@pytest.mark.parametrize("script", [pytest.param(path, id=path.stem) for path in SCRIPTS])
def test_example_runs_and_prints_what_it_promises(script, tmp_path, request):
    needs = comments(script, "needs")
    assert needs in ([], ["an OpenAI-compatible server"]), "nothing here serves that"
    done = run(script, tmp_path, **(request.getfixturevalue("server") if needs else {}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not unmet(comments(script, "expect"), done.stdout), done.stdout


def test_every_example_says_what_to_expect():
    assert SCRIPTS
    alone = [script for script in SCRIPTS if not comments(script, "needs")]
    assert [script.name for script in alone if not comments(script, "expect")] == []


@pytest.mark.parametrize(
    ("expected", "missing"),
    [
        ([], []),
        (["one", "three"], []),
        (["t...", "three"], []),
        (["three", "one"], ["one"]),
        (["on"], ["on"]),
        (["four", "one"], ["four", "one"]),
    ],
)
def test_expected_lines_are_compared_whole_and_in_order(expected, missing):
    assert unmet(expected, "one\ntwo\nthree\n") == missing
