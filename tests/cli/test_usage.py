"""Mistakes on the command line: one sentence, no traceback, and the right exit code."""

from __future__ import annotations

import json

import pytest
from http_server import Answer, OpenAIServer

from mellea_like.cli import exit_codes

JUDGE = ["--require", "is kind"]
NO_MODEL = "needs a model name at https://api.openai.com/v1: add --"
NO_TEXT = "must be a string that isn't empty"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--check", "word<=5"], "check 'word<=5' is unknown; did you mean words<=5"),
        (["--check", "regex:("], "check 'regex:(': `(` isn't a regular expression"),
        (["--backend", "other"], "'other' is not one of 'markov', 'openai', 'llama'"),
        (["--backend=openai"], f"{NO_MODEL}model"),
        (["--judge-base-url=https://api.openai.com/v1", *JUDGE], f"{NO_MODEL}judge-model NAME"),
        (["--base-url", "", "--model", "m"], f"--base-url {NO_TEXT}"),
        (["--judge-base-url=", "--judge-model=m", *JUDGE], f"--judge-base-url {NO_TEXT}"),
        (["--lanes", "100000000"], "--lanes 100000000 is more than 1000 draws"),
        (["--strategy", "other"], "'other' is not one of 'rejection', 'repair', 'multi-turn'"),
        (["--attempts", "many"], "Invalid value for '--attempts'"),
        (["--lanes", "0"], "--lanes must be at least 1, not 0"),
        (["--attempts=100", "--lanes=11"], "--attempts 100 times --lanes 11 is more than 1000"),
        (["--timeout", "0"], "--timeout must be a number above 0, not 0"),
        (["--timeout", "nan"], "must be a finite number (leave it out for no limit), not nan"),
        (["--model", " "], "--model must be a string that isn't empty, not"),
        (["--judge-model", "m"], "--judge-model names a judge, but there is nothing to judge: add"),
        (["--judge-base-url", "localhost", *JUDGE], "--judge-base-url must be a URL that"),
        (["--backend", "markov", "--model", "m"], "--model is for --backend openai"),
        (["--backend=markov", "--base-url=http://a"], "--base-url is for --backend openai"),
        (["--backend", "openai", "--gguf", "f"], "--gguf is for --backend llama"),
        (["--backend", "openai", "--corpus", "f"], "--corpus is for --backend markov"),
        (["--backend", "llama"], "--backend llama needs a model file: add --gguf FILE"),
        (["--backend", "pydantic-ai"], "needs a provider's model: add --model"),
        (["--base-url", "localhost"], "--base-url must be a URL that starts with http://"),
        (["--unknown"], "No such option: --unknown"),
        (["another"], "unexpected extra argument"),
    ],
)
def test_bad_usage_exits_with_2_and_a_sentence(command, arguments, sentence):
    code, out, err = command("sample", "Write.", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mellea-like: ")
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sample", "x", "--loop", "3"], "--loop is now called --attempts"),
        (["sample", "x", "--concurrency", "3"], "--concurrency is now called --lanes"),
        (["batch", "x.jsonl", "--ordered"], "--ordered is now called --in-order"),
        (["batch", "x.jsonl", "--order", "breadth"], "--order is now called --breadth-first"),
        (["batch", "x.jsonl", "--parallel=3"], "--parallel is now called --workers"),
        (["serve", "x.yaml", "--workers=2"], "--workers is now called --processes"),
    ],
)
def test_an_option_that_was_renamed_says_its_name(command, arguments, sentence):
    assert command(*arguments) == (2, "", f"mellea-like: {sentence}\n")
    code, _, err = command("watch", arguments[2])
    assert (code, "No such option" in err) == (2, True)


@pytest.mark.parametrize("instruction", ["", "  \n"])
def test_an_empty_instruction_is_bad_usage(command, instruction):
    code, out, err = command("sample", instruction)
    assert (code, out) == (2, "")
    assert err == "mellea-like: the instruction is empty: describe what to generate, in quotes\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schema", "/missing.json"], "--schema: there is no file /missing.json"),
        (["--gguf", "/missing.gguf"], "--gguf: there is no file /missing.gguf"),
        (["--corpus", "/missing.txt"], "--corpus: there is no file /missing.txt"),
        (["--corpus", "/dev/zero"], "--corpus: there is no file /dev/zero"),
        (["--trace", "/missing/t.json"], "--trace: there is no directory /missing"),
        (["--model", "m"], "no API key for https://api.openai.com/v1: set OPENAI_API_KEY\n"),
        (["--model=m", "--base-url=https://eu.api.openai.com/v1"], "no API key for https://"),
        (["--base-url", "http://127.0.0.1:9/v1", "--retries=0"], "can't reach http://127.0.0.1:9"),
    ],
)
def test_what_is_not_there_exits_with_3_and_a_sentence(command, arguments, sentence):
    code, out, err = command("sample", "Write.", "--quiet", *arguments)
    assert (code, out) == (3, "")
    assert err.startswith("mellea-like: ")
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "isn't JSON: "),
        (b"[]", "isn't a JSON Schema: it isn't a JSON object"),
        (b'{"type": "nonsense"}', "the schema is invalid at $.type"),
        (b"\xff", "isn't JSON: "),
        (b"[" * 100_000, "isn't JSON: "),
    ],
)
def test_a_schema_that_is_none_exits_with_3_and_a_sentence(command, tmp_path, content, sentence):
    file = tmp_path / "schema.json"
    file.write_bytes(content)
    code, out, err = command("sample", "Write.", "--schema", str(file))
    assert (code, out) == (3, "")
    assert "mellea-like: --schema: " in err
    assert sentence in err


def test_a_corpus_that_is_no_text_exits_with_3_and_a_sentence(command, tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"\xff\xfe\xfa")
    code, out, err = command("sample", "Write.", "--corpus", str(file), "-q")
    assert (code, out) == (3, "")
    assert err.startswith("mellea-like: --corpus: ")
    assert len(err.splitlines()) == 1


def test_with_json_a_mistake_is_a_json_object_too(command):
    code, out, err = command("sample", "Write.", "--json", "--gguf", "/missing")
    assert code == 3
    assert json.loads(out) == {"success": False, "error": "--gguf: there is no file /missing"}
    assert "there is no file /missing" in err


def test_debug_shows_where_it_went_wrong(command):
    code, _, err = command("sample", "Write.", "--gguf", "/missing", "--debug")
    assert code == 3
    assert "Traceback (most recent call last)" in err
    assert err.endswith("mellea-like: --gguf: there is no file /missing\n")


@pytest.mark.parametrize("arguments", [["serve", "-c", "x.yaml"], ["watch", "x", "--", "true"]])
def test_what_windows_lacks_is_said_in_a_sentence(command, arguments, monkeypatch):
    command("--version")  # Typer itself must be imported as on this system.
    monkeypatch.setattr(exit_codes.sys, "platform", "win32")
    code, _, err = command(*arguments)
    assert code == 3
    assert f"{arguments[0]} needs Unix signals, which Windows lacks" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, "for a bug report: Python 3."),
        (["-h"], 0, "Usage: mellea-like"),
        (["sample", "--help"], 0, "Usage: mellea-like sample"),
        ([], 2, "Usage: mellea-like"),
    ],
)
def test_help_and_version_go_to_standard_output(command, arguments, code, said):
    found, out, err = command(*arguments)
    assert (found, err) == (code, "")
    assert said in out


def test_help_has_examples_the_checks_and_the_exit_codes(command):
    _, out, _ = command("sample", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert '--check "words<=20" --check "contains:class"' in words
    assert "choice:a|b|c" in words
    assert "0 passed, 1 nothing passed, 2 bad usage" in words


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        (b"\xff", "mellea-like: standard input can't be read: 'utf-8' codec can't decode byte"),
        (b"\n", "mellea-like: standard input is empty: describe what to generate, in quotes\n"),
    ],
)
def test_standard_input_without_text_is_bad_usage(command, stdin, sentence):
    code, _, err = command("sample", "-", stdin=stdin)
    assert code == 2
    assert err.startswith(sentence)


def test_a_byte_order_mark_is_no_part_of_the_instruction(command):
    with OpenAIServer(Answer("a reply")) as server:
        there = ("--base-url", server.url, "--model", "m", "--lanes=1")
        code, _, err = command("sample", "-", *there, stdin=b"\xef\xbb\xbfWrite.\r\n")
        assert code == 0, err
        [body] = server.requests
    assert body["messages"][-1]["content"] == "Write."


def test_a_provider_is_named_by_its_model(command):
    at = ("--backend", "pydantic-ai", "--model")
    code, out, err = command("sample", "Write.", *at, "test")
    assert (code, out.strip()) == (0, "success (no tool calls)"), err
    code, out, err = command("sample", "Write.", *at, "nobody:x")
    assert (code, out) == (3, "")
    assert "--model: Unknown model: nobody:x" in err
