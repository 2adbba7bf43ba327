"""``mellea-like report``: pages about journals and traces, which never replace other files."""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
from pathlib import Path

import pytest
from command_line import python, run
from html_page import HtmlPage
from report_kit import NASTY, nasty_trace, trace_of

from mellea_like.core.display import UNSAFE


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    made = trace_of(("failed", 3), ("passed", 5), best=1)
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


# --- from a trace -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nothing", "an empty file", "a report"])
def test_with_an_output_it_writes_a_page_and_says_what_and_where(command, trace, tmp_path, before):
    page = tmp_path / "report.html"
    if before == "an empty file":
        page.touch()
    for _ in range(2 if before == "a report" else 1):
        code, out, err = command("report", str(trace), "-o", str(page))
    assert (code, out) == (0, "")
    assert err == f"Wrote {page}: a call, {round(page.stat().st_size / 1000)} KB.\n"
    assert "Passed: attempt 2" in HtmlPage(page.read_text(encoding="utf-8")).text


@pytest.mark.parametrize("text", [text for text in NASTY if len(text) < 1000])
def test_no_text_of_a_model_reaches_the_terminal_unescaped(command, tmp_path, text):
    made = nasty_trace(text)
    made |= {"success": False, "best_index": 0, "stop_reason": "exhausted"}
    made["prompts"] = [[], []]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    code, out, err = command("report", str(path))
    assert code == 0, err
    assert not UNSAFE.search(out)


def test_dashes_are_standard_input_and_output(trace, tmp_path):
    def report(*arguments, stdin=trace):
        return run("report", *arguments, stdin=stdin.read_bytes(), cwd=tmp_path)

    assert report("-").stdout.startswith("Passed: attempt 2.")
    page = report("-", "-o", "-")
    assert (page.returncode, page.stderr) == (0, "")
    assert page.stdout.startswith("<!doctype html>")
    assert not (tmp_path / "-").exists()
    database = tmp_path / "run.db"
    database.write_bytes(b"SQLite format 3\0")
    refused = report("-", stdin=database)
    assert (refused.returncode, "a journal can't be read from" in refused.stderr) == (2, True)


# --- from a journal ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def journal(write_journal):
    def ask(n):
        if n == 29:
            raise ValueError("no such harbour")
        return f"Harbour {n}."

    return write_journal(range(30), {"concurrency_budget": 2}, action=ask)


def test_a_journal_has_a_report(command, journal, tmp_path):
    page = tmp_path / "report.html"
    code, out, err = command("report", str(journal), "-o", str(page))
    assert (code, out) == (0, "")
    assert err == f"Wrote {page}: 30 items, {round(page.stat().st_size / 1000)} KB.\n"
    text = HtmlPage(page.read_text(encoding="utf-8")).text
    assert "Run of 30 items" in text
    assert "RejectionSamplingStrategy" in text
    code, out, _ = command("report", str(journal))
    assert code == 0
    assert out.startswith("Run of 30 items")


def test_two_runs_are_compared(command, journal, write_journal, tmp_path):
    other = write_journal(range(29), {"loop_budget": 4}, action=lambda n: f"Harbour {n}.")
    code, out, err = command("report", str(journal), "--compare", str(other))
    assert (code, err) == (0, "")
    assert "items finished" in out
    assert "concurrency_budget: A has 2, B has 1" in out
    assert "Of 29 items that both have finished" in out
    page = tmp_path / "compared.html"
    assert command("report", str(journal), "--compare", str(other), "-o", str(page))[0] == 0
    assert "Two runs compared" in HtmlPage(page.read_text(encoding="utf-8")).text
    for extra, exit_code, says in (
        (("--item", "3"), 2, "--item can't be combined with --compare"),
        (("-o", str(other)), 3, "exists and isn't a report"),
    ):
        code, _, err = command("report", str(journal), "--compare", str(other), *extra)
        assert (code, says in err) == (exit_code, True)
    code, _, err = command("report", "-", "--compare", str(other))
    assert (code, "can't be read from standard input" in err) == (2, True)
    code, _, err = command("report", str(journal), "--compare", str(tmp_path / "none.db"))
    assert (code, "none.db: there is no such file" in err) == (3, True)


def test_a_run_of_several_processes_is_compared_item_by_item(
    command, journal, write_journal, tmp_path
):
    for number in range(11):
        one = write_journal(range(number, 30, 11), {}, action=lambda n: f"Harbour {n}.")
        one.rename(tmp_path / f"shard-{number + 1}-of-11.db")
    code, out, _ = command("report", str(journal), "--compare", str(tmp_path))
    assert code == 0
    assert "Of 30 items that both have finished" in out


def test_an_item_that_is_not_there_is_bad_usage(command, journal):
    code, _, err = command("report", str(journal), "--item", "99")
    assert code == 2
    assert err.endswith("run.db: item 99: no such item\n")


def test_a_damaged_journal_is_an_error(command, tmp_path):
    path = tmp_path / "run.db"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    code, _, err = command("report", str(path))
    assert code == 3
    assert err.startswith(f"mellea-like: journal {path}: ")
    assert err.count(str(path)) == 1
    assert len(err.splitlines()) == 1


def test_an_item_is_read_without_a_look_at_the_rest_of_the_journal(command, journal, tmp_path):
    path = tmp_path / "run.db"
    pages = bytearray(journal.read_bytes())
    page = pages.rindex(b"Harbour 20.") // 4096 * 4096
    assert b"Harbour 7." not in pages[page : page + 4096]
    pages[page : page + 4096] = b"x" * 4096
    path.write_bytes(pages)
    assert command("report", str(path), "--item", "7")[0] == 0
    for damaged in (("--item", "20"), ("--item", "99"), ()):  # One that isn't there may be lost.
        code, _, err = command("report", str(path), *damaged)
        assert code == 3
        assert "damaged" in err


def test_the_lines_of_an_item_show_its_prompt_and_its_reply(command, journal):
    out = command("report", str(journal), "--item", "7")[1]
    assert "\nPrompt:\n  Harbour 7.\n" in out
    [reply, said] = out.splitlines()[-2:]
    assert reply == "Reply:"
    assert said.startswith("  ")
    assert said != "  (not kept)"


# --- what is neither --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "this is neither a journal of"),
        (b"hello", "this is neither a journal of"),
        (b"\xff\xfe\x00", "this is neither a journal of"),
        (b"[" * 100_000, "this is neither a journal of"),
        (b"[]", "not a trace of a call"),
        (b'{"success": true}', "not a trace of a call"),
        (b'{"format": "mellea_like.run", "version": 1}', "not a trace of a call"),
        (b'{"format": "mellea_like.trace", "version": 3}', "unsupported trace version"),
        (b'{"format": "mellea_like.trace", "version": 1}', "damaged: it lacks"),
    ],
)
def test_anything_else_is_an_error_that_says_what_is_wanted(command, tmp_path, content, words):
    path = tmp_path / "thing"
    path.write_bytes(content)
    code, out, err = command("report", str(path), "-o", str(tmp_path / "report.html"))
    assert (code, out) == (3, "")
    assert words in err
    assert str(path) in err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("output", [[], ["-o", "-"]], ids=["a text", "a page"])
@pytest.mark.parametrize(
    "wrong", [{"depth": "x"}, {"usage": {"requests": [], "input_tokens": 1, "output_tokens": 1}}]
)
def test_a_trace_with_a_wrong_value_is_damaged(command, tmp_path, wrong, output):
    path = tmp_path / "trace.json"
    made = trace_of(("failed", 3), ("passed", 5), best=1)
    made["slices"][0] |= wrong
    path.write_text(json.dumps(made))
    code, out, err = command("report", str(path), *output)
    assert (code, out) == (3, "")
    assert err.startswith(f"mellea-like: {path}: this trace of a call is damaged: ")


def test_a_source_that_is_missing_or_a_directory_is_an_error(command, tmp_path):
    code, _, err = command("report", str(tmp_path / "gone"))
    assert (code, err) == (
        3,
        f"mellea-like: {tmp_path}/gone can't be read: No such file or directory\n",
    )
    assert command("report", str(tmp_path))[0] == 3


def test_a_trace_has_no_items(command, trace):
    code, _, err = command("report", str(trace), "--item", "1")
    assert code == 2
    assert "--item is for journals" in err


# --- the output -------------------------------------------------------------------------------


def test_another_file_is_not_replaced(command, trace, tmp_path):
    page = tmp_path / "mine.txt"
    page.write_text("mine", encoding="utf-8")
    code, _, err = command("report", str(trace), "-o", str(page))
    assert (code, err) == (3, f"mellea-like: {page} exists and isn't a report: name another file\n")
    assert page.read_text(encoding="utf-8") == "mine"


def test_nothing_replaces_what_the_report_is_made_of(command, trace, tmp_path):
    before = trace.read_bytes()
    link = tmp_path / "link.html"
    link.symlink_to(trace)
    for output in (trace, link):
        code, _, err = command("report", str(trace), "-o", str(output))
        assert code == 2
        assert "would overwrite its own source" in err
    assert trace.read_bytes() == before


def test_a_page_has_the_usual_permissions_and_keeps_those_it_had(command, trace, tmp_path):
    page = tmp_path / "report.html"
    mask = os.umask(0o027)
    try:
        command("report", str(trace), "-o", str(page))
    finally:
        os.umask(mask)
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    page.chmod(0o600)
    command("report", str(trace), "-o", str(page))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_an_output_that_can_not_be_written_is_told_before_anything_is_read(command, tmp_path):
    unread = str(tmp_path / "trace.json")
    code, _, err = command("report", unread, "-o", str(tmp_path / "no" / "report.html"))
    assert (code, err) == (3, f"mellea-like: --output: there is no directory {tmp_path / 'no'}\n")
    code, _, err = command("report", unread, "-o", str(tmp_path))
    assert (code, err) == (3, f"mellea-like: {tmp_path} is a directory: name the file to write\n")
    assert not list(tmp_path.iterdir())


def test_a_page_that_can_not_be_written_to_its_end_leaves_the_old_one(
    command, trace, tmp_path, monkeypatch
):
    page = tmp_path / "report.html"
    page.touch()
    # Python would write a module's bytecode only up to the limit, for all later processes.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        code, _, err = command("report", str(trace), "-o", str(page))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, err) == (3, f"mellea-like: {page} can't be written: File too large\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "trace.json"]
    assert page.read_bytes() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_an_error(command, trace):
    code, _, err = command("report", str(trace), "-o", "/dev/full")
    assert (code, err) == (3, "mellea-like: /dev/full can't be written: No space left on device\n")


def test_without_jinja2_the_lines_still_come_and_the_page_says_what_to_install(trace):
    code = """
import sys
sys.modules["jinja2"] = None
from mellea_like.cli.main import main
print(main(["report", sys.argv[1]]), main(["report", sys.argv[1], "-o", "/dev/null"]))
"""
    done = python(code, str(trace))
    assert done.stdout.startswith("Passed")
    assert done.stdout.endswith("\n0 3\n")
    assert done.stderr == (
        "mellea-like: a report as HTML needs jinja2: pip install 'mellea-like[report]'\n"
    )
