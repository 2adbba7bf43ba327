"""Closed streams, missing packages, and interrupts at any moment."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from functools import partial

import pytest
from command_line import COMMAND, environment, run, start
from forked_command import can_fork, stand_in
from http_server import Answer, OpenAIServer
from rich.text import Text

from mellea_like.cli.console import make_console


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


def test_on_a_terminal_it_says_that_it_reads(command):
    class FromTerminal(io.TextIOWrapper):
        def isatty(self):
            return True

    with standard_input(FromTerminal(io.BytesIO(b"Write about lists."))):
        code, _, err = command("sample", "-")
    assert code == 0
    assert err.startswith("Reading the instruction from the terminal; press Ctrl-D to finish.\n")


@pytest.fixture
def without(tmp_path):
    """Return a function that runs the command as if a package weren't installed."""
    script = tmp_path / "without.py"
    script.write_text(
        """
import sys
package = sys.argv.pop(1)
for name in list(sys.modules):  # Where it is forked, they are imported already.
    if name.startswith(("mellea_like", f"{package}.")):
        del sys.modules[name]
sys.modules[package] = None
from mellea_like.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    )
    return partial(run, script=str(script))


BATCH = ("-p", "Say {{ text }}", "-o", "out.jsonl", "--backend", "markov")


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("typer", ["sample", "x"], "cli"),
        ("rich", ["sample", "x"], "cli"),
        ("regex", ["sample", "x", "--check", "regex:x"], "checks"),
        ("openai", ["sample", "x", "-q", "--base-url", "http://127.0.0.1:9/v1"], "openai"),
        ("xllamacpp", ["sample", "x", "-q", "--gguf", "FILE"], "llama"),
        ("jinja2", ["batch", "FILE", *BATCH], "cli"),
        ("jinja2", ["check", "FILE", "--check", "words<=3"], "cli"),
        ("pyarrow", ["batch", "FILE.parquet", *BATCH], "arrow"),
        ("starlette", ["serve", "-c", "FILE"], "serve"),
    ],
)
def test_a_missing_package_is_a_sentence_that_names_the_extra(
    without, tmp_path, package, arguments, extra
):
    for name in ("file", "file.parquet"):
        (tmp_path / name).write_text("{}")
    done = without(package, *(one.replace("FILE", f"{tmp_path}/file") for one in arguments))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"pip install 'mellea-like[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_error_that_nobody_foresaw_is_a_sentence_too(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text(
        """
import sys
from mellea_like.backends.markov import MarkovBackend
from mellea_like.cli.main import main
def broken(self, *args, **kwargs):
    raise RuntimeError("a bug")
MarkovBackend.__init__ = broken
sys.exit(main(sys.argv[1:]))
"""
    )
    done = run("sample", "x", "-q", "--backend", "markov", script=str(script))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("mellea-like: RuntimeError: ")
    assert done.stderr.endswith(" (--debug shows where)\n")
    assert len(done.stderr.splitlines()) == 1


def shell(script, *command):
    """Run a shell script in which ``"$@"`` is the command."""
    return subprocess.run(
        ["bash", "-c", script, "bash", *(command or COMMAND)],
        capture_output=True,
        env=environment(),
        check=False,
        text=True,
        timeout=50,
    )


DISK_FULL = b"mellea-like: can't write to standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", ["sample x -q --backend markov", "--help", "--version"])
def test_a_full_disk_is_a_sentence(arguments):
    with pathlib.Path("/dev/full").open("wb") as full:
        process = start(*arguments.split(), stdout=full)
        _, err = process.communicate()
    assert (process.returncode, err) == (3, DISK_FULL)


@pytest.fixture
def checks(tmp_path):
    """The commands that print figures about a file of replies."""
    replies = tmp_path / "replies.jsonl"
    replies.write_text('{"reply": "yes", "label": true}\n')
    verdict = Answer('{"passed": true, "reason": "so"}')
    with OpenAIServer(choose=lambda number, body: verdict) as server:
        judge = ("--require", "it agrees", "--judge", "m", "--judge-base-url", server.url)
        yield [(command, str(replies), *judge) for command in ("check", "judge-agreement")]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_a_sentence_of_a_table_too(checks, unbuffered):
    given = {"env": environment(PYTHONUNBUFFERED=unbuffered), "stderr": subprocess.PIPE}
    for arguments in checks:
        with pathlib.Path("/dev/full").open("wb") as full:
            command = [*COMMAND, *arguments]
            done = subprocess.run(command, stdout=full, check=False, timeout=50, **given)
        assert (done.returncode, done.stderr) == (3, DISK_FULL)


def test_nobody_has_to_read_a_table(checks):
    for arguments in checks:
        reader, writer = os.pipe()
        os.close(reader)
        process = start(*arguments, stdout=writer)
        os.close(writer)
        assert process.communicate()[1] == b""
        assert process.returncode == 0


@pytest.mark.parametrize("arguments", ["sample x", "--help"])
def test_a_closed_standard_output_is_a_sentence_before_anything_runs(arguments):
    done = shell(f'"$@" {arguments} >&-')
    assert done.returncode == 3
    assert done.stderr == ("mellea-like: standard output is closed\n")


@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full"])
def test_the_reply_comes_without_standard_error_too(where):
    done = shell(f'"$@" sample x --explain {where}')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_a_closed_standard_input_does_not_matter_unless_it_is_read():
    done = shell('"$@" sample x -q --backend markov <&-')
    assert (done.returncode, done.stderr) == (0, "")
    done = shell('"$@" sample - -q <&-')
    assert done.returncode == 2
    assert done.stderr.startswith("mellea-like: standard input is empty: describe what to")


def test_a_reader_that_leaves_early_is_no_error():
    script = '"$@" sample x --json --explain 2>&1 | head -c 10; echo; echo ${PIPESTATUS[0]}'
    done = shell(script, *(stand_in() if can_fork() else ()))
    assert done.stdout.splitlines()[1:] == ["0"]


@contextlib.contextmanager
def pipe_of(text):
    """Return the path of a pipe that a text comes through, as a shell's ``<(echo text)``."""
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    yield f"/dev/fd/{reader}"
    os.close(reader)


def test_a_corpus_and_a_schema_may_come_through_pipes(command):
    with pipe_of(b"The heron waits beside the water.") as corpus:
        code, _, err = command("sample", "x", "-q", "--corpus", corpus, "--check=contains:heron")
    assert code == 0, err
    with (
        OpenAIServer(Answer('{"name": "Ada"}')) as server,
        pipe_of(b'{"type": "object"}') as schema,
    ):
        code, out, err = command("sample", "x", "-q", "--base-url", server.url, "--schema", schema)
    assert (code, out) == (0, '{"name": "Ada"}\n'), err
    assert server.requests[0]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    "function", ["_run", "make_context", "make_requirements", "_sample", "_show"]
)
def test_an_interrupt_at_any_moment_is_told(command, function):
    def interrupt(frame, event, _):
        if event == "call" and frame.f_code.co_name == function:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        code, out, err = command("sample", "x", "-q", "--backend", "markov")
    finally:
        sys.setprofile(None)
    assert (code, out, err) == (130, "", "Interrupted.\n")


def test_a_console_whose_reader_left_writes_nothing_more():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = make_console(Broken())
    console.print(Text("lost"))
    console.print(Text("lost"))
    assert console.quiet
