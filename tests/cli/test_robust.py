"""What should not happen, and does: closed streams, missing packages, interrupts at odd moments."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import COMMAND, environment
from rich.text import Text

from mellea_like.cli.live import make_console
from mellea_like.cli.main import main
from mellea_like.cli.progress import Progress
from mellea_like.cli.terminal import is_terminal, write


class Interrupted(io.RawIOBase):
    def readable(self):
        return True

    def readinto(self, buffer):
        raise KeyboardInterrupt


@contextlib.contextmanager
def standard_input(stream):
    kept, sys.stdin = sys.stdin, stream
    try:
        yield
    finally:
        sys.stdin = kept


def test_an_interrupt_before_anything_runs_is_one_too(command):
    with standard_input(io.TextIOWrapper(Interrupted(), encoding="utf-8")):
        code, out, err = command("sample", "-")
    assert (code, out, err) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize("stream", [None, io.StringIO("text")])
def test_standard_input_that_has_no_bytes_is_bad_usage(command, stream):
    with standard_input(stream):
        code, _, err = command("sample", "-")
    assert code == 2
    assert err.startswith("mellea-like: standard input can't be read: ")


def test_on_a_terminal_it_says_that_it_reads(command):
    class FromTerminal(io.TextIOWrapper):
        def isatty(self):
            return True

    with standard_input(FromTerminal(io.BytesIO(b"Write about lists."))):
        code, _, err = command("sample", "-")
    assert code == 0
    assert err.startswith("Reading the instruction from the terminal: end it with Ctrl-D.\n")


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("regex", ["--check", "regex:x"], "checks"),
        ("jsonschema", ["--schema", "SCHEMA"], "checks"),
        ("openai", ["--base-url", "http://127.0.0.1:9/v1"], "openai"),
        ("xllamacpp", ["--gguf", "SCHEMA"], "llama"),
    ],
)
def test_a_missing_package_is_a_sentence_that_names_the_extra(tmp_path, package, arguments, extra):
    file = tmp_path / "file"
    file.write_text("{}")
    given = [str(file) if argument == "SCHEMA" else argument for argument in arguments]
    hide = f"import sys; sys.modules[{package!r}] = None; from mellea_like.cli.main import main"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{hide}; sys.exit(main(['sample', 'x', '-q', *sys.argv[1:]]))",
            *given,
        ],
        capture_output=True,
        env=environment(),
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert f"pip install 'mellea-like[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_error_that_nobody_foresaw_is_a_sentence_too():
    # Writing to a full disk fails when the result is there already.
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "sample", "x", "-q"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
    assert done.returncode == 3
    assert b"mellea-like: OSError: " in done.stderr
    assert b"No space left on device (--debug shows where)" in done.stderr
    assert b"Traceback" not in done.stderr


def test_it_runs_in_a_thread_where_signals_are_someone_elses(capfd):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["sample", "x", "-q"])))
    thread.start()
    thread.join()
    assert codes == [0]
    assert capfd.readouterr().out.strip()


def test_a_closed_stream_is_no_terminal_and_takes_nothing():
    stream = io.StringIO()
    stream.close()
    assert not is_terminal(stream)
    write("text", stream)


def test_a_console_whose_reader_left_writes_nothing_more():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = make_console(Broken())
    console.print(Text("lost"))
    console.print(Text("lost"))
    assert console.quiet


def test_a_request_outside_an_iteration_has_no_row():
    progress = Progress(loop=1, concurrency=1)
    progress._move(None, None, "generating")
    assert progress.rows[0].state == "waiting"
