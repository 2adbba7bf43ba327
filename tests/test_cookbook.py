"""The programs in examples/cookbook: they print what their pages say, and what they say is true."""

from __future__ import annotations

import importlib
import json
import re
import signal
import sqlite3
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace

import anyio
import pytest
from command_line import environment, run, start
from docs_pages import blocks_of
from http_server import Answer, OpenAIServer

from mellea_like import Budget, Price

ROOT = Path(__file__).resolve().parent.parent
COOKBOOK = ROOT / "examples" / "cookbook"
PAGES = ROOT / "docs" / "cookbook"
NAMES = sorted(path.stem for path in COOKBOOK.glob("*.py") if path.stem != "stand_in")
OFFLINE = [name for name in NAMES if name != "ray_run"]  # That one is in tests/ray.
ERRED = "It ended early: "


@pytest.fixture
def program(monkeypatch, tmp_path, request):
    """Import a program anew, in a working directory of its own."""
    monkeypatch.syspath_prepend(str(COOKBOOK))
    monkeypatch.chdir(tmp_path)

    def load(name):
        for module in (name, "stand_in"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        module = importlib.import_module(name)
        if hasattr(module, "FOLDER"):
            request.addfinalizer(module.FOLDER.cleanup)
        return module

    return load


def backend(module, name):
    return sys.modules["stand_in"].backend_of(getattr(module, name))


def always(name, reply):
    """A stand-in that knows one reply only."""

    def stand_in(request, chance):
        return reply

    stand_in.__name__ = name
    return sys.modules["stand_in"].backend_of(stand_in)


# --- as a stranger runs them


@pytest.mark.parametrize("name", OFFLINE)
def test_a_program_prints_what_its_page_shows(name, tmp_path):
    page = PAGES / f"{name.replace('_', '-')}.md"
    (shown,) = (block.text for block in blocks_of(page) if block.language == "text")
    done = run(script=str(COOKBOOK / f"{name}.py"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, shown), done.stderr
    if name == "rewards":  # No model is asked, and the checker fails on some draws.
        assert "no reward for 9 of 1600 completions" in done.stderr
    else:
        assert done.stderr == "A stand-in plays the model; --model NAME takes a real one.\n"


def test_every_program_has_a_page_and_is_short_enough_to_read():
    for name in NAMES:
        text = (PAGES / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8")
        assert f"literalinclude}} ../../examples/cookbook/{name}.py" in text
        assert len((COOKBOOK / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 135


def test_a_wrong_call_ends_in_a_sentence(tmp_path):
    script = str(COOKBOOK / "support_reply.py")
    for arguments, code, says in (
        (["--help"], 0, "streamed|shown word by word"),
        (["--modle", "x"], 2, "unrecognized arguments: --modle x"),
        (["--base-url", "here"], 1, f"{ERRED}base_url must be a URL"),
    ):
        done = run(*arguments, script=script, cwd=tmp_path)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert re.search(says, said), said
        assert "Traceback" not in said


def test_a_key_that_is_refused_ends_in_a_sentence(tmp_path):
    with OpenAIServer(Answer.error(401, "this key is unknown")) as server:
        arguments = ("--base-url", server.url, "--model", "x")
        done = run(*arguments, script=str(COOKBOOK / "support_reply.py"), cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(f"^{ERRED}.*this key is unknown", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_closes_the_requests(tmp_path):
    with OpenAIServer(Answer("Order 1042: shipped", hang_after=1)) as server:
        process = start(
            "--base-url", server.url, script=str(COOKBOOK / "judge_panel.py"), cwd=tmp_path,
            env=environment(),
        )  # fmt: skip
        anyio.run(server.wait_until, lambda: server.started >= 3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        anyio.run(server.wait_until, lambda: server.disconnected == server.started)
    assert (process.returncode, said.decode()) == (130, "Interrupted; no request is left open.\n")


# --- with the real SDK, and a server that gives the stand-in's replies


@pytest.mark.parametrize(
    ("name", "role", "says"),
    [
        ("invoices", "careless_clerk", "  A77 of City Print Ltd, 2024-09-30: 89.00\n"),
        ("support_reply", "helpful_agent", "Order 1043: waiting for payment.\n"),
        ("escalation", "big_model", " dollars are spent\n"),
    ],
)
def test_it_runs_with_a_server(name, role, says, program, tmp_path):
    module = program(name)

    def choose(number, body):
        messages = [SimpleNamespace(role=m["role"], text=m["content"]) for m in body["messages"]]
        return Answer(getattr(module, role)(SimpleNamespace(messages=messages), Random(number)))

    with OpenAIServer(choose=choose) as server:
        arguments = ("--base-url", server.url, "--model", "test")
        done = run(*arguments, script=str(COOKBOOK / f"{name}.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
    assert server.started >= 3


# --- whether it is true, and what a wrong model gets through


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_invoices_are_those_of_the_letters(program):
    module = program("invoices")
    items = await module.read(backend(module, "careless_clerk"), module.LETTERS)
    totals = [(i.result.unwrap().number, i.result.unwrap().total) for i in items]
    wanted = (("2024/117", "156.00"), ("HB-0933", "86.90"), ("A77", "89.00"))
    assert totals == [(number, Decimal(total)) for number, total in wanted]
    assert sum(len(item.result.slices) for item in items) > 3  # Some had to be repaired.

    consistent = {"number": "A77", "seller": "City Print Ltd", "issued": "2024-09-30"}
    consistent |= {"lines": module.lines(("a", 1, "7.00")), "vat_percent": 0, "total": "7.00"}
    found = consistent | {"lines": module.lines(("flyer", 500, "0.12")), "total": "89.00"}
    for wrong in (consistent, found, {"number": "A77"}):
        (item,) = await module.read(always("liar", json.dumps(wrong)), module.LETTERS[2:])
        assert item.status == "failed"


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_queries_answer_what_was_asked(program):
    module = program("sql_answers")
    with closing(sqlite3.connect(module.DATABASE)) as database:
        database.executescript(module.SHOP)
        (names, products, bought) = (
            database.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("customer", "product", "purchase")
        )
    price = {key: cost for key, _, cost in products}
    paid = dict.fromkeys(dict(names).values(), 0.0)
    for who, what, _, count, discount in bought:
        paid[dict(names)[who]] += price[what] * count * (1 - (discount or 0))
    most = max(paid, key=paid.get)
    undiscounted = sum(day.startswith("2024") and not off for *_, day, _, off in bought)
    unsold = {name for key, name, _ in products} - {products[b[1] - 1][1] for b in bought}

    items = await module.answer(backend(module, "hasty_analyst"), module.QUESTIONS)
    first, second, third = (module.rows(item.result.best) for item in items)
    assert first == ((most, pytest.approx(paid[most])),)
    assert (second, third) == (((undiscounted,),), ((*unsold,),))

    for wrong in ("DELETE FROM purchase", "SELECT nmae FROM customer", "SELECT FROM"):
        (item,) = await module.answer(always("liar", wrong), module.QUESTIONS[:1])
        assert item.status == "failed"
    assert len(module.query("SELECT * FROM purchase")) == len(bought)


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_chosen_programs_pass_and_rejected_ones_fail(program, tmp_path):
    module = program("code_to_dpo")
    count = await module.write_pairs(backend(module, "hopeful_coder"), tmp_path / "run.db")
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert count == len(pairs) == 3

    def passes(pair, kind):
        asked = pair["prompt"][0]["content"]
        task = next(task for task in module.TASKS if f"function {task}" in asked)
        code = pair[kind][0]["content"].split("```")[1].removeprefix("python")
        try:
            exec(compile(code + module.TASKS[task], "<pair>", "exec"), {})
        except (AssertionError, SyntaxError):
            return False
        return True

    assert [passes(pair, "chosen") for pair in pairs] == [True] * 3
    assert [passes(pair, "rejected") for pair in pairs] == [False] * 3

    wrong = "def median(numbers):\n    return 2"
    assert await module.write_pairs(always("liar", wrong), tmp_path / "wrong.db") == 0


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_two_judges_of_three_decide(program):
    module = program("judge_panel")
    judges = [backend(module, f"judge_{number}") for number in ("one", "two", "three")]
    items = await module.write(backend(module, "eager_writer"), judges)
    texts = [item.result.unwrap() for item in items]
    assert not [text for text in texts if any(claim in text for claim in module.INVENTED)]
    draws = sum(len(item.result.slices) for item in items)
    assert sum(item.usage.requests for item in items) == 4 * draws > 12

    yes = always("yes", '{"passed": true, "reason": ""}')
    no = always("no", '{"passed": false, "reason": ""}')
    for panel, status in (([yes, yes, no], "passed"), ([no, yes, no], "failed")):
        items = await module.write(always("writer", "It flies."), panel)
        assert {item.status for item in items} == {status}


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_a_customer_never_sees_a_wrong_status(program, capsys):
    module = program("support_reply")
    for number, status in module.ORDERS.items():
        result = await module.reply_to(backend(module, "helpful_agent"), number)
        shown = capsys.readouterr().out
        assert shown == f"{result.unwrap()}\n"
        assert shown.startswith(f"Order {number}: {status}.\n")

    result = await module.reply_to(always("liar", "Order 1042: delivered."), 1042)
    assert (capsys.readouterr().out, result.success) == ("\n", False)


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_only_the_verified_order_is_placed(program):
    module = program("agent")
    module.open_shops()
    wrong = module.calling("order", shop="Mill", loaves=20)
    refused = await module.shop_for(always("liar", wrong), module.TASK)
    assert not refused.success
    result = await module.shop_for(backend(module, "brisk_agent"), module.TASK)
    assert module.query("SELECT * FROM ordered") == []
    await result.run_tools()
    assert module.query("SELECT * FROM ordered") == [("Corner", 20)]


@pytest.mark.allow_blocking
@pytest.mark.anyio
async def test_an_escalation_stays_within_its_budget_and_its_expressions_hold(program):
    module = program("escalation")
    small, big = backend(module, "small_model"), backend(module, "big_model")
    prices = {"small_model": Price(0.20, 0.80), "big_model": Price(3.00, 12.00)}
    budget = Budget(money=module.BUDGET_USD, prices=prices)
    solved = await module.solve(small, big, budget)
    others = {"date": ("2031-10-31", "2031-10-32"), "price": ("999.99 €", "1,23 €")}
    others |= {"colour": ("#00FF7f", "#00FF7"), "version": ("0.0.10", "0.0.00")}
    for what, item in solved.items():
        yes, no = next(pair for word, pair in others.items() if word in what)
        assert re.fullmatch(item.result.unwrap(), yes)
        assert not re.fullmatch(item.result.unwrap(), no)
    spent = sum(item.result.ledger(prices).total.cost for item in solved.values())
    assert 0 < spent <= budget.statistics().spent.money <= module.BUDGET_USD
    assert len(solved) < len(module.TASKS)  # It ran out.
    assert {draw.model for item in solved.values() for draw in item.result.slices} == set(prices)

    for wrong in (r".*", r"(", r"\d+"):
        roomy = Budget(requests=100, prices={"liar": Price(0, 0)})
        liar = always("liar", wrong)
        failed = await module.solve(liar, liar, roomy)
        assert {item.status for item in failed.values()} == {"failed"}
