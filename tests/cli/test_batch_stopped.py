"""Batches that are killed, interrupted, or whose reader leaves: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess

import pytest
from command_line import COMMAND, Terminal, environment, start
from http_server import Answer, OpenAIServer
from leftovers import wait_until
from rows_kit import QUICK, asked, echo, half, lines, records, write_rows

from mellea_like.batch import read_items, read_run


@contextlib.contextmanager
def begun(*arguments):
    """Run the command in another process, which doesn't outlive the block."""
    with start(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def arguments(tmp_path):
    """Return the arguments for a run of 30 rows, 4 at a time, with a server's URL."""
    write_rows(tmp_path / "in.jsonl", 30)

    def of(server, *more):
        return (
            *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}"),
            *("-o", str(tmp_path / "out.jsonl"), "--workers", "4"),
            *("--base-url", server.url, "--model", "m", "--journal", str(tmp_path / "run.db")),
            *more,
        )

    return of


def test_a_run_that_was_killed_goes_on_and_asks_nothing_twice(arguments, command, tmp_path):
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.db"
    with OpenAIServer(choose=half) as server:
        with begun(*arguments(server)):
            wait_until(lambda: lines(out) == QUICK and server.in_flight == 4)
        acknowledged = records(out)
        assert read_run(journal)["counts"]["passed"] == QUICK
        assert {one["data"]["n"] for one in read_items(journal) if one["status"] == "passed"} == {
            one["input"]["n"] for one in acknowledged
        }
        wait_until(lambda: server.in_flight == 0)
        before = len(server.requests)
        with out.open("a") as file:
            file.write('{"half a li')  # as a machine that fails may leave it
        server._choose = echo
        code, _, err = command(*arguments(server, "--resume"))
    assert code == 0, err
    assert f"{QUICK} came from the journal." in err
    found = records(out)
    assert [one["input"]["n"] for one in found] == list(range(30))
    assert all(one["output"] == f"re Say number {one['input']['n']}" for one in found)
    for one in acknowledged:
        assert one in found
    done = {f"Say number {one['input']['n']}" for one in acknowledged}
    again = [asked(body) for body in server.requests[before:]]
    assert len(again) == 30 - QUICK
    assert not done & set(again)
    assert [one["status"] for one in read_items(journal)] == ["passed"] * 30
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(
    arguments, command, tmp_path, number, code
):
    out = tmp_path / "out.jsonl"
    with OpenAIServer(choose=half) as server:
        with Terminal(*arguments(server)) as terminal:
            wait_until(lambda: lines(out) == QUICK and server.in_flight == 4)
            terminal.wait_for(f"{QUICK}/30")
            terminal.process.send_signal(number)
            ended = terminal.finish()
        wait_until(lambda: server.disconnected == 4)
        assert ended == (code, "")
        assert terminal.plain.rstrip().endswith(
            f"Interrupted after {QUICK} of 30 rows. Run the same command with --resume to continue."
        )
        assert "Traceback" not in terminal.seen
        assert terminal.seen.count("\x1b[?25l") == terminal.seen.count("\x1b[?25h")
        assert lines(out) == QUICK
        server._choose = echo
        assert command(*arguments(server, "--resume"))[0] == 0
    assert len(records(out)) == 30


def test_an_interrupted_resume_leaves_the_results_as_they_were(arguments, tmp_path):
    out, part = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.part"
    late = {f"Say number {n}" for n in range(1, 9)}
    with OpenAIServer(
        choose=lambda n, body: Answer("late", wait=30.0) if asked(body) in late else echo(n, body)
    ) as server:
        with begun(*arguments(server, "--workers", "16")):
            wait_until(lambda: lines(out) == 22 and server.in_flight == 8)
        acknowledged = out.read_bytes()
        wait_until(lambda: server.in_flight == 0)
        # After the first row, four are asked for and four more wait: the others are not reached.
        with Terminal(*arguments(server, "--resume")) as terminal:
            wait_until(lambda: server.in_flight == 4 and lines(part) == 1)
            terminal.process.send_signal(signal.SIGINT)
            code, _ = terminal.finish()
    assert code == 130
    assert out.read_bytes() == acknowledged
    assert not part.exists()


def test_two_processes_do_not_share_a_journal(arguments, command, tmp_path):
    out = tmp_path / "out.jsonl"
    with OpenAIServer(choose=half) as server, begun(*arguments(server)) as process:
        wait_until(lambda: lines(out) == QUICK and server.in_flight == 4)
        before = out.read_bytes()
        code, _, err = command(*arguments(server, "--resume"))
        assert code == 3
        assert str(process.pid) in err
        assert out.read_bytes() == before
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_reader_that_leaves_stops_it(tmp_path):
    write_rows(tmp_path / "in.jsonl", 5000)
    batch = ("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "-o", "-")
    done = subprocess.run(
        [
            *("bash", "-c", '"$@" | head -2; echo ${PIPESTATUS[0]}', "bash", *COMMAND),
            *(*batch, "--backend", "markov"),
        ],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=50,
        check=False,
    )
    first, second, code = done.stdout.splitlines()
    assert code == "1"
    assert json.loads(first)["input"]
    assert json.loads(second)["input"]
    assert "the program reading standard output has closed it\nStopped after " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_waiting_for_a_pipe_can_be_interrupted(tmp_path):
    arguments = ("batch", "-", "-p", "Say {{ n }}", "-o", "-", "--backend", "markov")
    process = start(*arguments, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"n": 1}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["input"] == {"n": 1}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().endswith(
        "Interrupted after 1 row. With --journal FILE, a run can be resumed.\n"
    )
