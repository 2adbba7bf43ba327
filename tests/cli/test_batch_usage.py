"""Mistakes in a batch: one sentence each, before anything is sent or replaced."""

from __future__ import annotations

import pytest
from rows_kit import write_rows


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", 3)
    return tmp_path


BASE = ("in.jsonl", "-p", "Say {{ text }}", "-o", "out.jsonl")
MARKOV = ("--backend", "markov")
JOBS = ("--batch-api", "openai", "--model", "m", "--journal", "j.db")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (BASE[1:], 2, "Missing argument 'INPUT'"),
        (BASE[:1] + BASE[3:], 3, "line 1: the row has no field 'messages', and there is no"),
        ((*BASE, "--extra", "top_k"), 2, "--extra 'top_k': write a name and a value"),
        ((*BASE, "--extra", "top_p=1"), 2, "use the option --top-p instead"),
        ((*BASE, "--extra", "n=2"), 2, "--extra n: mellea-like itself sets this field"),
        ((*BASE, "--drop", "late"), 2, "--drop must be 'incomplete' or 'empty', not 'late'"),
        ((*BASE[:4], "o.csv", "--reasoning", "field"), 2, "--reasoning field is for JSONL"),
        ((*BASE, "--system", "@no"), 3, "--system: can't read no: No such file"),
        (BASE[:3], 2, "Missing option '--output'"),
        ((*BASE, "--resume"), 2, "--resume needs the journal of the run: add --journal FILE"),
        ((*BASE, "--journal-text=none"), 2, "--journal-text none is for a journal: add --journal"),
        ((*BASE, "--min-chars=9", "--max-chars=8"), 2, "--min-chars 9 is more than --max-chars 8"),
        ((*BASE, "--canary"), 2, "--canary is for a batch API: add --batch-api NAME"),
        ((*BASE, "--unique", "2"), 2, "--unique must be exact, or a similarity between"),
        ((*BASE, "--breadth-first", "--lanes=2"), 2, "can't be combined with --lanes 2"),
        ((*BASE, "--breadth-first", "--select=consensus"), 2, "can't be combined with --select"),
        (
            (*BASE, "--breadth-first", "--schedule=staggered:1"),
            2,
            "--breadth-first can't be combined with --schedule staggered:1: rounds decide",
        ),
        ((*BASE, *JOBS, "--lanes=2"), 2, "--batch-api openai can't be combined with --lanes 2"),
        ((*BASE, *JOBS, "--processes=2"), 2, "with --batch-api openai: there are no rounds"),
        (("-", *BASE[1:], "--breadth-first"), 2, "can't be combined with INPUT -"),
        (
            (*BASE, "--breadth-first", "--journal=j.db", "--journal-text=best"),
            2,
            "can't be combined with --journal-text best: items continue from the texts",
        ),
        ((*BASE, "--first", "0"), 2, "Invalid value for '--first'"),
        ((*BASE, "--on-bad-line", "cry"), 2, "'cry' is not one of 'stop', 'skip'"),
        ((*BASE, "--budget", "cost=1"), 2, "--budget cost needs the price of tokens: add --price"),
        ((*BASE, "--model", " "), 2, "--model is for --backend openai"),
        ((*BASE, "--require", "is kind"), 2, "--require needs a model that can judge"),
        (("in.jsonl", "-p", "{text}", "-o", "o.csv"), 2, "--prompt would be the same for every"),
        (("no.jsonl", *BASE[1:]), 3, "can't read no.jsonl: No such file"),
        (("/", *BASE[1:]), 3, "can't read /: Is a directory"),
        (("in.txt", *BASE[1:]), 2, "INPUT: in.txt does not end in one of .jsonl, .ndjson"),
        (("utf16.csv", *BASE[1:]), 3, "utf16.csv: the text is UTF-16: convert it to UTF-8"),
        (("twice.csv", *BASE[1:]), 3, "twice.csv: the first line, which must hold"),
        (("no.parquet", *BASE[1:]), 3, "no.parquet: it isn't a Parquet file: "),
        (("array.jsonl", *BASE[1:]), 3, "array.jsonl: line 1 isn't an object such as"),
        (
            ("in.jsonl", "-p", "{{ txt }}", "-o", "out.jsonl"),
            3,
            "in.jsonl: line 1: the prompt can't be filled in: 'txt' is undefined; the row's",
        ),
        (
            ("in.jsonl", "-p", "{{ txt }}", "-o", "o.csv", "--on-bad-line", "skip"),
            3,
            "in.jsonl: not a single line can be read",
        ),
        (("in.jsonl", "-p", "{{ n }}", "-o", "in.jsonl", "--force"), 2, "INPUT and --output are"),
        (("in.jsonl", "-p", "{{ n }}", "-o", "./link.jsonl", "--force"), 2, "are the same file"),
        ((*BASE, "--failed", "out.jsonl"), 2, "--output and --failed are the same file"),
        ((*BASE, "--journal", "out.jsonl"), 2, "--journal and --output are the same file"),
        (("in.jsonl", "-p", "{{ n }}", "-o", "-", "--failed", "-"), 2, "are the same file, -"),
        ((*BASE[:4], "there.jsonl"), 3, "--output: there.jsonl already exists: name another"),
        ((*BASE, "--failed", "there.jsonl"), 3, "--failed: there.jsonl already exists"),
        ((*BASE[:4], "sub"), 2, "--output: sub does not end in one of .jsonl"),
        ((*BASE[:4], "dir.csv"), 3, "--output: dir.csv is a directory: name a file"),
        ((*BASE[:4], "no/out.csv"), 3, "--output: there is no directory "),
        ((*BASE[:4], "out.parquet"), 2, "a crash would lose everything: add --journal FILE"),
        ((*BASE, "--journal", "there.jsonl"), 3, "file is not a database"),
        ((*BASE, "--journal", "there.jsonl", "--resume"), 3, "there.jsonl"),
        ((*BASE, "--journal", "no/run.db"), 3, "no/run.db"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_and_costs_nothing(command, here, arguments, code, sentence):
    (here / "in.txt").write_text('{"text": "a"}\n')
    (here / "array.jsonl").write_text('[{"text": "a"}]\n')
    (here / "utf16.csv").write_text("text\na\n", encoding="utf-16")
    (here / "twice.csv").write_text("text,text\na,b\n")
    (here / "no.parquet").write_text("text\na\n")
    (here / "there.jsonl").write_text("mine\n")
    (here / "dir.csv").mkdir()
    (here / "link.jsonl").symlink_to(here / "in.jsonl")
    before = {path.name: path.is_file() and path.read_bytes() for path in here.iterdir()}
    backend = () if "--batch-api" in arguments else MARKOV
    found, out, err = command("batch", *backend, *arguments)
    assert (found, out) == (code, "")
    assert sentence in err
    assert "mellea-like: " in err
    assert "Traceback" not in err
    assert {path.name: path.is_file() and path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.parametrize("given", [(), ("--require", "is kind"), ("-q",)])
def test_without_a_model_named_nothing_runs(command, here, given):
    code, out, err = command("batch", *BASE, *given)
    assert (code, out) == (2, "")
    assert err == (
        "mellea-like: batch needs a backend: add --model NAME, --base-url URL or --gguf FILE"
        " (--backend markov understands nothing and is for trying things out)\n"
    )
    assert not (here / "out.jsonl").exists()


def test_a_server_that_is_not_there_is_told_once_even_quietly(command, here):
    there = ("--base-url", "http://127.0.0.1:9/v1", "--retries", "0")
    code, _, err = command("batch", *BASE, *there, "-q")
    assert code == 3
    first, second = err.splitlines()
    assert first.startswith("line 1: can't reach http://127.0.0.1:9/v1: ")
    assert second.startswith("3 rows: 0 passed, 3 ended in an error; ")


def test_results_may_go_nowhere(command, here):
    code, _, err = command("batch", *MARKOV, *BASE[:4], "/dev/null", "--check", "words>=1")
    assert (code, "3 rows: 3 passed" in err) == (0, True)


def test_the_help_names_the_formats_and_the_exit_codes(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("batch", "--help")
    line = 'mellea-like batch reviews.jsonl --prompt "In one word: {{ text }}" \\'
    assert line in [found.strip() for found in out.splitlines()]  # It does not wrap.
    words = " ".join(out.replace("│", " ").split())
    assert code == 0
    assert (
        "A file that ends in .jsonl, .csv, .tsv or .parquet, or - for JSONL on standard output"
        in words
    )
    assert "Exit codes: 0 all rows passed, 1 some rows failed" in words
    assert "130 interrupted, 143 terminated (SIGTERM)." in words
