"""A journal of another run is refused, and the differences are named by option."""

from __future__ import annotations

import os

import pytest
from rows_kit import write_rows

from mellea_like.cli.batch.source import LARGE, digest_of


@pytest.fixture
def batch(command, tmp_path):
    """Run ``batch`` on given texts with a journal, or resume it."""
    write_rows(tmp_path / "in.jsonl", 2)
    (tmp_path / "corpus.txt").write_text("A bird sings. A tree grows.\n")

    def run_batch(*arguments, prompt="Say {{ text }}", resume=True):
        return command(
            *("batch", str(tmp_path / "in.jsonl"), "-p", prompt, "-o", str(tmp_path / "out.jsonl")),
            *("--journal", str(tmp_path / "run.db"), "-q", *(["--resume"] if resume else [])),
            *("--corpus", str(tmp_path / "corpus.txt"), *arguments),
        )

    return run_batch


def test_another_corpus_is_refused_and_the_same_under_another_name_is_not(batch, tmp_path):
    assert batch()[0] == 0
    file = tmp_path / "corpus.txt"
    text = file.read_text()
    file.write_text(text.replace("bird", "wren"))
    before = (tmp_path / "out.jsonl").read_bytes()
    code, _, err = batch()
    assert code == 3
    assert 'belongs to another run: --corpus was ["28 bytes, sha256 ' in err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    file.write_text(text)
    more = tmp_path / "more.txt"
    more.write_text("More.\n")
    assert "corpus was" in batch("--corpus", str(more))[2]
    file.rename(tmp_path / "renamed.txt")
    file.symlink_to(tmp_path / "renamed.txt")
    assert batch()[0] == 0


def test_a_pipe_can_not_be_told_from_another_and_is_refused(batch, tmp_path):
    (tmp_path / "corpus.txt").unlink()
    os.mkfifo(tmp_path / "corpus.txt")
    code, _, err = batch(resume=False)
    assert code == 2
    assert "corpus.txt is a pipe, but a journal needs a file that can be read again" in err
    assert not (tmp_path / "run.db").exists()


def test_that_a_large_file_takes_a_while_is_said(tmp_path, capfd):
    model = tmp_path / "model.gguf"
    model.touch()
    os.truncate(model, LARGE + 1)
    for quiet, said in ((True, ""), (False, f"Reading {model} ...\n")):
        assert digest_of("--gguf", model, quiet=quiet).startswith(f"{LARGE + 1} bytes")
        assert capfd.readouterr().err == said


def test_another_model_file_of_the_same_length_makes_another_run(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    before = digest_of("--gguf", tmp_path / "model.gguf")
    assert before.startswith("4 bytes, sha256 ")
    (tmp_path / "model.gguf").write_bytes(b"GGUX")
    assert digest_of("--gguf", tmp_path / "model.gguf") != before
