"""``sample --trace`` and ``--json``: the record of a call."""

from __future__ import annotations

import json
import os
import threading

import pytest

from mellea_like import SamplingResult

ARGUMENTS = ("sample", "Write.", "--check", "words>=1", "--attempts=20", "-q", "--backend=markov")


def test_the_record_of_a_call_is_written_for_its_owner_alone(command, tmp_path):
    file = tmp_path / "trace.json"
    code, out, err = command(*ARGUMENTS, "--trace", str(file))
    assert (code, err) == (0, "")
    result = SamplingResult.from_dict(json.loads(file.read_text()))
    assert result.value == out.rstrip("\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_it_replaces_an_earlier_trace_and_can_be_reported(command, tmp_path):
    file = tmp_path / "trace.json"
    file.touch()
    assert [command(*ARGUMENTS, "--trace", str(file))[0] for _ in range(2)] == [0, 0]
    code, out, _ = command("report", str(file))
    assert code == 0
    assert out


@pytest.mark.parametrize("content", [b"my notes", b'{"format": "mine"}', b"[1]", b"\xff\x00"])
def test_a_file_that_is_no_trace_is_kept_and_nothing_is_drawn(command, tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    code, out, err = command(*ARGUMENTS, "--trace", str(file))
    assert (code, out) == (2, "")
    assert err.endswith("txt already exists and isn't the trace of a call: name another file\n")
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("more", "stop_reason", "lines"),
    [
        (("--check", "words<1"), "exhausted", 3),
        (("--budget", "cost=0.00001", "--price", "1,2", "--max-tokens", "50"), "budget", 1),
    ],
)
def test_a_call_without_a_reply_that_passes_is_written_too(
    command, tmp_path, more, stop_reason, lines
):
    file = tmp_path / "trace.json"
    code, _, err = command(*ARGUMENTS, *more, "--trace", str(file))
    assert (code, len(err.splitlines())) == (1, lines), err
    record = json.loads(file.read_text())
    assert (record["success"], record["stop_reason"]) == (False, stop_reason)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("no/t.json", "--trace: there is no directory no"),
        (".", "--trace: . isn't a file"),
        ("/dev/null", "--trace: /dev/null isn't a file"),
    ],
)
def test_a_place_that_can_not_be_written_is_named_before_anything_is_sent(
    command, tmp_path, monkeypatch, place, sentence
):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*ARGUMENTS, "--trace", place)
    assert (code, out) == (3, "")
    assert err.startswith(f"mellea-like: {sentence}")
    assert len(err.splitlines()) == 1


def test_a_place_that_is_taken_meanwhile_costs_the_trace_and_not_the_reply(command, tmp_path):
    corpus, trace = tmp_path / "corpus", tmp_path / "trace.json"
    os.mkfifo(corpus)

    def take_it_while_the_corpus_is_read():
        with corpus.open("w") as file:
            trace.mkdir()
            file.write("The heron waits beside the water.\n")

    feeder = threading.Thread(target=take_it_while_the_corpus_is_read)
    feeder.start()
    code, out, err = command(
        *(*ARGUMENTS, "--check", "sentences==1"), *("--corpus", str(corpus), "--trace", str(trace))
    )
    feeder.join()
    assert (code, out) == (3, "The heron waits beside the water.\n")
    assert err.startswith("mellea-like: --trace: can't write ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "trace.json"]


def test_what_json_prints_is_a_trace_with_more_and_can_be_reported(command, tmp_path):
    _, out, _ = command("sample", "Write.", "--check", "words<1", "--json", "--attempts=1", "-q")
    record = json.loads(out)
    assert {"text", "value", "ledger", "strategy", "backend"} <= set(record)
    file = tmp_path / "call.json"
    file.write_text(out)
    assert command("report", str(file))[1].startswith("Nothing passed")


def test_a_cache_answers_the_same_command_again_at_no_cost(command, tmp_path):
    alone = (*ARGUMENTS, "--seed", "1", "--lanes=1", "--json")
    cached = (*alone, "--cache", str(tmp_path / "replies.cache"))
    first, again = (json.loads(command(*cached)[1]) for _ in range(2))
    assert again["text"] == first["text"]
    assert first["usage"]["requests"] > 0
    assert again["usage"]["requests"] == again["usage"]["output_tokens"] == 0
    assert again["usage"]["cache_hits"] > 0


def test_a_file_that_is_no_cache_is_a_sentence(command, tmp_path):
    (tmp_path / "notes.txt").write_text("these are my notes\n" * 100)
    code, _, err = command(*ARGUMENTS, "--cache", str(tmp_path / "notes.txt"))
    assert code == 3
    assert "notes.txt: it is neither a cache nor any other SQLite database: use another path" in err
    assert (tmp_path / "notes.txt").read_text().startswith("these are my notes")
