"""``mellea-like export``: from a journal to files for training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command_line import Terminal
from export_kit import lines, sampled

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends import FunctionBackend
from mellea_like.core.generation import Generation
from mellea_like.export import api


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """Sample three items: one never passes, and the others pass with the second draw."""
    replies = iter(["bad", "g\x1bood", "bad", "bad", "worse", "good"])
    check = Requirement("is good", lambda c: c.text.startswith("g"), inline=True)
    backend = FunctionBackend(lambda _: next(replies))
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=1, requirements=[check]
    )
    return sampled(tmp_path_factory.mktemp("run") / "run.db", strategy, ["one", "two", "three"])


def test_one_command_makes_pairs_and_their_card(command, journal, tmp_path):
    out = tmp_path / "pairs.jsonl"
    code, stdout, err = command("export", str(journal), "--format", "dpo", "-o", str(out))
    assert (code, stdout) == (0, "")
    assert err == (
        f"Wrote {out}: 2 rows from 3 items, none from 1: no reply passed (1)."
        f" {out}.card.md describes where it comes from.\n"
    )
    assert [row["rejected"][0]["content"] for row in lines(out)] == ["bad", "worse"]
    code, _, err = command("export", str(journal), "--format", "dpo", "-o", str(out))
    assert (code, err) == (
        3,
        f"mellea-like: {out} already exists: name another file, or replace it with --force\n",
    )
    options = ("--force", "--quiet", "--details", "--min-margin", "2")
    code, _, err = command("export", str(journal), "--format", "dpo", "-o", str(out), *options)
    assert code == 1
    assert (
        "0 rows from 3 items, none from 3: the margin is too small (2), no reply passed (1)" in err
    )
    assert lines(out) == []


def test_standard_output_is_for_pipes(command, journal):
    options = ("--format", "kto", "--max-per-item", "1", "-o", "-")
    code, out, err = command("export", str(journal), *options)
    assert code == 0
    labels = [json.loads(line)["label"] for line in out.splitlines()]
    assert labels == [True, False, False, True, False]
    assert "\x1b" not in out
    assert err == "5 rows from 3 items.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("-o", "-"), 2, "Missing option '--format'. Choose from: sft, prompt-completion, dpo,"),
        (("--format", "ppo", "-o", "-"), 2, "'ppo' is not one of"),
        (("--format", "dpo", "-o", "-", "--min-margin", "-1"), 2, "greater than or equal to 0"),
        (("--format", "openai", "-o", "-", "--details"), 2, "columns: leave out --details"),
        (("--format", "parquet", "-o", "-"), 2, "name a file"),
        (("--format", "sft", "-o", "w.csv"), 2, "w.csv would be sft, but its name says CSV"),
        (("--format", "sft", "-o", "-", "--pairs", "all"), 2, "single replies, to which --pairs"),
        (("--format", "csv", "-o", "-", "--min-margin", "1"), 2, "to which --min-margin says noth"),
        (("--format", "jsonl", "-o", "-", "--keep-repairs"), 2, "to which --keep-repairs says"),
        (
            ("--format", "sft", "-o", "-", "--prompt=bare", "--keep-repairs"),
            2,
            "--prompt bare can't be combined with --keep-repairs, which keeps prompts",
        ),
        (("--format", "sft", "-o", "-", "--drop=late"), 2, "--drop must be 'incomplete' or"),
        (
            ("--format", "sft", "-o", "-", "--min-chars=9", "--max-chars=8"),
            2,
            "--min-chars 9 is more than --max-chars 8: no reply could be kept",
        ),
        (("--format", "dpo", "-o", "no/where"), 3, "there is no directory"),
        (("--format", "dpo", "-o", "."), 3, "is a directory"),
        (("--format", "dpo", "-o", "run.db"), 3, "already exists"),
        (("--format", "dpo", "-o", "run.db", "--force"), 2, "would replace it"),
        (("--format", "dpo", "-o", "/dev/full"), 3, "can't write /dev/full: No space left"),
        (("gone.db", "--format", "dpo", "-o", "-"), 3, "gone.db"),
    ],
)
def test_a_mistake_is_one_sentence(command, journal, monkeypatch, arguments, code, problem):
    monkeypatch.chdir(journal.parent)
    before = sorted(journal.parent.iterdir())
    ended, out, err = command("export", "run.db", *arguments)
    assert (ended, out) == (code, "")
    assert problem in err
    assert err.startswith("mellea-like: ")
    assert len(err.splitlines()) <= 2
    assert sorted(journal.parent.iterdir()) == before


def test_an_output_may_be_a_device_or_a_link_in_a_folder_that_can_not_be_written(
    command, journal, tmp_path, monkeypatch
):
    link, closed = tmp_path / "links" / "rows", {Path("/dev"), tmp_path / "links"}
    link.parent.mkdir()
    link.symlink_to(tmp_path / "rows")
    monkeypatch.setattr(os, "access", lambda path, _: path not in closed)
    for output in ("/dev/null", str(link)):
        given = ("--format", "dpo", "-o", output, "--no-card")
        code, _, err = command("export", str(journal), *given)
        assert code == 0, err
    assert (tmp_path / "rows").is_file()


def test_a_run_that_is_named_twice_is_read_once(command, journal):
    again = str(journal.parent / ".." / journal.parent.name / journal.name)
    code, out, _ = command("export", str(journal), again, "--format", "jsonl", "-o", "-")
    assert (code, len(out.splitlines())) == (0, 6)
    code, out, _ = command("report", str(journal), again, str(journal.parent))
    assert code == 0
    assert out.startswith("Run of 3 items")


def test_an_interrupt_leaves_no_half_file(command, journal, tmp_path, monkeypatch):
    made = api.rows_of

    def rows_of(item, *arguments, **more):
        if item.id == 1:
            signal.raise_signal(signal.SIGINT)
        return made(item, *arguments, **more)

    monkeypatch.setattr(api, "rows_of", rows_of)
    code, _, err = command("export", str(journal), "--format", "dpo", "-o", str(tmp_path / "out"))
    assert (code, err) == (130, "Interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_shows_how_far_it_is(journal, tmp_path):
    out = str(tmp_path / "out")
    with Terminal("export", str(journal), "--format", "dpo", "-o", out, pipe=False) as terminal:
        code, _ = terminal.finish()
    assert code == 0
    assert "/0 items" in terminal.seen or "/3 items" in terminal.seen
    assert f"Wrote {out}: 2 rows" in " ".join(terminal.plain.split())


def test_a_run_without_words_says_how_to_have_them(command, tmp_path):
    strategy = RejectionSamplingStrategy(FunctionBackend(lambda _: "good"))
    path = sampled(tmp_path / "run.db", strategy, ["one"], "none")
    code, _, err = command("export", str(path), "--format", "sft", "-o", "-")
    assert code == 3
    assert 'sample with text="all" or text="best" (--journal-text)' in err


def test_a_directory_of_journals_is_one_run_to_a_report(command, journal, tmp_path):
    (tmp_path / "shards").mkdir()
    strategy = RejectionSamplingStrategy(FunctionBackend(lambda _: "good"))
    for name in "ab":
        sampled(tmp_path / "shards" / f"{name}.db", strategy, ["one", "two"])
    code, out, err = command("report", str(tmp_path / "shards"), str(journal))
    assert (code, err) == (0, "")
    assert out.startswith("Run of 7 items: <lambda> · differs between the 3 journals · started")
    assert "#5 run.db #1: two: is good" in out
    page = tmp_path / "report.html"
    code, _, err = command("report", str(tmp_path / "shards"), "-o", str(page))
    assert code == 0
    assert f"Wrote {page}: 4 items of 2 journals" in err
    code, _, err = command("report", str(tmp_path / "shards"), "--item", "1")
    assert (code, err) == (
        2,
        "mellea-like: --item is for one journal: name the one that has the item\n",
    )
    (tmp_path / "none").mkdir()
    code, _, err = command("report", str(tmp_path / "none"))
    assert code == 3
    assert "is a directory without a journal" in err


def test_thoughts_and_filters_have_options(command, tmp_path):
    strategy = RejectionSamplingStrategy(
        FunctionBackend(lambda _: Generation("a reply", finish_reason="stop", reasoning="Hm.")),
        requirements=[Requirement("is short", lambda c: len(c.text) < 20, inline=True)],
    )
    path = str(sampled(tmp_path / "run.db", strategy, ["one"]))
    plain = ("export", path, "--format", "sft", "-o", "-")
    [row] = [json.loads(line) for line in command(*plain)[1].splitlines()]
    assert row["messages"][1]["reasoning_content"] == "Hm."
    code, out, _ = command(*plain, "--reasoning", "inline", "--prompt", "bare")
    assert (code, json.loads(out)["messages"]) == (
        0,
        [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "<think>\nHm.\n</think>\n\na reply"},
        ],
    )
    filters = ("--drop", "empty", "--drop", "incomplete", "--min-chars", "3", "--max-chars", "6")
    code, out, err = command(*plain, *filters)
    assert (code, out) == (1, "")
    assert "the filters leave no reply (1)" in err
    _, _, err = command("export", path, "--format", "openai", "-o", "-")
    assert "replies whose thoughts were left out, as the format has no field for them (1)" in err
