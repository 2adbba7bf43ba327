"""``mellea-like batch --check``: checks of code, and checks filled in with a row's fields."""

from __future__ import annotations

import pytest
from http_server import Answer, OpenAIServer
from rows_kit import asked, records, write_rows

from mellea_like.batch import read_run

ADD = "def add(a, b):\n    return a + b"
PROGRAMS = {
    "add": f"```python\n{ADD}\n```",
    "subtract": "```python\ndef subtract(a, b):\n    return a + b\n```",
    "old": "```sql\nSELECT name FROM people WHERE age > 40\n```",
    "greet": "```python\nprint('Hello ' + input())\n```",
}


@pytest.fixture
def server():
    with OpenAIServer(choose=lambda number, body: Answer(PROGRAMS[asked(body)])) as server:
        yield server


@pytest.fixture
def batch(command, server, tmp_path):
    def run_batch(rows, *arguments):
        source = write_rows(tmp_path / "in.jsonl", rows)
        code, _, err = command(
            *("batch", str(source), "-o", str(tmp_path / "out.jsonl"), "--force", "--attempts=1"),
            *("--in-order", "--base-url", server.url, "--model", "m", *arguments),
        )
        out = tmp_path / "out.jsonl"
        return code, records(out) if out.exists() else [], err

    return run_batch


PEOPLE = "CREATE TABLE people (name, age); INSERT INTO people VALUES ('Ann', 50), ('Bo', 30);"


@pytest.mark.parametrize(
    ("check", "row", "success"),
    [
        ("passes_tests:{{ tests }}", {"ask": "add", "tests": "assert add(2, 2) == 4"}, True),
        ("passes_tests:{{ tests }}", {"ask": "add", "tests": ["assert add(1, 1) == 3"]}, False),
        (
            'returns:{{ {"function": ask, "cases": cases} }}',
            {"ask": "subtract", "cases": [[[3, 1], 2]]},
            False,
        ),
        (
            'returns:{{ {"function": ask, "cases": cases} }}',
            {"ask": "add", "cases": [[[3, 1], 4], [[[1], [2]], [1, 2]]]},
            True,
        ),
        (
            'prints:{{ {"stdin": given, "stdout": wanted} }}',
            {"ask": "greet", "given": ["Ann", "Bo"], "wanted": ["Hello Ann", "Hello Bo"]},
            True,
        ),
        (
            'runs_sql:{{ {"schema": schema, "like": query} }}',
            {"ask": "old", "schema": PEOPLE, "query": "SELECT 'Ann'"},
            True,
        ),
        (
            'runs_sql:{{ {"schema": schema, "like": query} }}',
            {"ask": "old", "schema": PEOPLE, "query": "SELECT 'Bo'"},
            False,
        ),
        ("parses:{{ language }}", {"ask": "add", "language": "python"}, True),
        ("contains:{{ ask }}", {"ask": "add"}, True),
        ("contains:{{ ask | upper }}", {"ask": "add"}, False),
    ],
)
def test_each_row_has_the_check_that_its_fields_make(batch, server, check, row, success):
    code, out, err = batch([row], "-p", "{{ ask }}", "--check", check)
    assert [one["success"] for one in out] == [success], (err, out)
    assert [asked(body) for body in server.requests] == [row["ask"]]  # And not the right answer.
    assert code == (0 if success else 1)


def test_checks_of_code_need_no_fields(batch):
    rows = [{"ask": "add"}, {"ask": "old"}]
    _, out, err = batch(rows, "-p", "{{ ask }}", "--check", "runs", "--check", "parses:python")
    assert [one["success"] for one in out] == [True, False], err


def test_a_check_is_told_by_its_template_and_belongs_to_the_run(batch, tmp_path):
    rows = [{"ask": "add", "tests": f"assert add({n}, 0) == {n}"} for n in range(3)]
    journal = ("--journal", str(tmp_path / "run.db"))
    check = "passes_tests:{{ tests }}"
    code, _, err = batch(rows, "-p", "{{ ask }}", *journal, "--check", check)
    assert code == 0, err
    counted = read_run(tmp_path / "run.db")["identity"]["checks"]
    assert counted == [check]
    code, _, err = batch(
        rows, "-p", "{{ ask }}", *journal, "--resume", "--check", "contains:{{ ask }}"
    )
    assert (code, "belongs to another run" in err) == (3, True), err


@pytest.mark.parametrize(
    ("check", "row", "problem"),
    [
        ("passes_tests:{{ tests }}", {}, "a check can't be filled in: 'tests' is undefined"),
        ("passes_tests:{{ tests }}", {"tests": "assert ("}, "the tests don't parse"),
        ("passes_tests:{{ tests }}", {"tests": ""}, "passes_tests:TESTS"),
        (
            "returns:{{ tests }}",
            {"tests": {"cases": [1]}},
            "a case must be [[ARGUMENT, ...], VALUE]",
        ),
        ("returns:{{ tests }}", {"tests": {"function": "f", "sandbox": 1}}, "sandbox"),
        ("runs:{{ tests }}", {"tests": 7}, "its arguments must be a JSON object"),
        ("runs:{{ tests }}", {"tests": {"stdinn": 7}}, "stdinn"),
        ("what:{{ tests }}", {"tests": 7}, "is unknown"),
    ],
)
def test_a_row_that_no_check_can_be_made_of_is_told_before_the_run(
    batch, server, check, row, problem
):
    code, _, err = batch([{"ask": "add", **row}], "-p", "{{ ask }}", "--check", check)
    assert (code, server.requests) == (3, [])
    assert problem in err
    assert "line 1" in err


@pytest.mark.parametrize("check", ["passes_tests:assert (", "runs:7", "parses:cobol", "parses"])
def test_a_wrong_check_of_code_is_told_with_its_form(batch, server, check):
    code, _, err = batch([{"ask": "add"}], "-p", "{{ ask }}", "--check", check)
    assert (code, server.requests) == (2, [])
    assert "Write it as" in err
