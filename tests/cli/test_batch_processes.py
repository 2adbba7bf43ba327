"""``mellea-like batch --processes N``: several processes that look like one run."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from command_line import start
from forked_command import can_fork, stand_in
from http_server import Answer, OpenAIServer
from leftovers import children, is_gone, wait_until
from rows_kit import QUICK, asked, echo, half, lines, records, write_rows

from mellea_like.batch import processes, read_run

ROWS = 40


COMMAND = """
from mellea_like.__main__ import main
from mellea_like.batch import processes

processes.COMMAND = {}
raise SystemExit(main())
"""


@pytest.fixture(autouse=True)
def forked(tmp_path_factory, monkeypatch):
    """Fork the processes of runs in this process, and of commands that run this script."""
    if not can_fork():
        return None
    folder = tmp_path_factory.mktemp("scripts")
    script, command = folder / "process.py", folder / "command.py"
    script.write_text(processes.COMMAND[-1], encoding="utf-8")
    monkeypatch.setattr(processes, "COMMAND", stand_in(script))
    command.write_text(COMMAND.format(processes.COMMAND), encoding="utf-8")
    return str(command)


@pytest.fixture
def arguments(tmp_path):
    """Return the arguments for a run of two processes, 8 rows at a time, with a server's URL."""
    write_rows(tmp_path / "in.jsonl", ROWS)

    def of(server, *more, processes=2, out="out.jsonl"):
        return (
            *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}"),
            *("-o", str(tmp_path / out), "--workers", "8", "--processes", str(processes)),
            *("--base-url", server.url, "--model", "m", "--journal", str(tmp_path / "run")),
            *more,
        )

    return of


def begun(*arguments, script=None):
    return start(
        *arguments, script=script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def counts(tmp_path):
    return [read_run(path)["counts"] for path in sorted((tmp_path / "run").glob("*.db"))]


# --- the whole run --------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--in-order",)], ids=["as they come", "ordered"])
def test_all_rows_are_in_one_file_and_the_run_is_one_to_report_and_export(
    arguments, command, tmp_path, more
):
    with OpenAIServer(choose=echo) as server:
        code, out, err = command(*arguments(server, *more))
        assert code == 0, err
        found = records(tmp_path / "out.jsonl")
        assert sorted(record["id"] for record in found) == list(range(ROWS))
        assert all(record["output"] == f"re Say {record['input']['text']}" for record in found)
        if more:
            assert [record["line"] for record in found] == list(range(1, ROWS + 1))
        assert [one["passed"] for one in counts(tmp_path)] == [ROWS // 2] * 2
        assert f"{ROWS} rows: {ROWS} passed; {ROWS} requests" in err
        assert err.count("Backend: openai") == 1
        assert not out
        before = len(server.requests)
        code, _, err = command(*arguments(server, "--resume", *more))
        assert (code, len(server.requests)) == (0, before)
        assert f"{ROWS} came from the journal" in err
        again = records(tmp_path / "out.jsonl")
        assert sorted(again, key=lambda r: r["id"]) == sorted(found, key=lambda r: r["id"])
    run = str(tmp_path / "run")
    assert f"Run of {ROWS} items" in command("report", run)[1]
    assert command("export", run, "--format", "sft", "-o", str(tmp_path / "sft.jsonl"))[0] == 0
    assert lines(tmp_path / "sft.jsonl") == ROWS
    assert f"{ROWS} items" in command("plan", run)[1]


def test_rows_that_failed_go_where_they_belong_and_bad_lines_are_left_out(
    arguments, command, tmp_path
):
    rows = (tmp_path / "in.jsonl").read_text().splitlines()
    rows[3:3] = ["no json", '{"other": 1}']
    (tmp_path / "in.jsonl").write_text("\n".join(rows))

    def some(number, body):
        return Answer("") if asked(body).endswith("7") else echo(number, body)

    with OpenAIServer(choose=some) as server:
        code, _, err = command(
            *arguments(server, "--failed", str(tmp_path / "failed.csv"), "--check", "words<=9"),
            *("--on-bad-line", "skip", "--attempts=1"),
        )
    assert code == 1, err
    assert err.count("Left out:") == 2
    failed = lines(tmp_path / "failed.csv") - 1
    assert failed == sum('7"' in row for row in rows)
    assert lines(tmp_path / "out.jsonl") == ROWS - failed


def test_one_budget_and_one_rate_are_for_all(arguments, command, tmp_path):
    with OpenAIServer(choose=echo) as server:
        code, _, err = command(*arguments(server, "--budget", "requests=15"))
        assert code == 1
        assert "the budget of this run: 15 of 15 requests were made" in err
        assert (
            f"Stopped after 15 of {ROWS} rows. Run the same command with --resume to continue."
            in err
        )
        assert len(server.requests) == 15 == lines(tmp_path / "out.jsonl")
        began = time.monotonic()
        code, _, err = command(*arguments(server, "--rpm", "600", "--resume"))
        assert code == 0, err
        assert len(server.requests) == ROWS
        # A second's quota of 10 may go at once; 15 more take 1.5 s.
        assert time.monotonic() - began >= (ROWS - 15 - 10) / 10
        assert lines(tmp_path / "out.jsonl") == ROWS


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_and_goes_on_with_the_same_command(
    arguments, command, tmp_path, number, forked
):
    out = tmp_path / "out.jsonl"
    with OpenAIServer(choose=half) as server:
        with begun(*arguments(server), script=forked) as process:
            wait_until(lambda: lines(out) == QUICK and server.in_flight == 8)
            pids = children(process.pid)
            assert len(pids) == 2
            os.kill(process.pid, number)
            _, err = process.communicate(timeout=30)
            wait_until(lambda: all(map(is_gone, pids)))
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert f"Interrupted after {QUICK} of {ROWS} rows." in err
            assert "Run the same command with --resume to continue." in err
            assert (err.count("Interrupted"), "Traceback" in err) == (1, False), err
        wait_until(lambda: server.in_flight == 0)
        assert sum(one["passed"] for one in counts(tmp_path)) == QUICK
        before = len(server.requests)
        server._choose = echo
        code, _, err = command(*arguments(server, "--resume"))
        assert code == 0, err
        assert len(server.requests) - before == ROWS - QUICK
    assert lines(out) == ROWS


def test_a_process_that_is_killed_is_told_of_and_its_rows_are_done_by_the_next_run(
    arguments, command, tmp_path
):
    out, late = tmp_path / "out.jsonl", []

    def some(number, body):
        return echo(number, body) if number < QUICK else Answer("late", until=lambda: bool(late))

    with OpenAIServer(choose=some) as server:
        with begun(*arguments(server)) as process:
            wait_until(lambda: lines(out) == QUICK and server.in_flight == 8)
            os.kill(min(children(process.pid)), signal.SIGKILL)
            wait_until(lambda: server.in_flight == 4)
            late.append(1)
            _, err = process.communicate(timeout=30)
        assert process.returncode == 3
        # As soon as it is known, and as the reason why the run has ended.
        assert err.count("of 2 was killed (SIGKILL): its unfinished rows are left undone") == 2
        assert "Run the same command with --resume to continue." in err
        done = lines(out)
        assert ROWS / 2 <= done < ROWS
        before = len(server.requests)
        code, _, err = command(*arguments(server, "--resume"))
        assert code == 0, err
        assert len(server.requests) - before == ROWS - done
    assert lines(out) == ROWS


def test_a_server_that_can_not_be_reached_stops_all_and_is_told_once(arguments, command):
    with OpenAIServer(choose=echo) as server:
        pass
    code, _, err = command(*arguments(server))
    assert code == 3
    assert err.count("Waiting for") == 1
    assert err.count("can't reach") == 1


# --- what is refused ------------------------------------------------------------------------------


def test_another_number_of_processes_is_refused_for_a_run_that_is_begun(
    arguments, command, tmp_path
):
    with OpenAIServer(choose=echo) as server:
        assert command(*arguments(server))[0] == 0
        for processes in (3, 1):
            code, _, err = command(*arguments(server, "--resume", processes=processes))
            assert code == 3
            assert f"{tmp_path / 'run'} was started with --processes 2: use the same number" in err
        code, _, err = command(*arguments(server, "--force"))
        assert code == 3
        assert "already exists: continue its run" in err
        code, _, err = command(*arguments(server, "--resume", "--check", "words<=1"))
        assert code == 3
        assert "--check" in err


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--unique", "exact"], 2, "--processes 2 can't be combined with --unique: rows"),
        (["--breadth-first"], 2, "--breadth-first: there are no rounds over all rows"),
        (["--workers", "1"], 2, "--workers 1: each process needs at least one row"),
        (["--journal", "in.jsonl"], 3, "name a folder"),
        (None, 2, "name a file"),
    ],
)
def test_what_needs_all_rows_in_one_process_or_a_folder_is_refused(
    arguments, command, tmp_path, monkeypatch, more, code, says
):
    monkeypatch.chdir(tmp_path)
    with OpenAIServer(choose=echo) as server:
        pipe = ("batch", "-", "-p", "x", "-o", "-", "--processes", "2", "--model", "m")
        found, _, err = command(*(pipe if more is None else arguments(server, *more)))
    assert (found, says in err) == (code, True), err


def test_without_a_journal_nothing_is_left(arguments, command, tmp_path):
    with OpenAIServer(choose=echo) as server:
        given = [
            one for one in arguments(server) if one not in {"--journal", str(tmp_path / "run")}
        ]
        code, _, err = command(*given, "--budget", "requests=100")
    assert code == 0, err
    assert lines(tmp_path / "out.jsonl") == ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
