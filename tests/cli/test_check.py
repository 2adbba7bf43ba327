"""``mellea-like check``: checks of a file of replies, without new draws."""

from __future__ import annotations

import json

import pytest
from command_line import run
from http_server import Answer, OpenAIServer

ROWS = [
    {"prompt": "When?", "reply": "At noon, when the tide is high."},
    {"prompt": "When?", "reply": "Soon."},
    {"prompt": "When?", "reply": ""},
]


@pytest.fixture
def replies(tmp_path):
    path = tmp_path / "replies.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def verdict(passed):
    return Answer(json.dumps({"passed": passed, "reason": "as it says"}))


def judged(server, *more):
    """Return options with which a server's model judges the replies, one at a time."""
    judge = ("--judge", "m", "--judge-base-url", server.url, "--workers=1")
    return "--require", "says when", *judge, *more


def test_a_table_counts_and_the_rows_that_did_not_pass_are_shown(command, replies):
    code, out, err = command("check", str(replies), "--check", "contains:tide", "--check=words<=3")
    assert (code, err) == (1, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "requirement passed failed errored skipped",
        "contains:tide 1 1",
        "words<=3 1 1",
        "0 of 3 rows passed, 3 failed; 1 row could not be read as a whole reply.",
        "row 1: words<=3: it has 7 words; at most 3 are allowed",
        'row 2: contains:tide: it does not contain "tide"',
        "row 3: the reply is empty: answer with text, or call a tool",
    ]


def test_the_exit_code_is_0_if_all_rows_pass(command, replies):
    replies.write_text(json.dumps(ROWS[0]))
    code, out, _ = command("check", str(replies), "--check", "contains:tide")
    assert code == 0
    assert "1 of 1 row passed." in out
    assert command("check", str(replies), "--check", "contains:tide", "-q") == (0, "", "")


def test_verdicts_are_written_beside_the_rows(command, replies, tmp_path):
    out = tmp_path / "verdicts.jsonl"
    arguments = ("check", str(replies), "--check", "contains:tide", "-o", str(out))
    assert command(*arguments)[0] == 1
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["status"] for row in rows] == ["passed", "failed", "failed"]
    assert rows[1]["prompt"] == "When?"
    assert rows[1]["verdicts"] == [
        {
            "requirement": "contains:tide",
            "status": "failed",
            "reason": 'it does not contain "tide"',
            "score": 0.0,
        }
    ]
    assert "the reply is empty" in rows[2]["reason"]
    code, _, err = command(*arguments)
    assert (code, "already exists" in err) == (3, True)
    assert command(*arguments, "--force")[0] == 1


def test_a_rows_own_fields_are_kept_beside_the_verdicts(command, replies, tmp_path):
    row = {"reply": "Soon.", "status": "sent", "error": "E17"}
    replies.write_text(json.dumps(row))
    out = tmp_path / "verdicts.jsonl"
    assert command("check", str(replies), "--check=contains:tide", "-o", str(out))[0] == 1
    written = json.loads(out.read_text())
    assert written | row == written
    assert (written["result_status"], written["result_error"]) == ("failed", None)
    assert len(written["verdicts"]) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("-o", "link.jsonl"), "FILE and --output are the same file"),
        (("-o", "new.jsonl", "--journal", "new.jsonl"), "--journal and --output are the same file"),
    ],
)
def test_verdicts_never_replace_what_they_come_from(command, replies, monkeypatch, more, said):
    monkeypatch.chdir(replies.parent)
    (replies.parent / "link.jsonl").symlink_to(replies)
    before = replies.read_text()
    code, _, err = command("check", replies.name, "--check=words<3", "--force", *more)
    assert (code, said in err) == (2, True)
    assert replies.read_text() == before


def test_rows_come_from_a_pipe_and_from_csv_with_other_names(command, tmp_path):
    done = run("check", "-", "--check", "words>=1", "-o", "-", stdin='{"text": "one"}\n')
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "passed")
    table = tmp_path / "log.csv"
    table.write_text("question,said\nWhen?,at noon\n")
    assert command("check", str(table), "--reply", "said", "--check", "contains:noon")[0] == 0


def test_a_row_without_a_reply_is_an_error_of_that_row(command, replies):
    replies.write_text('{"reply": "a"}\n{"words": "b"}\n{"reply": null}\n')
    code, out, _ = command("check", str(replies), "--check", "words>=1")
    assert code == 1
    assert "1 of 3 rows passed, 2 errored" in out
    assert "row 3: the reply in the field 'reply' must be a text, or a message in" in out
    assert "row 2: there is no field 'reply', only words: name one with --reply FIELD" in out


def test_a_model_judges_what_is_required_in_words(command, replies):
    with OpenAIServer(verdict(True), verdict(False)) as server:
        more = ("--prompt", "prompt", "--judge-option", "temperature=0.5")
        code, out, err = command("check", str(replies), *judged(server, *more))
    assert (code, err) == (1, "")
    assert "1 of 3 rows passed, 2 failed" in out
    assert "2 requests, " in out
    asked = server.requests[0]
    assert (asked["model"], asked["temperature"]) == ("m", 0.5)
    assert "When?" in asked["messages"][-1]["content"]


def test_a_wrong_key_ends_the_run(command, replies):
    with OpenAIServer(*[Answer.error(401, "wrong key")] * 3) as server:
        code, out, err = command("check", str(replies), *judged(server))
        assert (code, out) == (3, "")
        assert err.startswith("mellea-like: ")
        assert "wrong key" in err
        assert len(server.requests) <= 2


def test_a_journal_keeps_what_was_judged(command, replies, tmp_path):
    replies.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]))
    with OpenAIServer(verdict(True), verdict(False)) as server:
        journal = ("--journal", str(tmp_path / "run.db"))
        arguments = ("check", str(replies), *judged(server, *journal))
        first, second = command(*arguments), command(*arguments)
        code, _, err = command(*arguments, "--all", "--check", "words<=9", "--judge", "n")
        judged_otherwise = command(*arguments, "--judge-option", "temperature=0.5")
        assert len(server.requests) == 2
    assert first[0] == second[0] == 1
    assert judged_otherwise[0] == 3
    assert '--judge-option: {"temperature": 0.5} is new' in judged_otherwise[2]
    assert "1 of 2 rows passed" in second[1]
    assert code == 3
    assert (
        '--all was false and is now true; --check, --require, --schema: "has at most 9 words" is'
        ' new; --judge was "m" and is now "n". Resume' in err
    )


def test_rows_that_were_undecided_are_judged_again(command, replies, tmp_path):
    replies.write_text(json.dumps(ROWS[0]))
    with OpenAIServer(Answer.error(400, "not today"), verdict(True)) as server:
        journal = ("--journal", str(tmp_path / "run.db"))
        arguments = ("check", str(replies), *judged(server, *journal))
        assert [command(*arguments)[0] for _ in range(3)] == [3, 0, 0]
        assert len(server.requests) == 2


def test_a_journal_of_another_field_is_refused(command, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"good": "yes", "bad": "no"}')
    arguments = ("check", str(rows), "--check=contains:yes", f"--journal={tmp_path / 'run.db'}")
    assert command(*arguments, "--reply", "good")[0] == 0
    code, _, err = command(*arguments, "--reply", "bad")
    assert (code, "journal" in err) == (3, True)


def test_only_the_first_rows_that_did_not_pass_are_shown(command, replies):
    replies.write_text('{"reply": "a"}\n' * 13)
    out = command("check", str(replies), "--check", "contains:b")[1]
    assert out.count("contains:b: ") == 10
    assert "row 10: " in out
    assert out.endswith("... and 3 more rows.\n")


JUDGED = ("-", "--require=says when", "--judge=m", "--judge-base-url", "http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("none.jsonl", "--check=words<3"), 3, "none.jsonl can't be read: No such file"),
        (("none.txt", "--check=words<3"), 3, "none.txt can't be read"),
        (("-",), 2, "there is nothing to check: add --check, --require or --schema"),
        (("-", "--check=words<3"), 3, "- has no rows"),
        (("-", "--check=wrods<3"), 2, "--check"),
        (("-", "--check=contains:{{ answer"), 2, "--check isn't a valid Jinja template"),
        (("-", "--require=is kind"), 2, "--require 'is kind' needs a judge: add --judge"),
        (("-", "--check=words<3", "--judge=m"), 2, "there is nothing to judge: add"),
        (("-", "--check=words<3", "-o", "out.csv"), 2, "out.csv does not end in .jsonl"),
        (("-", "--check=words>=1", "--budget=requests=2"), 2, "are for judges: add --require"),
        ((*JUDGED, "--budget=cost=2"), 2, "needs the price of tokens and the model's name: add"),
        ((*JUDGED, "--price=cheap"), 2, "--price must be two amounts"),
        ((*JUDGED, "--budget=time=2"), 2, "--budget time: use requests, input-tokens,"),
    ],
)
def test_a_mistake_is_a_sentence(command, arguments, code, problem):
    found, _, err = command("check", *arguments, stdin="")
    assert found == code
    assert problem in err
    assert len(err.splitlines()) <= 2


def test_a_row_without_a_prompt_is_an_error_of_that_row(command):
    code, out, _ = command("check", *JUDGED, "--prompt", "asked", stdin='{"reply": "a"}\n')
    assert (code, "row 1: there is no field 'asked'" in out) == (3, True), out
    assert "name one with --prompt FIELD" in out


def test_a_line_that_is_no_json_is_named(command):
    code, _, err = command("check", "-", "--check=words<3", stdin='{"reply": "a"}\n{"reply": \n')
    assert (code, "line 2" in err) == (3, True)


def test_checks_are_filled_in_for_each_row(command, replies, tmp_path):
    rows = [
        {"reply": "It is 4.", "answer": 4},
        {"reply": "It is 6.", "answer": "5"},
        {"reply": "It is 7."},
    ]
    replies.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (
        *("check", str(replies), "--check", "words<=3", "--check", "contains:{{ answer }}"),
        *("--journal", str(tmp_path / "run.db")),
    )
    code, out, err = command(*arguments)
    assert (code, err) == (1, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[1:] == [
        "contains:{{ answer }} 1 1",
        "words<=3 2",
        "1 of 3 rows passed, 1 failed, 1 errored.",
        'row 2: contains:{{ answer }}: it does not contain "5"',
        "row 3: a check can't be filled in: 'answer' is undefined; the row's fields: reply",
    ]
    assert command(*arguments)[:2] == (code, out)
    other = [one.replace("contains:", "excludes:") for one in arguments]
    code, _, err = command(*other)
    assert (code, "checks" in err) == (3, True)  # Another run than the journal's.


def test_a_budget_bounds_what_judges_cost(command, replies):
    replies.write_text("".join(json.dumps(ROWS[0]) + "\n" for _ in range(5)))
    with OpenAIServer(*[verdict(True)] * 5) as server:
        more = ("--budget", "requests=2", "--price", "1000,1000,EUR")
        code, out, err = command("check", str(replies), *judged(server, *more))
        assert len(server.requests) == 2
    assert code == 1
    assert "2 of 2 rows passed; 2 requests" in out
    assert " EUR." in out
    assert err.startswith("mellea-like: stopped early: ")
    assert "2 of 2 requests were made" in err
    with OpenAIServer(*[verdict(True)] * 5) as server:
        arguments = ("check", str(replies), *judged(server, "--price", "1,2"))
        assert command(*arguments, "--budget=cost=2")[0] == 0
        err = command(*arguments, "--budget=cost=0.0001")[2]
    assert "a higher --budget cost, or a lower --judge-option max-tokens=N" in err


def test_a_row_that_is_undecided_keeps_its_other_verdicts(command, replies, tmp_path):
    out = tmp_path / "verdicts.jsonl"
    replies.write_text(json.dumps(ROWS[0]))
    with OpenAIServer(Answer.error(400, "not today")) as server:
        more = ("--check", "contains:tide", "--all", "-o", str(out))
        code, table, _ = command("check", str(replies), *judged(server, *more))
    assert code == 3  # Every row ended in an error.
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[1:3] == ["contains:tide 1", "says when 1"]
    assert "0 of 1 row passed, 1 errored" in lines[3]
    assert "not today" in table
    row = json.loads(out.read_text())
    assert row["status"] == "errored"
    assert [one["status"] for one in row["verdicts"]] == ["passed", "errored"]
    assert "not today" in row["error"]


def test_a_judge_that_is_down_ends_the_run(command, replies, tmp_path, monkeypatch):
    # A first retry may come soon, by chance, and a busy machine looks late.
    monkeypatch.setattr("mellea_like.cli.outages.GIVE_UP_AFTER", 0.0)
    monkeypatch.setattr("mellea_like.cli.outages.LOOK_EVERY", 0.01)
    out = tmp_path / "verdicts.jsonl"
    code, table, err = command(
        *("check", str(replies), "--require", "says when", "--judge", "m", "-o", str(out)),
        *("--judge-base-url", "http://127.0.0.1:9/v1"),
    )
    assert (code, table) == (3, "")
    assert "Waiting for http://127.0.0.1:9/v1" in err
    assert err.splitlines()[-1].startswith("mellea-like: can't reach http://127.0.0.1:9/v1")
