"""Signals at each moment of a command's life, sent to real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from command_line import COMMAND, environment, start
from http_server import Answer, OpenAIServer
from leftovers import children, wait_until
from rows_kit import write_rows

IN_THE_BACKGROUND = '"$@" & echo "pid $!"; wait $!; echo "status $?"'
"""A shell without a terminal makes commands that it starts with & ignore SIGINT."""


@pytest.fixture
def started():
    """Start processes with pipes, and kill those that still run at the end."""
    processes = []

    def begin(*command):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(PYTHONUNBUFFERED="1"),
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(process, text):
    """Read lines until one contains a text; return that line."""
    for line in process.stdout:
        if text in line:
            return line
    pytest.fail(f"no {text!r}")


def arguments_of(command, folder, url):
    write_rows(folder / "in.jsonl", 3)
    (folder / "c.yaml").write_text(
        "upstreams: {a: {kind: markov}}\nmodels: {m: {upstream: a}}\nserver: {port: 0}\n"
    )
    there = ("--base-url", url, "--model", "m")
    return {
        "sample": ("sample", "x", *there),
        "batch": ("batch", str(folder / "in.jsonl"), "-p", "{{ n }}", "-o", "-", *there),
        "watch": ("watch", str(folder), "--grace", "30", "--", "sleep", "60"),
        "serve": ("serve", "-c", str(folder / "c.yaml")),
    }[command]


@pytest.mark.parametrize("command", ["sample", "batch", "watch", "serve"])
def test_what_a_script_started_in_the_background_ends_at_a_sigterm(started, tmp_path, command):
    with OpenAIServer(Answer("late", wait=60.0)) as server:
        arguments = arguments_of(command, tmp_path, server.url)
        script = started("bash", "-c", IN_THE_BACKGROUND, "bash", *COMMAND, *arguments)
        pid = int(read_until(script, "pid ").split()[1])
        if command == "watch":
            wait_until(lambda: "sleep" in map(name_of, children(pid)))
        elif command == "serve":
            read_until(script, "Listening")
        else:
            wait_until(lambda: server.in_flight)
        os.kill(pid, signal.SIGINT)
        time.sleep(0.2)
        os.kill(pid, signal.SIGTERM)
        out, _ = script.communicate(timeout=15)
        assert out.splitlines()[-1] == f"status {0 if command == 'serve' else 143}"
        assert "Traceback" not in out
        wait_until(lambda: not server.in_flight)


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()


UNSTOPPABLE = """
import sys, time
import anyio
from mellea_like.__main__ import main
from mellea_like.backends import MarkovBackend

async def generate(self, request):
    while True:
        try:
            print("asked", file=sys.stderr, flush=True)
            time.sleep(0.01)
            await anyio.sleep_forever()
        except BaseException:
            continue

MarkovBackend.generate = generate
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_waits_for_nothing(started, tmp_path, number, code):
    write_rows(tmp_path / "in.jsonl", 1)
    batch = ("batch", str(tmp_path / "in.jsonl"), "-p", "{{ n }}", "-o", "-", "--backend", "markov")
    process = started(sys.executable, "-c", UNSTOPPABLE, *batch)
    for _ in range(2):
        read_until(process, "asked")
        process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == code
    assert out.splitlines()[-1].startswith("Interrupted after 0 of 1 rows.")
    assert "Traceback" not in out


WHILE_IT_IMPORTS = """
import signal, sys
from mellea_like.__main__ import main

class Hang:
    def find_spec(self, name, path=None, target=None):
        print("importing", name, flush=True)
        signal.pause()

sys.meta_path.insert(0, Hang())
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_the_package_is_imported_is_told(started, number, code):
    process = started(sys.executable, "-c", WHILE_IT_IMPORTS)
    assert read_until(process, "importing") == "importing mellea_like.cli\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (code, "Interrupted.\n")


def test_the_command_starts_where_nothing_is_imported_yet():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["scripts"] == {"mellea-like": "mellea_like.__main__:main"}


AT_THE_END = """
import signal, sys
from mellea_like.__main__ import main

class Last:
    def __del__(self):
        signal.raise_signal(signal.{})

sys.last = Last()
sys.exit(main())
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_interpreter_ends_changes_nothing(started, number):
    process = started(sys.executable, "-c", AT_THE_END.format(number), "--version")
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out.split()[0]) == (0, "mellea-like")


def test_an_interrupt_at_any_gap_after_the_first_ends_with_the_same_code(tmp_path):
    with OpenAIServer(Answer("late", wait=60.0)) as server:
        for gap in (0.0, 0.05):
            process = start(*arguments_of("batch", tmp_path, server.url))
            wait_until(lambda: server.in_flight == 3)
            process.send_signal(signal.SIGINT)
            time.sleep(gap)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=15)
            assert process.returncode == 130
            assert b"Traceback" not in err
            wait_until(lambda: not server.in_flight)
