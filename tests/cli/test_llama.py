"""Runs against a llama.cpp server that the command starts for a GGUF file."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("xllamacpp")

from command_line import Terminal, run
from leftovers import children, wait_until
from tiny_gguf import build_bigram_gguf

TEXT = "The heron waits beside the water.\nThe heron stands among the reeds.\n"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "heron.gguf"
    build_bigram_gguf(TEXT, path)
    return str(path)


def test_a_model_file_is_served_and_asked(gguf):
    done = run("sample", "Write.", "--gguf", gguf, "--check", "words>=1", "--check", "starts:The")
    assert done.returncode == 0, done.stderr
    assert "heron" in done.stdout
    assert done.stderr.startswith(f"Starting a llama.cpp server for {gguf} ...\nBackend: llama, ")


def test_a_schema_constrains_what_the_model_writes(gguf, tmp_path):
    file = tmp_path / "schema.json"
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    file.write_text(json.dumps({**schema, "additionalProperties": False}))
    done = run("sample", "Write.", "--gguf", gguf, "--schema", str(file), "--json", "--attempts=2")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["value"]) == {"name"}


def test_a_file_that_is_no_model_is_a_sentence(tmp_path):
    file = tmp_path / "not.gguf"
    file.write_text("nothing of the kind")
    done = run("sample", "Write.", "--gguf", str(file), "--quiet")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("mellea-like: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_server_behind(gguf, number):
    arguments = ["sample", "Write.", "--gguf", gguf, "--check", "chars<1", "--attempts=250"]
    with Terminal(*arguments) as terminal:
        terminal.wait_for("generating")
        servers = children(terminal.process.pid)
        assert servers
        # To the whole group, as a terminal does on Ctrl-C.
        os.killpg(terminal.process.pid, number)
        code, _ = terminal.finish()
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    # None is in flight if the signal comes between two draws of a model as quick as this one.
    assert re.search(r"Interrupted(: cancelled [1-4] calls? in flight)?\.", terminal.plain)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers), 5)
