"""examples/openai_server.py against a real llama.cpp server with a model made for the test."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import command_line
import pytest

pytest.importorskip("xllamacpp")

from tiny_gguf import build_bigram_gguf

from mellea_like.backends.llama import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
KEY = "a-key-for-the-test"
CORPUS = ROOT / "examples" / "harbour_notes.txt"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "harbour.gguf"
    table = build_bigram_gguf(CORPUS.read_text(encoding="utf-8"), path)
    size = {"context_size": 2048, "concurrency": 3, "threads": 1}
    config = {"name": "harbour", "api_key": KEY, **size}
    process = ServerProcess(path, config)
    try:
        deadline = time.monotonic() + 30
        while (address := process.address()) is None:
            assert time.monotonic() < deadline, "the server was not ready in time"
            time.sleep(0.01)
        yield f"{address}/v1", table
    finally:
        process.stop()


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "examples" / "openai_server.py")
    return command_line.run(*arguments, script=script, **more)


def test_it_prints_a_text_of_the_servers_model(server):
    url, table = server
    done = run("--words=60", OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stdout + done.stderr
    reply = re.search(r"^harbour: (.+)$", done.stdout, re.MULTILINE)
    assert reply is not None, done.stdout
    assert table.allows(reply[1])
    usage = r"^\d+ requests?, \d+ tokens in, \d+ out"
    assert re.search(usage, done.stdout, re.MULTILINE), done.stdout


def test_a_wrong_key_ends_in_one_sentence_on_stderr(server):
    done = run("--base-url", server[0], OPENAI_API_KEY="wrong")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("No text: ")
    assert "Traceback" not in done.stderr
