"""``--escalate``: a bigger model takes over after the draws of the previous one have failed."""

from __future__ import annotations

import json

import pytest
from http_server import Answer, OpenAIServer
from rows_kit import records, write_rows

from mellea_like.batch import read_run


@pytest.fixture
def server():
    def choose(number, body):
        return Answer("not one word" if body["model"] == "small" else "fine", usage=(100, 100))

    with OpenAIServer(choose=choose) as served:
        yield served


@pytest.fixture
def sample(command, server):
    def run(*arguments):
        small = ("--base-url", server.url, "--model", "small", "--lanes=1")
        return command("sample", "x", *small, "--check", "words<2", *arguments)

    return run


def asked(server):
    return [request["model"] for request in server.requests]


def test_a_bigger_model_goes_on_and_sees_the_best_failure(sample, server):
    code, out, err = sample("--attempts=2", "--escalate", "big,carry=best", "--explain")
    assert (code, out) == (0, "fine\n")
    assert asked(server) == ["small", "small", "big"]
    assert "An earlier attempt:\nnot one word" in server.requests[-1]["messages"][-1]["content"]
    assert "small at http" in err
    assert "Passed: attempt 3 of 3 (big); 3 draws" in err
    assert f"Then big at {server.url}" in err


def test_each_model_has_its_turns_and_its_price(sample, server):
    bigger = ("--escalate", "big,attempts=2,price=10,10", "--price", "1,1")
    code, out, _ = sample("--attempts=3", *bigger, "--json", "-q")
    assert code == 0
    found = json.loads(out)["ledger"]["stages"]
    assert [(s["stage"], s["model"], s["requests"]) for s in found] == [
        (0, "small", 3),
        (1, "big", 1),
    ]
    assert [s["cost"] for s in found] == pytest.approx([600e-6, 2000e-6])
    code, _, err = sample("--attempts=1", *bigger, "--ledger", "--check", "contains:never", "-q")
    assert (code, asked(server)[4:]) == (1, ["small", "big", "big"])
    drawn = ["attempt 1, small", "attempt 2, big", "attempt 3, big"]
    table = [line.strip() for line in err.splitlines()]
    assert [line.partition("  ")[0] for line in table[1:4]] == drawn
    assert [line.split()[0] for line in table[4:6]] == ["small", "big"]


def test_a_batch_learns_when_the_bigger_model_is_cheaper(command, server, tmp_path):
    rows = write_rows(tmp_path / "in.jsonl", [{"a": n} for n in range(20)])
    journal = tmp_path / "run.db"
    code, _, err = command(
        *("batch", str(rows), "--prompt", "{{ a }}", "-o", str(tmp_path / "out.jsonl"), "-q"),
        *("--base-url", server.url, "--model", "small", "--price", "1,1", "--check", "words<2"),
        *("--escalate", "big,price=5,5", "--escalate-when", "cheaper", "--attempts=9"),
        *("--lanes=1", "--workers", "1", "--journal", str(journal)),
    )
    assert (code, err) == (0, "")
    assert len(records(tmp_path / "out.jsonl")) == 20
    assert asked(server)[-2:] == ["small", "big"]
    assert asked(server).count("small") < 40
    run = read_run(journal)
    assert run["prices"].keys() == {"small", "big"}
    assert run["identity"]["strategy"]["class"].endswith("Escalate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--escalate", "big,turn=2"], "then any of attempts, carry, price, base-url, as in"),
        (["--escalate", "big,price"], "write the model first"),
        (["--escalate", "attempts=2"], "write the model first"),
        (["--escalate", "big,turns=2"], "turns is now called attempts"),
        (["--escalate", "big,attempts=0"], "--escalate big: attempts must be at least 1, not 0"),
        (["--escalate", "big,carry=all"], "--escalate big: carry must be 'nothing', 'best' or"),
        (["--escalate", "big,price=1"], "--escalate big: price must be two amounts"),
        (["--escalate", "big", "--select", "vote"], "would choose among draws of different models"),
        (["--escalate", "big", "--give-up"], "would end a call before the bigger model's attempts"),
        (
            ["--escalate", "big", "--escalate-when=cheaper", "--lanes=2"],
            "--escalate-when cheaper can't be combined with --lanes 2: with racing lanes",
        ),
        (["--escalate-when", "cheaper"], "name the model with --escalate"),
        (["--escalate", "big", "--escalate-when", "cheaper"], "add --price IN,OUT"),
        (
            ["--escalate", "big", "--escalate-when", "cheaper", "--price", "1,1"],
            "needs the price of each model, in one currency",
        ),
        (
            ["--escalate", "big", "--budget", "cost=1", "--price", "1,1", "--max-tokens", "9"],
            "--budget cost needs the price of each model",
        ),
        (
            ["--escalate", "big,price=1,1,EUR", "--escalate-when", "cheaper", "--price", "1,1"],
            "in one currency",
        ),
    ],
)
def test_a_mistake_is_told_before_the_first_request(sample, server, arguments, message):
    code, out, err = sample(*arguments)
    assert (code, out, asked(server)) == (2, "", [])
    assert message in " ".join(err.split())
