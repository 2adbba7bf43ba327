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


def test_a_generator_that_nobody_named_is_told_even_quietly(command):
    code, _, err = command("sample", "Write.", "-q")
    assert code == 0
    [line] = err.splitlines()
    assert line.startswith(
        "Backend: markov, a small Markov chain text generator that understands n"
    )


def test_nothing_passed_exits_with_1_the_best_failure_and_why(command):
    code, out, err = command(
        *("sample", "Write.", "--check", "words>=1", "--check", "contains:\u2603", "-q"),
        *("--backend=markov", "--attempts=1"),
    )
    assert code == 1
    assert out.strip()
    assert err.splitlines()[0].startswith("Nothing passed: all attempts were used; 4 draws")
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


def test_explain_shows_a_table_of_all_draws_on_standard_error(command):
    code, out, err = command(
        *("sample", "Write.", "--check", "chars<1", "--explain", "--attempts=2", "-q"),
        "--backend=markov",
    )
    assert code == 1
    assert "outcome" not in out
    assert err.splitlines()[0].startswith("Draws, in the order they ended")
    assert err.count("   failed   ") == 8


def test_a_seed_makes_a_run_repeatable(command):
    arguments = ["Write about lists.", "--seed", "7", "--lanes=1", "-q"]
    assert command("sample", *arguments) == command("sample", *arguments)
