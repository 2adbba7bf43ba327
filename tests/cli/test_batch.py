"""``mellea-like batch``: rows and results in each format, and each way in which a run ends."""

from __future__ import annotations

import csv
import gc
import json
import os
import re
import socket
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Terminal, run
from http_server import Answer, OpenAIServer
from rows_kit import asked, echo, records, write_rows

from mellea_like.batch import read_items, read_run
from mellea_like.cli.batch.prompt import PromptTemplate
from mellea_like.cli.batch.source import RowSource
from mellea_like.cli.exit_codes import Problem
from mellea_like.export import Run
from mellea_like.report.numbers import money


@pytest.fixture
def server():
    with OpenAIServer(choose=echo) as server:
        yield server


@pytest.fixture
def batch(command, server, tmp_path):
    """Run ``batch`` in this process against the echoing server, with results in order."""
    write_rows(tmp_path / "in.jsonl", 5)

    def run_batch(*arguments, source=None, to="out.jsonl", prompt="Say {{ text }}", workers="1"):
        source = tmp_path / "in.jsonl" if source is None else source
        to = to if to == "-" else str(tmp_path / to)
        return command(
            *("batch", str(source), "-p", prompt, "-o", to, "--workers", workers),
            *("--base-url", server.url, "--model", "m", *arguments),
        )

    run_batch.command = command
    return run_batch


def test_in_breadth_a_budget_asks_about_each_row_first_and_a_larger_one_goes_on(
    batch, server, tmp_path
):
    many = ("--check", "ends:3", "--breadth-first", "--in-order")
    many += ("--journal", str(tmp_path / "run.db"))
    code, _, err = batch(*many, "--attempts=3", "--budget", "requests=7")
    assert code == 1
    assert "Stopped after 1 of 5 rows; " in err
    assert [asked(body) for body in server.requests] == [
        f"Say number {n}" for n in (0, 1, 2, 3, 4, 0, 1)
    ]
    code, _, err = batch(*many, "--attempts=3", "--resume", "--budget", "requests=100")
    assert code == 1
    assert err.splitlines()[-1].startswith("5 rows: 1 passed, 4 failed; 6 requests, ")
    assert len(server.requests) == 13
    found = records(tmp_path / "out.jsonl")
    assert [one["iterations"] for one in found] == [3, 3, 3, 1, 3]
    assert [one["usage"]["requests"] for one in found] == [3, 3, 3, 1, 3]
    batch(*many, "--attempts=4", "--resume")
    assert len(server.requests) == 17, "each that failed has one draw more"
    assert [one["iterations"] for one in records(tmp_path / "out.jsonl")] == [4, 4, 4, 1, 4]


@pytest.mark.parametrize("order", [(), ("--breadth-first",)], ids=["depth", "breadth"])
def test_rows_added_at_the_end_are_asked_and_no_other_again(batch, server, tmp_path, order):
    path = tmp_path / "in.jsonl"
    many = ("--check", "ends:3", *order, "--in-order", "--attempts=2")
    many += ("--journal", str(tmp_path / "run.db"))
    batch(*many, "--budget", "requests=7")
    before = path.read_bytes()
    write_rows(path, 14)
    batch(*many, "--resume")
    assert len(server.requests) == 2 * 12 + 2, "two of 14 rows pass at once"
    assert [one["id"] for one in records(tmp_path / "out.jsonl")] == list(range(14))
    assert read_run(tmp_path / "run.db")["counts"]["passed"] == 2
    # Others are refused: what was there is gone, or is another.
    for changed in (before[:-1], before.replace(b"number 4", b"number 7")):
        path.write_bytes(changed)
        code, _, err = batch(*many, "--resume")
        assert (code, 'belongs to another run: INPUT was "' in err) == (3, True)
    path.write_bytes(before)
    code, _, err = batch(*many, "--resume")
    assert (code, "the source ended after 5 items, but the journal has more" in err) == (3, True)


def test_a_row_that_only_begins_as_it_did_is_another(batch, tmp_path):
    path = tmp_path / "in.csv"
    many = ("--journal", str(tmp_path / "run.db"), "--check", "ends:3")
    path.write_text("text\none\ntwo")
    batch(*many, source=path)
    path.write_text("text\none\ntwofold\nthree\n")
    code, _, err = batch(*many, "--resume", source=path)
    assert (code, "item 1 differs from the one in the journal" in err) == (3, True)


def test_a_result_stands_for_each_row(batch, server, tmp_path):
    code, out, err = batch("--check", "ends:3", "--attempts=2")
    assert (code, out) == (1, "")
    found = records(tmp_path / "out.jsonl")
    assert [one["success"] for one in found] == [False, False, False, True, False]
    assert found[3] == {
        "id": 3,
        "line": 4,
        "input": {"text": "number 3", "n": 3},
        "output": "re Say number 3",
        "success": True,
        "status": "passed",
        "reasons": [],
        "error": None,
        "iterations": 1,
        "elapsed": found[3]["elapsed"],
        "usage": {"requests": 1, "input_tokens": 7, "output_tokens": 4, "unknown": 0},
    }
    assert found[0]["status"] == "failed"
    assert found[0]["output"] == "re Say number 0"
    assert found[0]["reasons"] == ['ends:3: it ends with " number 0", not with "3"']
    assert (found[0]["iterations"], found[0]["usage"]["requests"]) == (2, 2)
    assert len(server.requests) == 9
    assert err.splitlines()[-1].startswith("5 rows: 1 passed, 4 failed; 9 requests, 99 tokens, ")


def test_rows_may_have_to_get_replies_that_differ(batch, server, tmp_path):
    options = ("--unique", "exact", "--journal", str(tmp_path / "run.db"))
    prompt = "{{ row.n // 2 and 'SAY it' or 'say it' }}"
    code, _, _ = batch(*options, prompt=prompt)
    assert code == 1
    found = records(tmp_path / "out.jsonl")
    assert [one["success"] for one in found] == [True, False, False, False, False]
    assert found[4]["reasons"] == ["unique: it says the same as the reply to item 0"]
    code, _, err = batch("--unique", "0.7", *options[2:], "--resume", prompt=prompt)
    assert code == 3
    assert '--unique: "unlike the replies to other items (similarity under 0.7)" is new' in err
    assert '--unique: "unlike the replies to other items (the same text)" is gone' in err


def test_rows_are_sampled_at_a_time_and_may_come_in_order(batch, server, tmp_path):
    def choose(number, body):
        return Answer(f"re {asked(body)}", wait=0.3 if asked(body).endswith("0") else 0.0)

    server._choose = choose
    assert batch("--in-order", workers="5")[0] == 0
    assert server.max_in_flight > 1
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [0, 1, 2, 3, 4]
    assert batch("--force", workers="5")[0] == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines][-1] == 0


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("source", ["in.jsonl", "in.csv"])
def test_rows_that_did_not_pass_are_asked_again_with_their_ids(batch, tmp_path, source, kind):
    source = tmp_path / source
    if source.suffix == ".csv":
        source.write_text("text,id\nnumber 0,x\nnumber 1,y\nnumber 2,z\n", encoding="utf-8")
    failed = str(tmp_path / f"failed.{kind}")
    first = ("--journal", str(tmp_path / "1.db"), "--check", "ends:2", "--attempts=1")
    assert batch(*first, "--failed", failed, source=source)[0] == 1
    again = ("--journal", str(tmp_path / "2.db"), "--again", "--check", "ends:1", "--attempts=1")
    assert batch(*again, source=failed, to="again.jsonl")[0] == 1
    rows = len(source.read_text().splitlines()) - (source.suffix == ".csv")
    found = records(tmp_path / "again.jsonl")
    assert [one["id"] for one in found] == [n for n in range(rows) if n != 2]
    assert [one["line"] - one["id"] for one in found] == [2 if source.suffix == ".csv" else 1] * (
        rows - 1
    )
    assert [one["success"] for one in found][:2] == [False, True]
    assert found[0]["input"] == (
        {"text": "number 0", "id": "x"} if source.suffix == ".csv" else {"text": "number 0", "n": 0}
    )
    # What passed is left alone, and what comes of the rest has the columns that it had.
    third = ("--journal", str(tmp_path / "3.db"), "--again", "--force")
    assert batch(*third, source=tmp_path / "again.jsonl", to=f"third.{kind}")[0] == 0
    assert batch(*again[2:], source=source, to="x.jsonl")[0] == 3


def test_rows_that_were_asked_again_are_one_item_in_reports_plans_and_exports(
    batch, command, tmp_path
):
    one, two, three = (str(tmp_path / f"{n}.db") for n in (1, 2, 3))
    failed, still = str(tmp_path / "failed.jsonl"), str(tmp_path / "still.jsonl")
    often = ("--attempts=2",)
    batch("--journal", one, "--check", "ends:2", *often, "--failed", failed)
    batch(
        *("--journal", two, "--again", "--check", "regex:[23]$", *often, "--failed", still),
        source=failed,
        to="b.jsonl",
    )
    batch("--journal", three, "--again", *often, source=still, to="c.jsonl")
    assert [sum(read_run(path)["counts"].values()) for path in (one, two, three)] == [5, 4, 3]
    for journals, passed, draws in (
        ((one,), 1, 9),
        ((one, two), 2, 16),
        ((three, one, two), 5, 19),  # In any order.
        ((two, three), 4, 10),  # What it began with isn't here.
    ):
        rows = 4 if one not in journals else 5
        _, out, _ = command("report", *journals)
        assert f"{rows} items" in out
        assert f"{passed} passed" in out or f"{passed} of {rows}" in out, out
        run = Run(*journals)
        assert run.facts["counts"] == {
            "passed": passed,
            "failed": rows - passed,
            "errored": 0,
            "unfinished": 0,
        }
        items = list(run.items())
        assert len(items) == rows
        assert sum(item["status"] == "passed" for item in items) == passed
        assert sum(item["usage"]["requests"] for item in items) == draws
        _, out, _ = command("plan", *journals, "--json")
        assert json.loads(out)["items"] == rows, out
    code, out, _ = command("report", three, "--compare", one)
    assert code == 0


def test_a_report_takes_the_prices_that_the_run_did_not_have(batch, command, tmp_path):
    one, two = str(tmp_path / "1.db"), str(tmp_path / "2.db")
    batch("--journal", one)
    batch("--journal", two, to="b.jsonl")
    usage = [r["usage"] for r in records(tmp_path / "out.jsonl")]
    cost = sum(2 * u["input_tokens"] + 4 * u["output_tokens"] for u in usage) / 1e6
    for journals, times in ((one,), 1), ((one, two), 2):
        for price in "2,4,EUR", "m=2,4,EUR":
            _, out, _ = command("report", *journals, "--price", price)
            assert money(times * cost, "EUR") in out, out
    for price, problem in (
        ("2", "--price must be two amounts"),
        ("m=", "--price must be two amounts"),
    ):
        code, _, err = command("report", one, "--price", price)
        assert (code, problem in err) == (2, True), err
    code, _, err = command("report", one, "--price", "a=1,2", "--price", "b=1,2,EUR")
    assert (code, "same currency" in err) == (2, True)
    assert command("report", one, "--compare", two, "--price", "2,4")[0] == 0
    assert read_run(one)["prices"] is None


def test_a_system_prompt_and_any_field_go_along_with_each_request(batch, server, tmp_path):
    (tmp_path / "system.txt").write_text("Be brief.", encoding="utf-8")
    many = ("--system", f"@{tmp_path / 'system.txt'}", "--top-p", "0.9", "--extra", "top_k=20")
    many += ("--extra", 'chat_template_kwargs={"enable_thinking": false}', "--extra", "tier=flex")
    many += ("--journal", str(tmp_path / "run.db"))
    assert batch(*many)[0] == 0
    body = server.requests[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["top_p"], body["top_k"], body["tier"]) == (0.9, 20, "flex")
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert batch(*many, "--resume")[0] == 0
    assert len(server.requests) == 5
    code, _, err = batch(*many[2:], "--resume", "--system", "Be long.")
    assert (code, "--system" in err) == (3, True), err


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_rows_can_be_conversations(batch, server, tmp_path, kind):
    asked_before = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Who are you?"},
    ]
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "And you?"}]
    source = tmp_path / f"in.{kind}"
    if kind == "jsonl":
        write_rows(source, [{"messages": asked_before}, {"messages": own}])
    else:
        with source.open("w", newline="") as file:
            csv.writer(file).writerows(
                [["messages"], *([json.dumps(m)] for m in (asked_before, own))]
            )
    out = str(tmp_path / "out.jsonl")
    arguments = ("batch", str(source), "-o", out, "--workers", "1", "--system", "Be kind.")
    code, _, err = batch.command(*arguments, "--base-url", server.url, "--model", "m")
    assert code == 0, err
    system = {"role": "system", "content": "Be kind."}
    assert [body["messages"] for body in server.requests] == [[system, *asked_before], own]
    assert [one["output"] for one in records(tmp_path / "out.jsonl")] == [
        "re Who are you?",
        "re And you?",
    ]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "the row's messages are empty"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "remove it"),
        ([{"content": "a"}], "the row's messages can't be read"),
        ("no", "the row's messages can't be read"),
        (7, "the row's messages can't be read"),
    ],
)
def test_a_row_whose_messages_ask_nothing_is_told_before_the_run(
    batch, server, messages, problem, tmp_path
):
    source = write_rows(tmp_path / "m.jsonl", [{"messages": messages}])
    arguments = ("batch", str(source), "-o", str(tmp_path / "o.jsonl"))
    code, _, err = batch.command(*arguments, "--base-url", server.url, "--model", "m")
    assert (code, problem in err, server.requests) == (3, True, []), err


def thinking(number, body):
    return Answer("" if asked(body).endswith("3") else f"re {asked(body)}", reasoning="Hm.")


def test_thoughts_and_filters_of_results(command, tmp_path):
    write_rows(tmp_path / "in.jsonl", 5)
    with OpenAIServer(choose=thinking) as server:

        def outputs(*arguments, name="out.jsonl"):
            out = tmp_path / name
            code, _, err = command(
                *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "-o", str(out)),
                *("--base-url", server.url, "--model", "m", "--force", "--in-order", *arguments),
            )
            assert code in {0, 1}, err
            return records(out) if name.endswith("jsonl") else out.read_text(), err

        found, _ = outputs()
        assert found[0]["reasoning"] == "Hm."
        found, _ = outputs("--reasoning", "inline", "--first", "1")
        assert found[0]["output"] == "<think>\nHm.\n</think>\n\nre Say number 0"
        assert "reasoning" not in found[0]
        found, _ = outputs("--reasoning", "drop", "--first", "1")
        assert "reasoning" not in found[0]
        text, _ = outputs("--reasoning", "inline", name="out.csv")
        assert "<think>" in text
        found, err = outputs("--drop", "empty", "--attempts=1")
        assert [one["id"] for one in found] == [0, 1, 2, 4]
        found, err = outputs("--max-chars", "3", "--attempts=1")
        assert "Left out of the results by --drop, --min-chars or --max-chars: 4 rows" in err


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_halves_of_characters_are_replaced_and_their_rows_counted(command, tmp_path, name):
    """A reader of lines, such as that of `datasets`, refuses a whole file for one surrogate."""
    write_rows(tmp_path / "in.jsonl", 3)
    said = ["\ud83d half", "\ud83d\ude00 whole", "plain"]
    with OpenAIServer(choose=lambda number, body: Answer(said[int(asked(body)[-1])])) as server:
        _, _, err = command(
            *("batch", str(tmp_path / "in.jsonl"), "-p", "Say {{ text }}", "--in-order"),
            *("-o", str(tmp_path / name), "--base-url", server.url, "--model", "m"),
            *("--journal", str(tmp_path / "run.db")),
        )
    assert "Changed: rows with halves of characters, replaced by U+FFFD (1)" in err
    written = (tmp_path / name).read_bytes()
    assert "\ufffd half".encode() in written
    assert "\U0001f600 whole".encode() in written
    assert b"\\ud" not in written


def test_what_stands_in_the_output_can_be_chosen(batch, tmp_path):
    for keep, ids in ("passed", [3]), ("failed", [0, 1, 2, 4]):
        assert batch("--check", "ends:3", "--attempts=1", "--keep", keep, "--force")[0] == 1
        assert [one["id"] for one in records(tmp_path / "out.jsonl")] == ids
    code, _, err = batch("--keep", "passed", "--failed", "f.jsonl")
    assert (code, "use one of them" in err) == (2, True)


def test_rows_that_could_not_be_written_do_not_count_as_done(batch):
    code, _, err = batch(to="/dev/full")
    assert code == 3
    assert "can't write /dev/full: No space left on device\nStopped after 0 of 5 rows." in err


# Formats


def test_parquet_in_and_parquet_out_keep_columns_and_types(batch, tmp_path):
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "n": [1, 2]}), source)
    arguments = ("--journal", str(tmp_path / "run.db"))
    assert batch(*arguments, source=source, to="out.parquet")[0] == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("n").to_pylist() == [1, 2]
    assert table.column("output").to_pylist() == ["re Say a", "re Say b"]
    assert table.column("line").to_pylist() == [1, 2]
    # ... and again, out of the journal
    assert batch(*arguments, "--resume", source=source, to="out.parquet")[0] == 0
    assert pq.read_table(tmp_path / "out.parquet") == table


def test_a_pipe_in_and_a_pipe_out(tmp_path):
    rows = "".join(json.dumps({"n": n}) + "\n" for n in range(3))
    done = run("batch", "-", "--backend", "markov", "-p", "Write {{ n }}", "-o", "-", stdin=rows)
    assert done.returncode == 0, done.stderr
    assert [one["input"] for one in records(done.stdout)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert "3 rows: 3 passed" in done.stderr


@pytest.mark.parametrize(("suffix", "between"), [("csv", ","), ("tsv", "\t")])
def test_a_header_alone_names_the_columns_of_the_results(batch, tmp_path, suffix, between):
    source = tmp_path / f"in.{suffix}"
    source.write_text(f"text{between}n\n")
    assert batch(source=source, to=f"out.{suffix}")[0] == 0
    assert (tmp_path / f"out.{suffix}").read_text().startswith(between.join(["text", "n", "id"]))


def test_a_pipe_may_have_a_name(batch, tmp_path):
    os.mkfifo(tmp_path / "rows")
    rows = "".join(json.dumps({"text": str(n)}) + "\n" for n in range(3))
    feeder = threading.Thread(target=(tmp_path / "rows").write_text, args=(rows,))
    feeder.start()
    code, _, err = batch(source=tmp_path / "rows")
    feeder.join()
    assert (code, "3 rows: 3 passed" in err) == (0, True)
    assert [one["line"] for one in records(tmp_path / "out.jsonl")] == [1, 2, 3]


def test_rows_may_be_typed():
    with Terminal("batch", "-", "--backend", "markov", "-p", "Say {{ n }}", "-o", "-") as terminal:
        terminal.wait_for("Reading rows from the terminal; press Ctrl-D to finish.")
        terminal.type('{"n": 1}\n')
        terminal.wait_for("Backend: markov")
        terminal.type("\x04")
        code, out = terminal.finish()
    assert code == 0
    assert [one["input"] for one in records(out)] == [{"n": 1}]


def test_a_reply_by_a_schema_stands_as_its_value(batch, server, tmp_path):
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "object", "required": ["a"]}')
    replies = ("{}", '```json\n{"a": 1}\n```', '{"a": NaN}', "no JSON")
    server._choose = lambda number, body: Answer(replies[number])
    batch("--schema", str(schema), "--first", "4", "--attempts=1")
    first, second, third, fourth = records(tmp_path / "out.jsonl")
    assert (first["output"], first["success"]) == ({}, False)
    assert (second["output"], second["success"]) == ({"a": 1}, True)
    assert (third["output"], fourth["output"]) == ('{"a": NaN}', "no JSON")


def test_the_garbage_collector_runs_less_often_meanwhile(batch):
    before, during = gc.get_threshold(), []

    def choose(number, request):
        during.append(gc.get_threshold()[0])
        return echo(number, request)

    with OpenAIServer(choose=choose) as watched:
        assert batch("--base-url", watched.url)[0] == 0
    assert min(during) > before[0]
    assert gc.get_threshold() == before


def test_a_server_that_never_answers_is_waited_for_a_little_and_then_named(
    batch, tmp_path, monkeypatch
):
    monkeypatch.setattr("mellea_like.cli.outages.GIVE_UP_AFTER", 0.1)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    many = ("--journal", str(tmp_path / "run.db"))
    code, out, err = batch(*many, "--base-url", url, workers="8")
    why = f"{url}: connection refused; is the server running?"
    assert (code, out) == (3, "")
    assert [line for line in err.splitlines() if why in line] == [
        f"Waiting for {why}",
        f"mellea-like: can't reach {why}",
    ]
    assert err.endswith(
        "Stopped after 0 of 5 rows. Run the same command with --resume to continue.\n"
    )
    assert batch(*many, "--resume")[0] == 0
    assert len(records(tmp_path / "out.jsonl")) == 5


def test_a_server_that_has_answered_is_waited_for(batch, monkeypatch):
    monkeypatch.setattr("mellea_like.cli.outages.GIVE_UP_AFTER", 0.0)
    monkeypatch.setattr("mellea_like.cli.outages.LOOK_EVERY", 0.01)
    monkeypatch.setattr("mellea_like.limits.circuit_breaker.FIRST_PAUSE", 0.1)

    def loading(number, body):
        return Answer.error(503, "loading") if number < 8 else echo(number, body)

    with OpenAIServer(choose=loading) as late:
        code, _, err = batch("--base-url", late.url, workers="5")
    assert (code, err.count(f"Waiting: {late.url} answered 503: loading")) == (0, 1)
    assert "5 rows: 5 passed" in err


def test_a_budget_of_money_needs_the_most_tokens_of_a_reply(batch):
    code, _, err = batch("--budget", "cost=1", "--price", "1,1")
    assert (code, "add --max-tokens N\n" in err) == (2, True)


def test_no_rows_are_no_results(batch, tmp_path):
    source = tmp_path / "empty.csv"
    source.write_text("text\n")
    code, _, err = batch(source=source)
    assert code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert f"mellea-like: {source} has no rows\n" in err
    assert "0 rows: 0 passed" in err


# Lines that can't be read


def test_a_bad_line_stops_it_before_anything_is_sent(batch, server, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n{"text": "b"}\n{"text: "c"}\n')
    code, out, err = batch()
    assert (code, out) == (3, "")
    assert err.splitlines()[0].startswith(f"mellea-like: {source}: line 3 isn't JSON: ")
    advice = "Fix the line or the prompt, or skip such lines with --on-bad-line skip"
    assert err.splitlines()[1] == advice
    assert server.requests == []
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_lines_may_be_left_out(batch, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\nnonsense\n{"other": "b"}\n{"text": "c"}\n')
    code, _, err = batch("--on-bad-line", "skip")
    assert code == 0
    found = records(tmp_path / "out.jsonl")
    assert [(one["id"], one["line"], one["output"]) for one in found] == [
        (0, 1, "re Say a"),
        (1, 4, "re Say c"),
    ]
    assert err.count("Left out: ") == 2
    assert f"Left out: {source}: line 2 isn't JSON" in err
    assert "line 3: the prompt can't be filled in: 'text' is undefined; the row's fields: o" in err
    assert "2 lines left out." in err


def test_many_bad_lines_are_not_all_told(batch, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n' + "nonsense\n" * 50)
    code, _, err = batch("--on-bad-line", "skip")
    assert code == 0
    assert err.count("Left out: ") == 11
    assert "Left out: ... and more." in err
    assert "50 lines left out." in err


def test_a_file_that_changes_meanwhile_ends_it_where_it_did(tmp_path):
    file = write_rows(tmp_path / "in.jsonl", 3)
    source = RowSource(str(file), PromptTemplate("{{ n }}"))
    source.look_through()
    assert len(source.rows()) == 3
    file.write_text('{"n": 1}\nnonsense\n')
    rows = iter(source.rows())
    assert next(rows) == {"n": 1}
    with pytest.raises(Problem, match="line 2 isn't JSON"):
        next(rows)


@pytest.mark.parametrize(("skip", "code"), [([], 3), (["--on-bad-line", "skip"], 0)])
def test_in_a_pipe_a_bad_line_ends_it_when_it_comes_or_is_left_out(skip, code):
    rows = '{"n": 1}\n{"n": 2}\nnonsense\n{"n": 4}\n'
    arguments = ("-p", "Write {{ n }}", "-o", "-", "--check", "words>=1", "--attempts=50")
    done = run("batch", "-", "--backend", "markov", *arguments, *skip, stdin=rows)
    assert done.returncode == code, done.stderr
    assert [one["line"] for one in records(done.stdout)] == ([1, 2] if code else [1, 2, 4])
    if code:
        assert "mellea-like: standard input: line 3 isn't JSON: " in done.stderr
        assert "Stopped after 2 rows." in done.stderr
    else:
        assert "Left out: standard input: line 3 isn't JSON: " in done.stderr


# Errors, budgets


def test_rows_that_end_in_errors_are_results_too(batch, server, tmp_path):
    def choose(number, body):
        return Answer.error(400, "no\x1b[31m") if "2" in asked(body) else echo(number, body)

    server._choose = choose
    code, _, err = batch()
    assert code == 1
    bad = records(tmp_path / "out.jsonl")[2]
    assert (bad["status"], bad["success"], bad["output"]) == ("errored", False, None)
    assert bad["error"]["type"] == "InvalidRequest"
    assert "answered 400" in bad["error"]["message"]
    assert err.count("line 3: ") == 1
    assert "\x1b" not in err
    assert "5 rows: 4 passed, 1 ended in an error" in err


def test_many_errors_in_a_row_stop_it_and_are_told_once(batch, server):
    server._choose = lambda number, body: Answer.error(400, "no such field")
    code, _, err = batch("--max-errors", "3")
    assert (code, len(server.requests)) == (3, 3)
    assert "mellea-like: 3 consecutive rows ended in an error, the last with: " in err
    assert err.count("\nline ") == 1
    assert "Stopped after 3 of 5 rows." in err


def test_a_wrong_key_is_tried_on_one_row(batch, server):
    server._choose = lambda number, body: Answer.error(401, "no such key")
    code, _, err = batch()
    assert code == 3
    assert err.count("answered 401") == 1
    assert "Stopped after 1 of 5 rows." in err
    sent = len(server.requests)  # The next row may have begun meanwhile.
    assert sent < 5
    assert batch("--max-errors", "0", to="again.jsonl")[0] == 3
    assert len(server.requests) == sent + 5


def test_a_spent_budget_ends_the_run_and_a_resumed_one_has_its_own(batch, server, tmp_path):
    journal = ("--journal", str(tmp_path / "run.db"))
    code, _, err = batch(*journal, "--budget", "requests=3")
    assert (code, len(server.requests)) == (1, 3)
    assert "mellea-like: the budget of this run: 3 of 3 requests were made" in err
    assert "Stopped after 3 of 5 rows. Run the same command with --resume to continue." in err
    assert len(records(tmp_path / "out.jsonl")) == 3
    code, _, err = batch(*journal, "--budget", "requests=3", "--resume")
    assert (code, len(server.requests)) == (0, 5)
    assert re.search("5 rows: 5 passed; 2 requests, 22 tokens, [^;]+; 3 came from the journal", err)
    assert len(records(tmp_path / "out.jsonl")) == 5


# Journals


def test_a_journal_is_not_taken_up_unasked(batch, tmp_path):
    journal = ("--journal", str(tmp_path / "run.db"))
    assert batch(*journal)[0] == 0
    code, _, err = batch(*journal, "--force")
    assert code == 3
    assert err == (
        f"mellea-like: the journal {tmp_path / 'run.db'} already exists: continue its run with"
        " the same command and --resume, or name another file\n"
    )


def test_a_damaged_journal_is_not_said_to_go_on(batch, tmp_path):
    path = tmp_path / "run.db"
    journal = ("--journal", str(path))
    assert batch(*journal)[0] == 0
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"started_at"', b'["started_at"'))
    _, _, err = batch(*journal, "--resume")
    assert "is damaged" in err
    assert "Stopped after 0 of 5 rows.\n" in err
    assert "goes on" not in err
    path.write_bytes(whole[:4096] + b"x" * (len(whole) - 4096))
    code, _, err = batch(*journal, "--force")
    assert (code, "damaged" in err, "--resume" in err) == (3, True, False)


def test_what_the_journal_has_is_not_asked_again_and_the_results_are_made_anew(
    batch, server, tmp_path
):
    journal, out = ("--journal", str(tmp_path / "run.db")), tmp_path / "out.jsonl"
    assert batch(*journal, "--check", "ends:3", "--attempts=1")[0] == 1
    before = records(out)
    out.write_text(out.read_text()[:-20])  # As a kill may leave it.
    (tmp_path / ".out.jsonl.part").write_text("of a resumed run that was killed\n")
    code, _, err = batch(*journal, "--check", "ends:3", "--attempts=1", "--resume")
    assert (code, len(server.requests)) == (1, 5)
    assert records(out) == before
    assert re.search("0 requests, 0 tokens, [^;]+; 5 came from the journal", err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "run.db"]


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("--prompt was", {"prompt": "Tell {{ text }}"}),
        ('--check, --require, --unique: "has at most 9 words"', ["--check", "words<=9"]),
        ("--attempts was 5 and is now 3", ["--attempts=3"]),
        ("--seed: 3 is new", ["--seed", "3"]),
        ("--schema: ", ["--schema", "SCHEMA"]),
        ("INPUT was", {}),
    ],
)
def test_another_run_is_refused_and_says_what_differs(batch, server, tmp_path, what, more):
    journal, out = ("--journal", str(tmp_path / "run.db")), tmp_path / "out.jsonl"
    assert batch(*journal)[0] == 0
    before = out.read_bytes()
    if what == "INPUT was":  # With further rows at its end, the run would go on.
        rows = (tmp_path / "in.jsonl").read_text()
        (tmp_path / "in.jsonl").write_text(rows.replace("number 0", "number nought"))
    (tmp_path / "schema.json").write_text("{}")
    arguments = more if isinstance(more, list) else []
    arguments = [str(tmp_path / "schema.json") if one == "SCHEMA" else one for one in arguments]
    code, _, err = batch(
        *journal, "--resume", *arguments, **(more if isinstance(more, dict) else {})
    )
    assert code == 3
    assert what in err.partition("run.db belongs to another run: ")[2]
    assert out.read_bytes() == before
    assert len(server.requests) == 5
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("name", "text", "replaced"),
    [
        ("out.jsonl", '{"id": 1, "text": "mine"}\n', False),
        ("out.jsonl", "", True),
        ("out.csv", "id,line,output\n1,2,mine\n", False),
        ("out.tsv", "mine\n", False),
        ("out.parquet", "mine\n", False),
    ],
)
def test_a_resumed_run_replaces_results_and_nothing_else(
    batch, server, tmp_path, name, text, replaced
):
    journal, out = ("--journal", str(tmp_path / "run.db")), tmp_path / name
    assert batch(*journal)[0] == 0
    out.write_text(text)
    code, _, err = batch(*journal, "--resume", to=name)
    assert (code, len(server.requests)) == (0 if replaced else 3, 5)
    assert (out.read_text() == text) is not replaced
    if not replaced:
        assert f"{name} already exists and doesn't hold the results of a batch: name another" in err
        assert batch(*journal, "--resume", "--force", to=name)[0] == 0
    assert batch(*journal, "--resume", to=name)[0] == 0  # They are results now.


def test_errors_are_not_final(batch, server, tmp_path):
    journal = ("--journal", str(tmp_path / "run.db"))
    server._choose = lambda number, body: (
        Answer.error(401, "no such key") if len(server.requests) > 2 else echo(number, body)
    )
    code, _, err = batch(*journal, "--max-errors", "2")
    assert code == 3
    assert "Run the same command with --resume to continue." in err
    assert [one["status"] for one in records(tmp_path / "out.jsonl")].count("errored") == 2
    server._choose = echo
    code, _, err = batch(*journal, "--resume")
    assert code == 0
    assert [one["status"] for one in records(tmp_path / "out.jsonl")] == ["passed"] * 5
    assert read_run(tmp_path / "run.db")["counts"] == {
        "passed": 5, "failed": 0, "errored": 0, "unfinished": 0
    }  # fmt: skip


def test_but_does_not_replace_results_that_are_there(batch, server, tmp_path):
    (tmp_path / "out.jsonl").write_text("mine\n")
    code, _, err = batch("--journal", str(tmp_path / "run.db"), "--resume")
    assert (code, server.requests) == (3, [])
    assert "out.jsonl already exists: name another file, or replace it with --force" in err
    assert (tmp_path / "out.jsonl").read_text() == "mine\n"


def test_the_journal_keeps_rows_prices_and_as_many_words_as_asked(batch, tmp_path):
    arguments = ("--journal", str(tmp_path / "run.db"), "--journal-text", "none", "--price", "1,2")
    assert batch(*arguments, "--check", "words<1", "--attempts=1")[0] == 1
    assert read_run(tmp_path / "run.db")["prices"] == {"m": [1.0, 2.0, "USD"]}
    first = next(iter(read_items(tmp_path / "run.db")))
    assert first["data"] == {"text": "number 0", "n": 0}
    assert first["trace"]["slices"][0]["text"] is None
