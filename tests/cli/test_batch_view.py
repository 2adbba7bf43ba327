"""What a batch shows of itself: on wide and narrow terminals, and in a pipe."""

from __future__ import annotations

import re
import signal

import pytest
from command_line import Terminal, run
from http_server import Answer, OpenAIServer
from rich.cells import cell_len
from rows_kit import echo, write_rows

from mellea_like import Usage
from mellea_like.batch import Progress
from mellea_like.cli.batch.progress import (
    BatchView,
    Part,
    duration,
    in_short,
    money,
    parts_of,
    status_line,
)
from mellea_like.cli.batch.summary import so_far, summary
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (727, "12:07"), (11527, "3:12:07"), (186_000, "2 d 3 h")],
)
def test_a_time_in_short(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0k"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (999_960, "1.0M"),
        (4_560_000, "4.6M"),
        (7_890_000_000, "7.9G"),
    ],
)
def test_a_number_in_short(number, text):
    assert in_short(number) == text


def test_money_is_a_lower_bound_where_not_all_is_known():
    usage = Usage(requests=2, input_tokens=1_000_000, output_tokens=500_000)
    assert money(usage, Price(1, 2)) == "$2.000000"
    assert money(usage + Usage(requests=1, unknown=1), Price(1, 2)) == "≥$2.000000"


def said(progress, price=None, since=0.0):
    return [part.text for part in parts_of(progress, price, since)]


def test_the_line_says_how_many_how_quickly_how_well_at_what_cost_and_how_long():
    assert said(BUSY, Price(1, 2)) == [
        "1,234/10,000",
        "20.0/s",
        "89% passed",
        "4 errors",
        "1.2M tokens",
        "cost $1.469134",
        "7:18 left",
    ]
    assert said(BUSY, since=30.0)[-1] == "6:48 left"
    assert said(BUSY, since=3000.0)[-1] == "0:00 left"


@pytest.mark.parametrize(
    ("progress", "parts"),
    [
        (Progress(), ["0"]),
        (Progress(total=5000), ["0/5,000"]),
        (
            Progress(done=3, passed=3, elapsed=90.0),
            ["3", "2.0/min", "100% passed", "0 tokens"],
        ),
        (
            Progress(total=3, done=3, passed=0, elapsed=1.0),
            ["3/3", "3.0/s", "0% passed", "0 tokens"],
        ),
        (
            Progress(total=9, done=3, replayed=3, passed=3, elapsed=1.0),
            ["3/9", "100% passed", "0 tokens"],
        ),
        (
            Progress(done=999, passed=998, elapsed=1.0),
            ["999", "999.0/s", ">99% passed", "0 tokens"],
        ),
        (Progress(done=999, passed=1, elapsed=1.0), ["999", "999.0/s", "<1% passed", "0 tokens"]),
    ],
)
def test_the_line_says_what_is_known(progress, parts):
    assert said(progress) == parts


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (200, "1,234/10,000  20.0/s  89% passed  4 errors  1.2M tokens  cost $1.469134  7:18 left"),
        (82, "1,234/10,000  20.0/s  89% passed  4 errors  1.2M tokens  cost $1.469134  7:18 left"),
        (76, "1,234/10,000  20.0/s  89% passed  4 errors  cost $1.469134  7:18 left"),
        (50, "1,234/10,000  89% passed  4 errors  7:18 left"),
        (40, "1,234/10,000  4 errors  7:18 left"),
        (24, "1,234/10,000  4 errors"),
        (12, "1,234/10,000"),
        (5, "1,23…"),
        (0, "…"),
    ],
)
def test_where_there_is_little_room_the_least_is_left_out(columns, line):
    text = status_line(parts_of(BUSY, Price(1, 2)), columns)
    assert text.plain == line
    assert cell_len(text.plain) <= max(1, columns)


@pytest.mark.parametrize(("columns", "bar"), [(30, 24), (22, 18), (12, 8), (11, 0)])
def test_a_bar_stands_where_there_is_room(columns, bar):
    text = status_line([Part("ab", 0)], columns, 0.5).plain
    assert text.count("━") + text.count("─") == bar
    assert text.count("━") == bar // 2
    assert text.endswith("ab")
    assert cell_len(text) <= columns


def test_a_summary_says_what_came_of_the_rows():
    assert summary(BUSY, Price(1, 2), left_out=1) == (
        "1,234 rows: 1,100 passed, 130 failed, 4 ended in an error; 2,000 requests, 1.2M tokens,"
        " cost $1.469134, 1:00; 34 came from the journal; 1 line left out."
    )
    one = Progress(done=1, passed=1, usage=Usage(requests=1))
    assert summary(one, None, left_out=2) == (
        "1 row: 1 passed; 1 request, 0 tokens, 0:00; 2 lines left out."
    )


def test_what_was_stopped_says_how_far_it_came():
    assert so_far(BUSY, journal=True) == (
        " after 1,234 of 10,000 rows. The same command with --resume goes on."
    )
    assert so_far(Progress(done=1), journal=False) == (
        " after 1 row. A run with --journal FILE could be resumed."
    )


def test_lines_come_now_and_then_and_not_after_the_last_row(capfd):
    view = BatchView(None, every=1e-9)
    with view:
        view.update(Progress(total=2, done=1, passed=1, elapsed=1.0))
        view.update(Progress(total=2, done=2, passed=2, elapsed=2.0))
        view.say("line 1: a\x1b[31m\nb")
    rare = BatchView(None, every=1000.0)
    rare.update(Progress(total=2, done=1))
    assert BatchView(None, total=7).progress.total == 7
    assert capfd.readouterr().err == (
        "1/2  1.0/s  100% passed  0 tokens  0:01 left\nline 1: a\\x1b[31m b\n"
    )


# Real terminals

SLOW = Answer("late", wait=30.0)


def arguments(tmp_path, server, rows=6):
    write_rows(tmp_path / "in.jsonl", rows)
    return (
        *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "--price", "1,2"),
        *("-o", str(tmp_path / "out.jsonl"), "--base-url", server.url, "--parallel", "1"),
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
        assert any("75% passed  1 error  " in line for line in view)
        assert any("cost $0.0000" in line for line in view)
    assert terminal.seen.count("\x1b[?25l") == terminal.seen.count("\x1b[?25h")
    assert "Interrupted after 4 of 6 rows." in " ".join(terminal.plain.split())


def test_results_on_the_terminal_are_harmless_and_no_view_runs_into_them(tmp_path):
    write_rows(tmp_path / "in.jsonl", 2)
    with (
        OpenAIServer(Answer("a\x1b[31mb \x9b2Jc")) as server,
        Terminal(
            *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "-o", "-"),
            *("--base-url", server.url, "--output-format", "csv"),
            pipe=False,
        ) as terminal,
    ):
        code, _ = terminal.finish()
    assert code == 0
    assert "\x1b" not in terminal.seen
    assert "a\\x1b[31mb \\x9b2Jc" in terminal.seen
    assert terminal.seen.count("\r\n") == 5  # two rows under their names, and two lines


def test_a_pipe_gets_plain_lines(tmp_path):
    with OpenAIServer(Answer("one two", wait=0.4)) as server:
        done = run(*arguments(tmp_path, server, rows=4), "--every", "0.01")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "/4  " in line]
    line = r"\d/4  [\d.]+/(s|min)  100% passed  \d+ tokens  cost \$[\d.]+  \d:\d\d left"
    assert re.fullmatch(line, lines[-1])
    assert "\x1b" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("4 rows: 4 passed; ")
