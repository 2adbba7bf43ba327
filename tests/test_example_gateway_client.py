"""examples/gateway_client.py against ``mellea-like serve`` with examples/gateway.yaml."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import command_line
import pytest
from serve_kit import serving

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="module")
def url():
    with serving("--config", str(EXAMPLES / "gateway.yaml"), "--port", "0") as (_, url):
        yield url


def run(url: str) -> subprocess.CompletedProcess[str]:
    return command_line.run("--base-url", url, script=str(EXAMPLES / "gateway_client.py"))


def test_it_prints_replies_that_have_passed(url):
    done = run(url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "models: short, short-or-best"
    reply = lines[1].removeprefix("reply: ")
    assert len(reply.split()) <= 12
    assert re.fullmatch(r"it took \d+ draws and \d+ tokens", lines[2])
    streamed = next(line for line in lines if line.startswith("streamed: "))
    assert "string" in streamed
    assert any(re.match(r"nothing passed in 8 draws: .*zebra", line) for line in lines)
    assert lines[-1] in {"passed: true", "passed: false"}


def test_no_gateway_ends_in_one_sentence_on_stderr():
    done = run("http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert done.stderr.startswith("No reply: ")
    assert "Traceback" not in done.stderr
