"""``mellea-like report``: from a journal or a trace to a page, and never over something else."""

from __future__ import annotations

import io
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import COMMAND, environment
from html_page import HtmlPage
from report_kit import NASTY, nasty_trace, trace_of

from mellea_like.cli.main import main
from mellea_like.cli.report import _exchange
from mellea_like.cli.terminal import UNSAFE


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    made = trace_of(("failed", 3), ("passed", 5), best=1)
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


# --- from a trace -----------------------------------------------------------------------------


def test_without_an_output_it_prints_a_few_lines(command, trace):
    code, out, err = command("report", str(trace))
    assert (code, err) == (0, "")
    assert out.startswith("Passed: iteration 2 won.\n2 iterations, 1 subsample, 2 requests")
    assert len(out.splitlines()) < 12


def test_with_an_output_it_writes_a_page_and_says_what_and_where(command, trace, tmp_path):
    page = tmp_path / "report.html"
    code, out, err = command("report", str(trace), "-o", str(page))
    assert (code, out) == (0, "")
    assert err == f"Wrote {page}: a call, {round(page.stat().st_size / 1000)} KB.\n"
    assert "Passed: iteration 2 won" in HtmlPage(page.read_text(encoding="utf-8")).text


def test_a_page_goes_to_standard_output_as_utf_8_whatever_the_locale(trace):
    done = subprocess.run(
        [*COMMAND, "report", str(trace), "-o", "-"],
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "·" in HtmlPage(done.stdout.decode("utf-8")).text


def test_a_trace_comes_from_standard_input(command, trace):
    kept, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(trace.read_bytes()), "utf-8")
    try:
        code, out, _ = command("report", "-")
    finally:
        sys.stdin = kept
    assert code == 0
    assert out.startswith("Passed")


def test_the_title_is_the_users(command, trace):
    out = command("report", str(trace), "-o", "-", "--title", "Häfen & Buchten")[1]
    assert "<title>Häfen &amp; Buchten</title>" in out


def test_the_lines_can_go_to_a_file(command, trace, tmp_path):
    lines = tmp_path / "lines.txt"
    assert command("report", str(trace), "--text", "-o", str(lines))[0] == 0
    assert lines.read_text(encoding="utf-8") == command("report", str(trace))[1]


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


# --- from a journal ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "run.db"
    code = f"""
import anyio
from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import SimulatedBackend
from mellea_like.backends.simulated import passes
from mellea_like.batch import sample_many

async def main():
    backend = SimulatedBackend(seed=3, median=0.0, pass_rate=0.5)
    strategy = RejectionSamplingStrategy(backend, requirements=[passes], concurrency_budget=2)

    def ask(n):
        if n == 29:
            raise ValueError("no such harbour")
        return f"Harbour {{n}}."

    async with sample_many(
        strategy, range(30), action=ask, concurrency=4, journal={str(path)!r}
    ) as results:
        async for item in results:
            pass

anyio.run(main)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
    return path


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


def test_an_item_of_a_journal_has_a_report_of_its_own(command, journal):
    code, out, err = command("report", str(journal), "--item", "7", "-o", "-")
    assert (code, err) == (0, "")
    assert "<h1>Harbour 7.</h1>" in out
    assert command("report", str(journal), "--item", "7")[1].startswith("Passed: iteration ")


def test_an_item_that_is_not_there_is_bad_usage(command, journal):
    code, _, err = command("report", str(journal), "--item", "99")
    assert code == 2
    assert err.endswith("run.db has no item 99\n")


def test_an_item_that_has_no_trace_says_so(command, journal):
    code, _, err = command("report", str(journal), "--item", "29")
    assert code == 3
    assert err.endswith("run.db has no trace of item 29: errored\n")


def test_a_damaged_journal_is_an_error(command, tmp_path):
    path = tmp_path / "run.db"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    code, _, err = command("report", str(path))
    assert code == 3
    assert err.startswith(f"mellea-like: journal {path}: ")
    assert err.count(str(path)) == 1
    assert len(err.splitlines()) == 1


def test_a_journal_whose_pages_are_overwritten_says_what_to_do(command, journal, tmp_path):
    path = tmp_path / "run.db"
    path.write_bytes(journal.read_bytes()[:4096] + b"x" * 40_000)
    code, _, err = command("report", str(path))
    assert code == 3
    assert "damaged" in err
    assert "begin a new journal; `sqlite3 FILE .recover` may save rows" in err
    assert err.count(str(path)) == 1


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


@pytest.mark.parametrize("item", [(), ("--item", "7")])
def test_a_journal_in_a_pipe_is_to_be_named_as_a_file(command, journal, item):
    kept, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(journal.read_bytes()), "utf-8")
    try:
        code, _, err = command("report", "-", *item)
    finally:
        sys.stdin = kept
    assert code == 2
    assert "can't be read from a pipe: name " in err


def test_the_lines_of_an_item_show_its_prompt_and_its_reply(command, journal):
    out = command("report", str(journal), "--item", "7")[1]
    assert "\nPrompt:\n  Harbour 7.\n" in out
    [reply, said] = out.splitlines()[-2:]
    assert reply == "Reply:"
    assert said.startswith("  ")
    assert said != "  (none is kept)"


def test_long_and_missing_texts_of_an_item_are_cut_and_told():
    trace = trace_of(("failed", 3), ("errored", 1), best=0)
    trace["slices"][0]["text"] = "x" * 5000
    assert len(_exchange(trace)) < 2200
    assert _exchange(trace).endswith("  ... and 3,000 more characters: -o FILE writes a page\n")
    trace["best_index"] = None
    assert _exchange(trace) == "Prompt:\n  Say a word.\nReply:\n  (none is kept)\n"
    assert _exchange(trace | {"slices": []}) == ""


def test_the_help_says_what_a_report_is_made_of(command):
    words = " ".join(command("report", "--help")[1].split())
    assert "or of what mellea-like sample --trace wrote" in words


# --- what is neither --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "neither a journal nor a trace"),
        (b"hello", "neither a journal nor a trace"),
        (b"\xff\xfe\x00", "neither a journal nor a trace"),
        (b"[" * 100_000, "neither a journal nor a trace"),
        (b"[]", "this JSON isn't a trace of a call"),
        (b'{"success": true}', "this JSON isn't a trace of a call"),
        (b'{"format": "mellea_like.run", "version": 1}', "this JSON isn't a trace of a call"),
        (b'{"format": "mellea_like.trace", "version": 2}', "version 1 can be read here, not"),
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


def test_a_trace_whose_numbers_are_none_is_an_error(command, trace):
    data = json.loads(trace.read_text(encoding="utf-8"))
    data["slices"][0]["started_at"] = "soon"
    trace.write_text(json.dumps(data), encoding="utf-8")
    code, _, err = command("report", str(trace), "-o", "-")
    assert code == 3
    assert "damaged" in err


def test_a_source_that_is_missing_or_a_directory_is_an_error(command, tmp_path):
    code, _, err = command("report", str(tmp_path / "gone"))
    assert (code, err) == (
        3,
        f"mellea-like: {tmp_path}/gone can't be read: No such file or directory\n",
    )
    assert command("report", str(tmp_path))[0] == 3


def test_a_source_without_end_is_an_error(command):
    code, _, err = command("report", "/dev/zero")
    assert code == 3
    assert "more than 64 MiB" in err


@pytest.mark.parametrize("stream", [None, io.StringIO("text")])
def test_standard_input_that_has_no_bytes_is_an_error(command, stream):
    kept, sys.stdin = sys.stdin, stream
    try:
        code, _, err = command("report", "-")
    finally:
        sys.stdin = kept
    assert (code, err) == (3, "mellea-like: -: standard input can't be read\n")


def test_a_trace_has_no_items(command, trace):
    code, _, err = command("report", str(trace), "--item", "1")
    assert code == 2
    assert "--item is for journals" in err


# --- the output -------------------------------------------------------------------------------


def test_a_report_replaces_a_report_and_an_empty_file(command, trace, tmp_path):
    page = tmp_path / "report.html"
    page.touch()
    for _ in range(2):
        assert command("report", str(trace), "-o", str(page))[0] == 0
    assert page.stat().st_size > 10_000


def test_another_file_is_replaced_only_by_force(command, trace, tmp_path):
    page = tmp_path / "mine.txt"
    page.write_text("mine", encoding="utf-8")
    code, _, err = command("report", str(trace), "-o", str(page))
    assert (code, err) == (
        3,
        f"mellea-like: {page} exists and isn't a report: --force replaces it\n",
    )
    assert page.read_text(encoding="utf-8") == "mine"
    assert command("report", str(trace), "-o", str(page), "--force")[0] == 0
    assert "<!doctype html>" in page.read_text(encoding="utf-8")


def test_nothing_replaces_what_the_report_is_made_of(command, trace, tmp_path):
    before = trace.read_bytes()
    link = tmp_path / "link.html"
    link.symlink_to(trace)
    for output in (trace, link):
        code, _, err = command("report", str(trace), "-o", str(output), "--force")
        assert code == 2
        assert "would replace what it is made of" in err
    assert trace.read_bytes() == before


def test_a_link_to_a_report_stays_a_link(command, trace, tmp_path):
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.touch()
    link.symlink_to(page)
    assert command("report", str(trace), "-o", str(link))[0] == 0
    assert link.is_symlink()
    assert page.stat().st_size > 10_000


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


def test_an_output_that_can_not_be_written_leaves_nothing_behind(command, trace, tmp_path):
    code, _, err = command("report", str(trace), "-o", str(tmp_path / "no" / "report.html"))
    assert (code, err.count("\n")) == (3, 1)
    assert "can't be written: No such file or directory" in err
    assert command("report", str(trace), "-o", str(tmp_path))[0] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json"]


def test_an_output_that_is_no_file_is_written_to(command, trace):
    assert command("report", str(trace), "-o", "/dev/null")[:2] == (0, "")
    assert Path("/dev/null").is_char_device()


def test_a_name_that_no_file_can_have_is_an_error(command, trace):
    code, _, err = command("report", str(trace), "-o", "x" * 300)
    assert code == 3
    assert err.endswith("can't be written: File name too long\n")


def test_a_page_that_can_not_be_written_to_its_end_leaves_the_old_one(command, trace, tmp_path):
    page = tmp_path / "report.html"
    page.touch()
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
def test_standard_output_on_a_full_disk_is_an_error(trace):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "report", str(trace), "-o", "-"],
            env=environment(), stdout=full, stderr=subprocess.PIPE, check=False, timeout=50,
        )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith(b"mellea-like: can't write to standard output: ")


def test_standard_output_need_not_be_a_file(trace):
    kept, sys.stdout = sys.stdout, io.StringIO()
    try:
        assert main(["report", str(trace)]) == 0
        assert sys.stdout.getvalue().startswith("Passed")
    finally:
        sys.stdout = kept


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_an_error(command, trace):
    code, _, err = command("report", str(trace), "-o", "/dev/full")
    assert (code, err) == (3, "mellea-like: /dev/full can't be written: No space left on device\n")


def test_without_jinja2_the_lines_still_come_and_the_page_says_what_to_install(trace):
    code = """
import sys
sys.modules["jinja2"] = None
from mellea_like.cli.main import main
print(main(["report", sys.argv[1]]), main(["report", sys.argv[1], "-o", "-"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace)],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert done.stdout.startswith("Passed")
    assert done.stdout.endswith("\n0 3\n")
    assert done.stderr == (
        "mellea-like: a report as HTML needs jinja2: pip install 'mellea-like[report]'\n"
    )
