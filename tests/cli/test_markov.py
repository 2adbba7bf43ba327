"""Runs with the embedded generator: results, progress, records, exit codes."""

from __future__ import annotations

import json


def test_the_result_alone_goes_to_standard_output_and_passes_its_checks(command):
    code, out, err = command(
        *("sample", "Write about Python classes.", "--check", "words<=20", "-q", "--attempts=20"),
        *("--check", "contains:class", "--backend", "markov", "--strategy", "multi-turn"),
    )
    assert (code, err) == (0, "")
    assert len(out.split()) <= 20
    assert "class" in out


def test_standard_error_says_which_backend_and_what_it_is(command):
    _, _, err = command("sample", "Write about lists.")
    assert err.startswith("Backend: markov, a small Markov chain text generator")
    assert "understands nothing" in err.splitlines()[0]


def test_without_a_terminal_progress_is_plain_lines(command):
    code, _, err = command("sample", "Write.", "--check", "chars<1", "--attempts=2", "--seed", "1")
    assert code == 1
    lines = err.splitlines()
    assert sum(line.startswith("attempt ") for line in lines) == 8
    assert "\x1b" not in err
    assert any("failed after" in line and ": chars<1: it has" in line for line in lines)


def test_a_generator_that_nobody_named_is_told_even_quietly(command):
    code, _, err = command("sample", "Write.", "-q")
    assert code == 0
    [line] = err.splitlines()
    assert line.startswith(
        "Backend: markov, a small Markov chain text generator that understands n"
    )


def test_nothing_passed_exits_with_1_the_best_failure_and_why(command):
    code, out, err = command(
        "sample",
        "Write.",
        "--check",
        "words>=1",
        "--check",
        "contains:\u2603",
        "-q",
        "--backend=markov",
        "--attempts=1",
    )
    assert code == 1
    assert out.strip()
    assert err.splitlines()[0].startswith("Nothing passed: all attempts are spent; 4 draws")
    assert err.splitlines()[2] == '  - contains:\u2603: it does not contain "\u2603"'


def test_json_is_one_object_with_every_slice(command):
    code, out, _ = command("sample", "Write.", "--check", "words>=1", "--json", "--lanes=1")
    assert code == 0
    assert out.count("\n") == 1
    record = json.loads(out)
    assert record["success"] is True
    assert record["value"] == record["text"] == record["slices"][-1]["text"]
    assert record["stop_reason"] == "passed"
    assert (record["strategy"], record["backend"]) == ("rejection", "markov")
    assert record["sampling_id"]
    assert record["elapsed"] >= 0
    assert record["usage"]["requests"] == 1
    [piece] = record["slices"]
    assert piece["outcome"] == "passed"
    assert piece["validations"][0]["name"] == "words>=1"


def test_json_of_a_failure_has_the_reasons(command):
    code, out, _ = command("sample", "Write.", "--check", "chars<1", "--json", "--attempts=1")
    record = json.loads(out)
    assert code == 1
    assert record["success"] is False
    assert record["value"] is None
    assert record["text"]
    assert record["stop_reason"] == "exhausted"
    assert len(record["slices"]) == 4
    assert "it has" in record["slices"][0]["validations"][0]["reason"]


def test_explain_shows_a_table_of_all_draws_on_standard_error(command):
    code, out, err = command(
        "sample",
        "Write.",
        "--check",
        "chars<1",
        "--explain",
        "--attempts=2",
        "-q",
        "--backend=markov",
    )
    assert code == 1
    assert "outcome" not in out
    assert err.splitlines()[0].startswith("Draws, in the order they ended")
    assert err.count("   failed   ") == 8


def test_a_seed_makes_a_run_repeatable(command):
    arguments = ["Write about lists.", "--seed", "7", "--lanes=1", "-q"]
    assert command("sample", *arguments) == command("sample", *arguments)


def test_a_corpus_of_ones_own_is_what_it_learns_from(command, tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("The heron waits beside the water. The heron stands beside the reeds.\n" * 3)
    code, out, _ = command("sample", "Write.", "--corpus", str(file), "-q")
    assert code == 0
    assert set(out.split()) <= {
        "The",
        "heron",
        "waits",
        "stands",
        "beside",
        "the",
        "water.",
        "reeds.",
    }


def test_a_schema_is_a_check_on_the_local_backend_too(command, tmp_path):
    file = tmp_path / "s.json"
    file.write_text('{"type": "object"}')
    code, _, err = command("sample", "Write.", "--schema", str(file), "--attempts=1", "-q")
    assert code == 1
    assert "schema:s.json: it is not valid JSON" in err
