"""``mellea-like judge-agreement``: a judge is compared with a file of labels."""

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
    """A judge that passes texts with "orry", scores them 9 and others 2, and prefers the first."""

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


@pytest.fixture
def measure(command):
    def run_in_this_process(server, *arguments):
        judge = ("--judge", "small", "--judge-base-url", server.url)
        return command("judge-agreement", *arguments, *judge)

    return run_in_this_process


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_agreement_with_labels_and_with_itself(file, judge):
    asked = ("--judge", "small", "--judge-base-url", judge.url, "--require", "It apologises.")
    done = run("judge-agreement", file(ROWS), *asked, "--repeats", "2")
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


def test_a_panel(file, judge, measure):
    more = ("--judge", "big", "--judge", "other")
    code, out, _ = measure(judge, file(ROWS), "--require", "x", *more)
    assert code == 0
    heads = [line for line in out.splitlines() if not line.startswith(" ")]
    names = [line.partition(":")[0] for line in heads[:-1]]
    assert sorted(names[:3]) == ["big", "other", "small"]
    assert names[3] == "the majority of the judges"


def test_scores_and_their_threshold_as_json(file, judge, measure):
    code, out, err = measure(judge, file(ROWS * 5), "--score", "Is it contrite?", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["scores"][:4] == [9, 2, 2, 9]
    assert found["ranking"] == 0.5
    assert found["threshold"] is None  # None is useful.
    assert found["decisions"]["accuracy"]["count"] == 20


def test_comparisons(file, judge, measure, tmp_path):
    table = tmp_path / "pairs.csv"
    columns = ("first", "second", "label")
    rows = [columns, *([pair.get(name, "") for name in columns] for pair in PAIRS)]
    table.write_text("".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))
    _, out, _ = measure(judge, file(PAIRS), "--compare", "is better")
    assert measure(judge, str(table), "--compare", "is better")[1] == out
    unlabelled = file([{name: pair[name] for name in ("first", "second")} for pair in PAIRS])
    assert measure(judge, unlabelled, "--compare", "is better")[0] == 0
    assert words(out)[:4] == [
        "3 pairs compared, 0 undecided",
        "agrees with people 0.000 (0.000 to 0.658, n = 2)",
        "same answer in both orders 0.000 (0.000 to 0.561, n = 3)",
        "otherwise prefers the first 1.000 (0.439 to 1.000, n = 3)",
    ]


WRONG_CALLS = [
    ((), 2, "exactly one of --require TEXT"),
    (("--require", "x", "--score", "y"), 2, "exactly one of --require TEXT"),
    (("--score", "x", "--repeats", "2"), 2, "are only for --require"),
    (("--require", "x", "--judge", "small"), 2, "each model only once"),
    (("--score", "x", "--scale", "ten"), 2, "LOW..HIGH"),
    (("--score", "x", "--scale", "5..1"), 2, "--scale must be LOW..HIGH"),
    (("--score", "x", "--scale", "1..inf"), 2, "--scale must be LOW..HIGH"),
    (("--require", "x", "--label", "good"), 3, "row 1: there is no field 'good'"),
    (("--require", "x", "--scale", "1..5"), 2, "--scale is only for --score"),
    (("--require", "x", "--second", "b"), 2, "--second is only for --compare"),
    (("--compare", "x", "--reply", "b"), 2, "--reply is only for --require and --score"),
    (("--require", "x", "--confidence", "95"), 2, "between 0 and 1"),
    (("--compare", "x", "--first=reply", "--second=reply", "--label=l"), 3, "no row has the field"),
]
WRONG_ROWS = [
    ([ROWS[0] | {"label": "perhaps"}], "row 1: the label must be true or false,"),
    ([ROWS[0], ROWS[0] | {"reply": None}], "row 2: the reply in the field 'reply' must be a"),
    ([ROWS[0] | {"reply": {"role": "user", "content": ""}}], "must be a message with the role 'as"),
    ([ROWS[0] | {"prompt": 0}], "row 1: the task in the field 'prompt' must be a text, or a"),
    ([{"label": True, "prompt": None}], "row 1: there is no field 'reply'"),
    ([], "has no rows"),
]


@pytest.mark.parametrize(
    ("rows", "arguments", "code", "says"),
    [(ROWS, *wrong) for wrong in WRONG_CALLS]
    + [(rows, ("--require", "x", "--prompt=prompt"), 3, says) for rows, says in WRONG_ROWS]
    + [([PAIRS[0] | {"second": None}], ("--compare", "x"), 3, "row 1: a reply is null")],
)
def test_what_is_wrong_is_told(rows, arguments, code, says, file, judge, measure):
    found, out, err = measure(judge, file(rows), *arguments)
    assert (found, out) == (code, "")
    assert says in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize("question", ["--require", "--score", "--compare"])
@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (Answer.error(400, "no such parameter"), ("nothing was decided", "no such parameter")),
        (Answer.error(401, "this key is unknown"), ("this key is unknown",)),
    ],
)
def test_if_nothing_is_decided_it_says_why(question, refusal, says, file, measure):
    with OpenAIServer(refusal) as server:
        rows = PAIRS if question == "--compare" else ROWS
        code, _, err = measure(server, file(rows), question, "x", "--json")
    assert code == 3
    assert all(said in err for said in says), err


def test_a_row_without_a_verdict_is_told(file, measure):
    def choose(number, body):
        apologises = "apologise" in body["messages"][1]["content"]
        return Answer("Hm." if apologises else json.dumps({"passed": True, "reason": "so"}))

    with OpenAIServer(choose=choose) as server:
        code, out, _ = measure(server, file(ROWS), "--require", "x")
    assert code == 0
    lines = words(out)
    assert lines[0] == "small: 3 rows decided, 1 undecided"
    assert lines[1].startswith("the first undecided: ")
    assert "Hm." in lines[1]


@pytest.mark.parametrize("question", ["--require", "--score", "--compare"])
def test_a_budget_of_money_names_the_option_that_makes_verdicts_cheaper(
    file, judge, measure, question
):
    rows = PAIRS if question == "--compare" else ROWS
    asked = (file(rows), question, "x", "--price=1,2")
    code, _, err = measure(judge, *asked, "--budget=cost=2")
    assert (code, err) == (0, "")
    code, _, err = measure(judge, *asked, "--budget=cost=0.0001")
    shorter = "" if question == "--score" else ", or a lower --judge-option max-tokens=N"
    assert code == 3
    assert err.endswith(f"it needs a higher --budget cost{shorter}\n")


def test_a_budget_bounds_what_the_judges_cost(file, judge, measure):
    path = file(ROWS)
    code, out, err = measure(judge, path, "--require", "It apologises.", "--budget", "requests=2")
    assert (code, out) == (3, "")
    assert "stopped early" in err
    assert len(judge.requests) == 2
    _, out, _ = measure(judge, path, "--require", "It apologises.", "--price", "1000,1000")
    assert out.splitlines()[-1] == "$0.044"
    # Money has no exponent.
    _, out, _ = measure(judge, path, "--require", "It apologises.", "--price", "0.15,0.6,EUR")
    assert out.splitlines()[-1] == "0.0000138 EUR"
