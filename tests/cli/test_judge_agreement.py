"""``mellea-like judge-agreement``: a judge is measured against a file of labels."""

from __future__ import annotations

import json

import pytest
from command_line import run
from http_server import Answer, OpenAIServer

ROWS = [
    {"reply": "Sorry, it is on its way.", "label": "pass", "prompt": "Where is my parcel?"},
    {"reply": "We apologise.", "label": True},
    {"reply": "Not our fault.", "label": 0},
    {"reply": "Sorry is for others.", "label": "No"},
]
PAIRS = [
    {"first": "good", "second": "bad", "label": "first"},
    {"first": "bad", "second": "good", "label": "b"},
    {"first": "good", "second": "good, too"},
]


@pytest.fixture
def file(tmp_path):
    def write(rows):
        path = tmp_path / "labels.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture
def judge():
    """A judge that passes what has "orry" in it, scores it 9, others 2, and prefers the first."""

    def choose(number, body):
        system, question = (message["content"] for message in body["messages"])
        sorry = "orry" in question
        if "You compare" in system:
            return Answer(json.dumps({"better": "a"}))
        if "You score" in system:
            return Answer(json.dumps({"reason": "so", "score": 9 if sorry else 2}))
        return Answer(json.dumps({"passed": sorry, "reason": "so"}))

    with OpenAIServer(choose=choose) as server:
        yield server


def measure(server, *arguments):
    judge = ("--judge", "small", "--judge-base-url", server.url)
    return run("judge-agreement", *arguments, *judge)


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_agreement_with_labels_and_with_itself(file, judge):
    done = measure(judge, file(ROWS), "--require", "It apologises.", "--repeats", "2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = words(done.stdout)
    assert lines[0] == "small: 4 rows decided, 0 undecided"
    assert lines[1] == "agrees with people 0.500 (0.150 to 0.850, n = 4)"
    assert lines[2].startswith("Cohen's kappa 0.000 (")
    assert lines[3] == "passes what people fail 0.500 (0.095 to 0.905, n = 2)"
    assert lines[4] == "fails what people pass 0.500 (0.095 to 0.905, n = 2)"
    assert lines[5] == "agrees with itself 1.000 (0.510 to 1.000, n = 4)"
    assert lines[6] == "differs on rows 2, 4"
    assert lines[7].startswith("8 requests")


def test_a_panel(file, judge):
    done = measure(judge, file(ROWS), "--require", "x", "--judge", "big", "--judge", "other")
    assert done.returncode == 0
    heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    names = [line.partition(":")[0] for line in heads[:-1]]
    assert sorted(names[:3]) == ["big", "other", "small"]
    assert names[3] == "the majority of them"


def test_scores_and_their_threshold_as_json(file, judge):
    done = measure(judge, file(ROWS * 5), "--score", "Is it contrite?", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["scores"][:4] == [9, 2, 2, 9]
    assert found["ranking"] == 0.5
    assert found["decisions"]["accuracy"]["count"] == 20


def test_comparisons(file, judge):
    done = measure(judge, file(PAIRS), "--compare", "is better")
    assert words(done.stdout)[:4] == [
        "3 pairs compared, 0 undecided",
        "agrees with people 0.000 (0.000 to 0.658, n = 2)",
        "same answer in both orders 0.000 (0.000 to 0.561, n = 3)",
        "else prefers the first 1.000 (0.439 to 1.000, n = 3)",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "name one question"),
        (("--require", "x", "--score", "y"), 2, "name one question"),
        (("--score", "x", "--repeats", "2"), 2, "are for --require"),
        (("--require", "x", "--judge", "small"), 2, "each model once"),
        (("--score", "x", "--scale", "ten"), 2, "LOW..HIGH"),
        (("--require", "x", "--label", "good"), 3, "row 1: it has no field 'good'"),
        (("--require", "x", "--confidence", "95"), 2, "between 0 and 1"),
    ],
)
def test_wrong_calls(arguments, code, says, file, judge):
    done = measure(judge, file(ROWS), *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"reply": "a", "label": "perhaps"}], "row 1: the label is 'perhaps'"),
        ([ROWS[0], {"label": True}], "row 2: it has no field 'reply'"),
        ([], "has no rows"),
    ],
)
def test_wrong_rows(rows, says, file, judge):
    done = measure(judge, file(rows), "--require", "x")
    assert done.returncode == 3
    assert says in done.stderr


def test_a_refused_key_ends_it(file):
    with OpenAIServer(Answer.error(401, "this key is unknown")) as server:
        done = measure(server, file(ROWS), "--require", "x")
    assert done.returncode == 3
    assert "this key is unknown" in done.stderr


@pytest.mark.parametrize("question", ["--require", "--score", "--compare"])
def test_if_nothing_is_decided_it_says_why(question, file):
    with OpenAIServer(Answer.error(400, "no such parameter")) as server:
        rows = PAIRS if question == "--compare" else ROWS
        done = measure(server, file(rows), question, "x", "--json")
    assert done.returncode == 3
    assert "nothing was decided" in done.stderr
    assert "no such parameter" in done.stderr


def test_a_row_without_a_verdict_is_told(file):
    def choose(number, body):
        apologises = "apologise" in body["messages"][1]["content"]
        return Answer("Hm." if apologises else json.dumps({"passed": True, "reason": "so"}))

    with OpenAIServer(choose=choose) as server:
        done = measure(server, file(ROWS), "--require", "x")
    assert done.returncode == 0
    lines = words(done.stdout)
    assert lines[0] == "small: 3 rows decided, 1 undecided"
    assert lines[1].startswith("the first undecided: ")
    assert "Hm." in lines[1]


def test_a_budget_bounds_what_the_judges_cost(file, judge):
    path = file(ROWS)
    done = measure(judge, path, "--require", "It apologises.", "--budget", "requests=2")
    assert (done.returncode, done.stdout) == (3, "")
    assert "stopped before the end" in done.stderr
    assert len(judge.requests) == 2
    done = measure(judge, path, "--require", "It apologises.", "--price", "1000,1000")
    assert done.stdout.splitlines()[-1].endswith(" USD")
    done = measure(judge, path, "--score", "Is it polite?", "--budget", "cost=1", "--price", "1,1")
    assert done.returncode == 2
    assert "with --score, --budget takes requests and input-tokens" in done.stderr
