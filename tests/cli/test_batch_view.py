"""The progress of a batch on wide and narrow terminals, and in a pipe."""

from __future__ import annotations

import io
import re
import signal
from dataclasses import replace

import pytest
from command_line import Terminal
from http_server import Answer, OpenAIServer
from rich.cells import cell_len
from rows_kit import echo, write_rows

from mellea_like.backends import JobState
from mellea_like.batch import Progress
from mellea_like.cli.batch.progress import parts_of, so_far, status_line, summary
from mellea_like.cli.console import make_console
from mellea_like.core import Usage
from mellea_like.limits import Price

BUSY = Progress(
    total=10_000,
    taken=1250,
    done=1234,
    passed=1100,
    failed=130,
    errored=4,
    replayed=34,
    in_flight=16,
    usage=Usage(requests=2000, input_tokens=1_000_000, output_tokens=234_567),
    elapsed=60.0,
)


def plain(progress, price=None, since=0.0):
    return [part.plain for part in parts_of(progress, price, since)]


def drawn(line, columns):
    console = make_console(io.StringIO())
    console.width = max(columns, 1)
    with console.capture() as captured:
        console.print(line)
    return captured.get().rstrip("\n").rstrip()


def test_the_line_says_how_many_how_well_how_quickly_at_what_cost_and_how_long():
    assert plain(BUSY, Price(1, 2)) == [
        "1,234/10,000",
        "4 errors",
        "7 min 18 s left",
        "1,100 passed",
        "20.0/s",
        "cost $1.47",
        "1.23 m tokens",
    ]
    assert plain(BUSY, since=30.0)[2] == "6 min 48 s left"
    assert plain(BUSY, since=3000.0)[2] == "0 s left"
    unknown = replace(BUSY, usage=Usage(requests=1, input_tokens=1_000_000, unknown=1))
    assert "cost ≥ $1.00" in plain(unknown, Price(1, 2))


JOBS = (JobState("a", "queued", False), JobState("b", "working", False, 7, 2, 1))


@pytest.mark.parametrize(
    ("progress", "parts"),
    [
        (Progress(), ["0"]),
        (Progress(total=5000), ["0/5,000"]),
        (Progress(done=3, passed=3, elapsed=90.0), ["3", "3 passed", "2.0/min", "0 tokens"]),
        (
            Progress(total=3, done=3, passed=0, elapsed=1.0),
            ["3/3", "0 passed", "3.0/s", "0 tokens"],
        ),
        (
            Progress(total=9, done=3, replayed=3, passed=3, elapsed=1.0),
            ["3/9", "3 passed", "0 tokens"],
        ),
        (
            Progress(total=9, done=3, passed=3, elapsed=1.0, waiting=5),
            ["3/9", "5 waiting", "3 passed", "0 tokens"],
        ),
        (Progress(total=9, waiting=2), ["0/9", "2 waiting"]),
        (Progress(total=9, jobs=JOBS[:1]), ["0/9", "1 job"]),
        (Progress(total=9, jobs=JOBS), ["0/9", "2 jobs: 3/7 answered"]),
    ],
)
def test_the_line_says_what_is_known(progress, parts):
    assert plain(progress) == parts


ALL = "  ".join(plain(BUSY, Price(1, 2)))


@pytest.mark.parametrize(
    ("columns", "line"), [(200, ALL), (40, f"{ALL[:39]}…"), (5, "1,23…"), (0, "…")]
)
def test_where_there_is_little_room_the_least_is_left_out(columns, line):
    assert drawn(status_line(parts_of(BUSY, Price(1, 2)), columns), columns) == line


def test_a_summary_says_what_came_of_the_rows():
    assert summary(BUSY, Price(1, 2), left_out=1) == (
        "1,234 rows: 1,100 passed, 130 failed, 4 ended in an error; 2,000 requests, 1.23 m"
        " tokens, cost $1.47, 1 min; 34 came from the journal; 1 line left out."
    )
    one = Progress(done=1, passed=1, usage=Usage(requests=1))
    assert summary(one, None, left_out=2) == (
        "1 row: 1 passed; 1 request, 0 tokens, 0 s; 2 lines left out."
    )


def test_what_was_stopped_says_how_far_it_came():
    assert so_far(BUSY, journal=True) == (
        " after 1,234 of 10,000 rows. Run the same command with --resume to continue."
    )
    assert so_far(Progress(done=1), journal=False) == (
        " after 1 row. With --journal FILE, a run can be resumed."
    )


# Real terminals

SLOW = Answer("late", wait=30.0)


def arguments(tmp_path, server, rows=6):
    write_rows(tmp_path / "in.jsonl", rows)
    return (
        *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "--price", "1,2"),
        *("-o", str(tmp_path / "out.jsonl"), "--base-url", server.url, "--workers", "1"),
    )


@pytest.mark.parametrize("columns", [80, 30])
def test_a_terminal_gets_one_line_that_fits_and_goes_at_the_end(tmp_path, columns):
    def choose(number, body):
        if number == 1:
            return Answer.error(400, "no \x1b]0;title\x07 such thing " * 3)
        return echo(number, body) if number < 4 else SLOW

    with (
        OpenAIServer(choose=choose) as server,
        Terminal(*arguments(tmp_path, server), columns=columns) as terminal,
    ):
        terminal.wait_for("0/6")
        terminal.wait_for("4/6")
        terminal.wait_for("left")
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.finish()
    assert (code, out) == (130, "")
    assert "\x1b]" not in terminal.seen
    assert "re Say" not in terminal.seen
    view = [line for line in terminal.plain.splitlines() if re.search(r"\d/6", line)]
    assert view
    assert max(map(cell_len, view)) <= columns - 2
    if columns == 80:
        assert any("1 error  " in line and "3 passed" in line for line in view)
        assert any("cost $0.0000" in line for line in view)
    assert terminal.seen.count("\x1b[?25l") == terminal.seen.count("\x1b[?25h")
    assert "Interrupted after 4 of 6 rows." in " ".join(terminal.plain.split())


def test_results_on_the_terminal_are_harmless_and_no_view_runs_into_them(tmp_path):
    write_rows(tmp_path / "in.jsonl", 2)
    with (
        OpenAIServer(Answer("a\x1b[31mb \x9b2Jc")) as server,
        Terminal(
            *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "-o", "-"),
            *("--base-url", server.url),
            pipe=False,
        ) as terminal,
    ):
        code, _ = terminal.finish()
    assert code == 0
    assert "\x1b" not in terminal.seen
    assert "a\\u001b[31mb \\u009b2Jc" in terminal.seen
    assert terminal.seen.count("\r\n") == 4  # two rows, and two lines
