"""``--select`` and ``--n``: the reply that wins, and the messages about it."""

from __future__ import annotations

import json
from itertools import count

import pytest
from http_server import Answer, OpenAIServer
from rows_kit import records, write_rows

from mellea_like.batch import read_run


@pytest.fixture
def sample(command):
    """Run ``sample`` against a server, one draw at a time; return the number of requests, too."""

    def run(*arguments, replies, choose=None):
        given = {"choose": choose} if choose else {}
        with OpenAIServer(*map(Answer, replies), **given) as server:
            call = ("sample", "x", "--base-url", server.url, "--model", "m", *arguments)
            return *command(*call), len(server.requests)

    return run


ONE = ("--lanes=1",)


def test_the_best_wins_and_its_score_is_told(sample):
    code, out, err, asked = sample(
        "--select", "best:length", "--n", "3", *ONE, replies=["ab", "abcd", "abc", "abcdef"]
    )
    assert (code, out, asked) == (0, "abcd\n", 3)
    assert err.splitlines()[-1] == (
        "Decided by best-of: attempt 2 of 5, score 4, best of 3; 3 passed."
    )


def test_a_vote_is_told_and_draws_that_failed_are_abstentions(sample):
    code, out, err, asked = sample(
        *("--select", "vote:lower", "--n", "3", "--check", "words<2", *ONE),
        replies=["Yes", "not one word", "no", "yes"],
    )
    assert (code, out, asked) == (0, "Yes\n", 4)
    assert err.splitlines()[-1] == (
        "Decided by vote: attempt 1 of 5, votes yes: 2, no: 1, 1 abstention; 3 votes."
    )


def test_replies_are_collected_that_differ_by_their_key(sample):
    drawn = ["Yes", "yes", "No", "no", "Maybe"]
    code, out, err, asked = sample("--select", "collect:3:lower", *ONE, replies=drawn)
    assert (code, out, asked) == (0, "Yes\nNo\nMaybe\n", 5)
    assert (
        err.splitlines()[-1]
        == "Decided by collect: attempt 1 of 5; attempt 3 of 5; attempt 5 of 5; 3 passed."
    )


def test_fewer_than_are_to_be_collected_are_printed_and_no_success(sample):
    code, out, err, _ = sample(
        *("--select", "collect:2", "--check", "words<2", "--attempts=2", "-q", *ONE),
        replies=["a b", "c"],
    )
    assert (code, out) == (1, "c\n")
    assert err.startswith("Only 1 passed: all attempts were used; 2 draws")


def test_each_draw_is_asked_for_with_a_temperature(command):
    with OpenAIServer(choose=lambda *_: Answer("a")) as server:
        call = ("sample", "x", "--base-url", server.url, "--model", "m", "--select", "vote", *ONE)
        assert command(*call, "--temperature", "0.7", "--n", "2")[0] == 0
        assert [request["temperature"] for request in server.requests] == [0.7, 0.7]
        code, _, err = command(*call, "--temperature", "3")
    assert code == 2
    assert "--temperature must be" in err


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("--n", "7", *ONE), 7),
        (("--n", "11", "--lanes=2"), 11),
        (("--n", "3", "--attempts=3", *ONE), 3),
        (("--attempts=2", *ONE), 2),
        (ONE, 5),
    ],
)
def test_there_are_as_many_turns_as_n_needs_unless_they_are_given(sample, arguments, asked):
    code, *_, found = sample("--select", "best:words", *arguments, replies=["a"])
    assert (code, found) == (0, asked)


def judged():
    """Choose a server's answer: reply 1, reply 2 and so on; as a judge, prefer reply 2."""
    drawn = count(1)

    def choose(_, body):
        told = body["messages"][-1]["content"]
        if "Score: How kind?" in told:
            return Answer(json.dumps({"reason": "so kind", "score": 9 if "reply 2" in told else 3}))
        if "<b>" in told:
            return Answer(json.dumps({"better": "a" if "<a>reply 2" in told else "b"}))
        return Answer(f"reply {next(drawn)}")

    return choose


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("best:judge:How kind?", "score 9, best of 2 (so kind); 2 passed."),
        ("tournament", "score 1, best of 2, 1 comparison; 2 passed."),
    ],
)
def test_the_model_judges_where_no_other_one_is_named(sample, select, said):
    code, out, err, asked = sample(
        "--select", select, "--n", "2", *ONE, replies=[], choose=judged()
    )
    assert (code, out, asked) == (0, "reply 2\n", 4)
    assert err.splitlines()[-1].endswith(said)
    assert err.splitlines()[-2].startswith("Passed: attempt 2 of 5; 2 draws, 4 requests")


@pytest.mark.parametrize("select", ["best:judge", "best:judge:How kind?", "tournament"])
def test_a_selection_may_have_a_judge_of_its_own(command, select):
    asked = []

    def choose(_, body):
        asked.append(body["model"])
        told = body["messages"][-1]["content"]
        if "Score: " in told:
            return Answer('{"reason": "so", "score": 5}')
        return Answer('{"better": "a"}' if "<b>" in told else "yes")

    with OpenAIServer(choose=choose) as server:
        draw = ("sample", "x", "--base-url", server.url, "--model", "m", "--n", "2", *ONE)
        code, out, _ = command(*draw, "--select", select, "--judge-model", "big")
    assert (code, out) == (0, "yes\n")
    assert sorted(asked) == ["big", "big", "m", "m"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--select", "bst:length"], "--select 'bst:length' isn't one of the known selections"),
        (["--select", "best:size"], "SCORE: length  words  json:PATH"),
        (["--select", "vote", "--n", "0"], "--n must be at least 1, not 0"),
        (["--n", "3"], "--n is for best, vote, consensus, tournament, not for first"),
        (
            ["--select", "vote", "--n", "9", "--attempts=2"],
            "but --attempts 2 times --lanes 4 makes only 8: use larger numbers, or a smaller --n",
        ),
        (
            ["--select", "collect:9", "--attempts=2"],
            "but --attempts 2 times --lanes 4 makes only 8: use larger numbers, or a smaller K",
        ),
        (["--select", "best:words", "--n", "1001"], "is more than 1000 draws"),
        (
            ["--select=ordered", "--schedule=hedged"],
            "ordered can't be combined with --schedule hedged",
        ),
        (
            ["--select=ordered", "--give-up"],
            "can't be combined with --give-up: which draws come first",
        ),
        (["--select", "tournament"], "--select tournament needs a model that can judge"),
        (["--select", "best:judge"], "--select best:judge needs a model that can judge"),
    ],
)
def test_what_can_not_be_selected_is_bad_usage(command, arguments, sentence):
    code, out, err = command("sample", "Write.", "--backend", "markov", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mellea-like: ")
    assert sentence in err


@pytest.mark.parametrize("name", ["sample", "batch"])
def test_the_help_has_all_forms(command, name):
    _, out, _ = command(name, "--help")
    words = " ".join(out.replace("│", " ").split())
    assert "first ordered best:SCORE vote[:KEY] collect:K[:KEY] consensus tournament" in words
    assert "length words json:PATH" in words
    assert "as many as --n needs" in words


@pytest.mark.parametrize("name", ["sample", "batch", "plan", "report", "export"])
def test_the_help_leaves_room_for_words_and_has_the_codes_of_signals(command, name):
    _, out, _ = command(name, "--help")
    told = [line.index("A bigger model") for line in out.splitlines() if "A bigger model" in line]
    assert all(column <= 40 for column in told)
    words = " ".join(out.split())
    assert "130 interrupted, 143 terminated" in words
    assert "<float>" not in words


# --- batches ------------------------------------------------------------------------------------


@pytest.fixture
def batch(command, tmp_path):
    write_rows(tmp_path / "in.jsonl", 2)

    def run(*arguments, replies):
        with OpenAIServer(*map(Answer, replies)) as server:
            return command(
                *("batch", str(tmp_path / "in.jsonl"), "-p", "{{ text }}", "--workers", "1"),
                *("-o", str(tmp_path / "out.jsonl"), "--base-url", server.url, "--model", "m"),
                *("--journal", str(tmp_path / "run.db"), "--in-order", *arguments),
            )

    return run


def test_each_row_of_a_batch_is_selected(batch, tmp_path):
    code, *_ = batch("--select", "best:length", "--n", "2", replies=["a", "ab", "abcd", "abc"])
    assert code == 0
    assert [row["output"] for row in records(tmp_path / "out.jsonl")] == ["ab", "abcd"]


def test_each_reply_that_is_collected_has_a_row_and_one_more_says_where_they_are_too_few(
    batch, tmp_path
):
    asked = ("--select", "collect:2", "--check", "words<2", "--attempts=2")
    for again in ((), ("--resume", "--force")):  # All of it from the journal.
        code, _, err = batch(*asked, *again, replies=[] if again else ["a", "b", "c d", "e"])
        assert code == 1
        assert "2 rows: 1 passed, 1 failed; " in err
        found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [(one["id"], one["output"], one["success"], one["reasons"]) for one in found] == [
            (0, "a", True, []),
            (0, "b", True, []),
            (1, "e", True, []),
            (1, None, False, ["only 1 passed"]),
        ]
        assert [one["status"] for one in found] == ["passed", "passed", "passed", "failed"]
        assert [one["usage"]["requests"] for one in found] == [2, 0, 2, 0]
        assert [one["iterations"] for one in found] == [2, 0, 2, 0]


def test_a_journal_is_of_one_selection(batch, tmp_path):
    assert batch("--select", "vote:text", "--n", "2", replies=["a"])[0] == 0
    for other in (
        ("vote:lower", "--n", "2"),
        ("vote:text", "--n", "3"),
        ("vote", "--n", "2"),
        ("collect:2:text",),
    ):
        code, _, err = batch("--resume", "--force", "--select", *other, replies=["b"])
        assert code == 3
        assert "run: --select or --n has changed. Resume" in err
    assert batch("--resume", "--force", "--select", "vote:text", "--n", "2", replies=["b"])[0] == 0
    assert [row["output"] for row in records(tmp_path / "out.jsonl")] == ["a", "a"]
    assert read_run(tmp_path / "run.db")["counts"]["passed"] == 2
