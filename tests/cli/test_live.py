"""The live view and the rows behind it."""

from __future__ import annotations

import io
import signal

import pytest
from command_line import Terminal
from http_server import Answer, OpenAIServer
from leftovers import wait_until
from rich.cells import cell_len
from rich.console import Console

from mellea_like import Context, Generation, Instruction, Outcome, Slice
from mellea_like.cli.sample.output import slices_table
from mellea_like.cli.sample.progress import Progress, render
from mellea_like.requirements.checks import word_count

HOSTILE = "\x1b[31m[red]evil[/red]\x1b]0;title\x07\r\n\x9b2J [/] end"


def make_slice(
    iteration,
    outcome=Outcome.FAILED,
    *,
    text="some text",
    error=None,
    chain=0,
    subsample=None,
    depth=0,
    finish_reason=None,
):
    verdicts = ()
    if outcome is Outcome.FAILED:
        check = word_count(at_most=1, name=f"words<=1 {text}")
        verdicts = ((check, check.validator(_candidate("two words"))),)
    return Slice(
        iteration=iteration,
        subsample=chain if subsample is None else subsample,
        depth=depth,
        chain=chain,
        action=Instruction("x"),
        context=Context(),
        messages=(),
        generation=Generation(text, finish_reason=finish_reason),
        requirements=tuple(requirement for requirement, _ in verdicts),
        verdicts=tuple(verdict for _, verdict in verdicts),
        outcome=outcome,
        error=error,
        ended_at=0.25,
    )


def _candidate(text):
    from mellea_like import Candidate

    return Candidate(text, text, Generation(text), Context(), Instruction("x"))


def drawn(progress, columns=80, lines=24):
    console = Console(file=io.StringIO(), width=columns, height=lines, force_terminal=True)
    console.print(render(progress, console))
    return console.file.getvalue()


def test_a_row_shows_how_its_latest_iteration_ended():
    progress = Progress(attempts=3, lanes=2)
    progress.on_slice(make_slice(4, chain=1))
    assert [row.state for row in progress.rows] == ["waiting", "failed"]
    shown = drawn(progress, columns=120)
    assert "words<=1 some text: it has 2 words; at most 1 is allowed" in shown
    assert "1 of 3" in shown
    assert "1 of at most 6 draws" in shown


def states(progress):
    return [(row.iteration, row.state) for row in progress.rows]


def test_a_lane_shows_the_draw_that_it_last_heard_of():
    progress = Progress(attempts=3, lanes=2)
    progress._move(0, 1, "generating")
    assert states(progress) == [(1, "generating"), (None, "waiting")]
    assert "0 of at most 6 draws" in drawn(progress)
    progress._move(0, 2, "generating")
    progress.on_slice(make_slice(1))  # Its record comes after the next draw has begun.
    assert states(progress) == [(2, "generating"), (None, "waiting")]
    assert "it has 2 words" in drawn(progress, columns=120)
    progress.on_slice(make_slice(2, Outcome.PASSED))
    assert states(progress) == [(2, "passed"), (None, "waiting")]


def test_a_reply_that_was_rejected_early_is_marked():
    lines = []
    slice_ = make_slice(1, finish_reason="rejected")
    Progress(3, 1, lines.append).on_slice(slice_)
    assert lines[0].startswith("attempt 1 of 3: failed early after 0.25 s: words<=1")
    console = Console(file=io.StringIO(), width=120)
    console.print(slices_table((slice_,), console))
    assert "some text … (rejected early)" in console.file.getvalue()


def test_markup_and_escapes_in_a_reply_are_shown_and_not_obeyed():
    progress = Progress(attempts=3, lanes=1)
    progress.on_slice(make_slice(1, text=HOSTILE))
    console = Console(file=io.StringIO(), width=400, height=24, force_terminal=False)
    console.print(render(progress, console))
    console.print(slices_table((make_slice(1, text=HOSTILE),), console))
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert shown.count(r"\x1b[31m[red]evil[/red]\x1b]0;title\x07") == 3


@pytest.mark.parametrize("columns", [20, 40, 59, 60, 200])
@pytest.mark.parametrize("lines", [3, 10])
def test_the_view_stays_inside_the_terminal(columns, lines):
    progress = Progress(attempts=1000, lanes=50)
    for chain in range(50):
        progress.on_slice(make_slice(chain * 1000 + 999, text="東京" * 100, chain=chain))
    console = Console(file=io.StringIO(), width=columns, height=lines)
    console.print(render(progress, console))
    console.print(slices_table((make_slice(1, text="東京" * 100),), console))
    assert max(map(cell_len, console.file.getvalue().splitlines())) <= columns
    rows = drawn(progress, columns, lines).count("failed ")
    assert rows <= max(2, lines - 1)


def test_rows_at_work_are_shown_where_not_all_fit():
    progress = Progress(attempts=1, lanes=30)
    for chain in range(30):
        if chain < 29:
            progress.on_slice(make_slice(chain + 1, subsample=chain))
    progress._move(29, 30, "generating")
    shown = drawn(progress, 100, 10)
    assert "generating" in shown
    assert "24 not shown" in shown


SLOW = Answer("one two three four five six", seconds=30.0)
MISS = Answer("one two three four five six", seconds=0.2)


def test_a_terminal_gets_a_live_view_and_the_pipe_the_result_alone():
    with (
        OpenAIServer(MISS, MISS, Answer("two words", seconds=0.5)) as server,
        Terminal("sample", "x", "--check", "words<=2", "--base-url", server.url) as terminal,
    ):
        terminal.wait_for("generating")
        code, out = terminal.finish()
    assert (code, out) == (0, "two words\n")
    assert "lane attempt state" in terminal.plain
    assert "words<=2: it has 6 words" in terminal.plain
    assert "Passed: attempt" in terminal.plain
    assert "attempt 1 of 5, lane 1" not in terminal.plain


@pytest.mark.parametrize("size", [(40, 10), (20, 4)])
def test_a_small_terminal_does_not_break_the_view(size):
    with (
        OpenAIServer(MISS) as server,
        Terminal(
            *("sample", "x", "--check", "words<=2", "--base-url", server.url, "--attempts=2"),
            *("--lanes=12", "--explain"),
            columns=size[0],
            lines=size[1],
        ) as terminal,
    ):
        code, out = terminal.finish()
    assert (code, out) == (1, "one two three four five six\n")
    assert "Traceback" not in terminal.seen
    view = terminal.plain.split("Draws,")[0].splitlines()[2:]
    assert all(len(line) <= size[0] for line in view)


@pytest.mark.parametrize(
    ("schedule", "size"), [("hedged:0.5", (40, 10)), ("staggered:0.2", (80, 24))]
)
def test_the_view_copes_with_chains_that_open_late_and_borrow_turns(size, schedule):
    lag = Answer("one two three four", seconds=2.0)
    quick = Answer("one two three four", seconds=0.1)
    with (
        OpenAIServer(choose=lambda number, _: lag if number == 1 else quick) as server,
        Terminal(
            *("sample", "x", "--base-url", server.url, "--attempts=6", "--lanes=3"),
            *("--check", "words<=2", "--schedule", schedule, "--ledger"),
            columns=size[0],
            lines=size[1],
        ) as terminal,
    ):
        code, out = terminal.finish()
    assert (code, out) == (1, "one two three four\n")
    assert "Traceback" not in terminal.seen
    assert "of at most 18 draws" in terminal.plain
    view, _, rest = terminal.plain.rpartition(" of at most 18 draws, ")
    assert all(len(line) <= size[0] for line in view.splitlines()[2:])
    assert "wasted" in rest
    assert "18 draws" in rest


def test_a_request_that_is_tried_again_says_why_it_waits():
    refusal = Answer.error(429, "slow down", retry_after="1")
    with (
        OpenAIServer(refusal, Answer("fine")) as server,
        Terminal("sample", "x", "--base-url", server.url, "--lanes=1") as terminal,
    ):
        terminal.wait_for("retrying")
        code, out = terminal.finish()
    assert (code, out) == (0, "fine\n")
    assert "answered 429" in terminal.plain


def test_a_dumb_terminal_gets_plain_lines():
    with Terminal("sample", "Write.", "--attempts=1", TERM="dumb") as terminal:
        code, _ = terminal.finish()
    assert code == 0
    assert "attempt 1 of 1, lane 1: " in terminal.seen
    assert "\x1b" not in terminal.seen


def test_on_a_terminal_the_result_is_made_harmless():
    with (
        OpenAIServer(Answer("a\x1b[31mb \x9b2Jc")) as server,
        Terminal("sample", "x", "-q", "--base-url", server.url, pipe=False) as terminal,
    ):
        code, _ = terminal.finish()
    assert code == 0
    assert terminal.seen == "a\\x1b[31mb \\x9b2Jc\r\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_cancels_the_calls_in_flight_and_says_so(number, code):
    with (
        OpenAIServer(SLOW) as server,
        Terminal(
            *("sample", "x", "--check", "words>=1", "--lanes=3"), *("--base-url", server.url)
        ) as terminal,
    ):
        terminal.wait_for("generating")
        wait_until(lambda: server.in_flight == 3)
        terminal.process.send_signal(number)
        ended = terminal.finish()
        wait_until(lambda: server.disconnected == 3)
    assert ended == (code, "")
    assert "Interrupted: cancelled 3 calls in flight." in terminal.plain
    assert "Traceback" not in terminal.seen
    assert terminal.seen.rstrip().endswith("in flight.")
    assert terminal.seen.count("\x1b[?25l") == terminal.seen.count("\x1b[?25h")
