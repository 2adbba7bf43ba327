"""A journal of another run is refused, and what differs is said in the words of the options."""

from __future__ import annotations

import os

import pytest
from rows_kit import write_rows

from mellea_like.cli.batch.identity import LARGE, model_files
from mellea_like.cli.draw_options import DrawOptions
from mellea_like.cli.exits import Problem


@pytest.fixture
def batch(command, tmp_path):
    """Run ``batch`` with a journal on texts of one's own, and resume it."""
    write_rows(tmp_path / "in.jsonl", 2)
    (tmp_path / "corpus.txt").write_text("A bird sings. A tree grows.\n")

    def run_batch(*arguments, prompt="Say {{ text }}", resume=True):
        return command(
            *("batch", str(tmp_path / "in.jsonl"), "-p", prompt, "-o", str(tmp_path / "out.jsonl")),
            *("--journal", str(tmp_path / "run.db"), "-q", *(["--resume"] if resume else [])),
            *("--corpus", str(tmp_path / "corpus.txt"), *arguments),
        )

    return run_batch


def test_what_differs_is_said_in_options_a_line_for_each(batch, tmp_path):
    assert batch("--check", "words<=20", "--loop", "3")[0] == 0
    code, out, err = batch(
        *("--check", "words<=9", "--strategy", "repair", "--schedule", "staggered:1", "--give-up"),
        *("--seed", "3"),
        prompt="Tell {{ text }}",
    )
    assert (code, out) == (3, "")
    assert err.splitlines() == [
        f"mellea-like: the journal {tmp_path / 'run.db'} belongs to another run:",
        "  --strategy was rejection and is repair",
        "  --loop was 3 and is 5",
        "  --schedule: Staggered(delay=1) is new",
        "  --give-up: given is new",
        '  --check, --require: "has at most 20 words" is gone',
        '  --check, --require: "has at most 9 words" is new',
        "  --seed: 3 is new",
        '  --prompt was "Say {{ text }}" and is "Tell {{ text }}"',
        "Resume it by the command that it was begun with, or name another journal.",
    ]


def test_where_in_an_option_the_difference_is_is_said(batch):
    assert batch("--schedule", "staggered:1")[0] == 0
    _, _, err = batch("--schedule", "staggered:2")
    assert "\n  --schedule (delay) was 1 and is 2\n" in err


def test_another_corpus_is_refused_and_the_same_under_another_name_is_not(batch, tmp_path):
    assert batch()[0] == 0
    file = tmp_path / "corpus.txt"
    text = file.read_text()
    file.write_text(text.replace("bird", "wren"))
    before = (tmp_path / "out.jsonl").read_bytes()
    code, _, err = batch()
    assert code == 3
    assert '\n  --corpus was ["28 bytes, sha256 ' in err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    file.write_text(text)
    more = tmp_path / "more.txt"
    more.write_text("More.\n")
    assert "--corpus" in batch("--corpus", str(more))[2]
    file.rename(tmp_path / "renamed.txt")
    file.symlink_to(tmp_path / "renamed.txt")
    assert batch()[0] == 0


def test_a_pipe_can_not_be_told_from_another_and_is_refused(batch, tmp_path):
    (tmp_path / "corpus.txt").unlink()
    os.mkfifo(tmp_path / "corpus.txt")
    code, _, err = batch(resume=False)
    assert code == 2
    assert "corpus.txt is a pipe, and a journal needs a file that can be read again" in err
    assert not (tmp_path / "run.db").exists()


def test_that_a_large_file_takes_a_while_is_said(tmp_path, capfd):
    model = tmp_path / "model.gguf"
    model.touch()
    os.truncate(model, LARGE + 1)
    for quiet, said in ((True, ""), (False, f"Looking through {model} ...\n")):
        arguments = DrawOptions(gguf=model, quiet=quiet)
        assert model_files(arguments)["gguf"].startswith(f"{LARGE + 1} bytes")
        assert capfd.readouterr().err == said


def test_another_model_file_of_the_same_length_makes_another_run(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")

    def files():
        return model_files(DrawOptions(gguf=tmp_path / "model.gguf"))

    before = files()
    assert before["gguf"].startswith("4 bytes, sha256 ")
    (tmp_path / "model.gguf").write_bytes(b"GGUX")
    assert files() != before
    (tmp_path / "model.gguf").unlink()
    (tmp_path / "model.gguf").symlink_to("/proc/self/mem")
    with pytest.raises(Problem, match=r"--gguf: can't read .*model.gguf: Input/output error"):
        files()
