"""Reports as lines of text."""

from __future__ import annotations

from report_kit import calls, item, run_of, trace_of

from mellea_like.report import call_text, run_report, run_text


def test_a_runs_lines_have_its_figures():
    items = calls(100)
    lines = run_text(run_of(items), items)
    passed = sum(i["status"] == "passed" for i in items)
    for words in (
        "Run of 100 items: simulated-small",
        "ended 2026-03-14 09:00:30 UTC",
        f"{passed} %",
        "had started one draw when one passed, 95 % at most",
        "(p95)",
        "in the replies that won",
        "the reply says 'alpha'",
        "BackendUnavailable",
    ):
        assert words in lines


def test_a_run_that_goes_on_says_so():
    items = [item(0, trace_of(("passed", 1))), item(1, None, status="unfinished")]
    lines = run_text(run_of(items, ended=None), items)
    assert "started 2026-03-14 09:00:00 UTC, not finished" in lines
    assert "1 not finished: " in lines
    assert "of those finished; 50 % of the 2 that were begun" in lines
    page = run_report(run_of(items, ended=None), items)
    assert "Of 1 unfinished item, draws under way are missing" in page
    assert "under way are missing" not in run_report(run_of(items), items)
    assert "Of the items that are finished, half took at most 1 s (p50)" in lines


def test_items_that_failed_are_named_in_a_line_each():
    items = [item(n, trace_of(("failed", 1)), label="two\nlines") for n in range(9)]
    lines = run_text(run_of(items), items).splitlines()
    assert [line for line in lines if line.startswith("  #")] == [
        f"  #{n} two lines: it says a word: it is missing" for n in range(9)
    ]


def test_a_calls_lines_say_how_it_ended_and_what_it_took():
    trace = trace_of(("failed", 30), ("errored", 5), ("passed", 65), best=2)
    assert call_text(trace).splitlines() == [
        "Passed: attempt 3.",
        "3 draws, 1 lane, 3 requests, 103 tokens, 3 s elapsed",
        "1 passed, 1 failed, 1 errored",
        "    64.1 %  of the tokens in the replies that won",
        "    30.1 %  of the tokens in replies that failed",
        "    5.83 %  of the tokens in draws that ended in an error",
        "1 draw with BackendUnavailable",
    ]
