"""Budgets, retries, schedules, early rejection and giving up, from the options to the exit code."""

from __future__ import annotations

import json
import time

import pytest
from http_server import Answer

from mellea_like.cli.backends import Backends
from mellea_like.cli.draw_options import DrawOptions, parse_budget
from mellea_like.cli.errors import in_options
from mellea_like.cli.exit_codes import Problem
from mellea_like.limits import Price
from mellea_like.requirements.expressions import CHECK_FORMS, parse_check

HARD = ["--check", "words<1"]


# From options to objects


async def opened(**options):
    """Make the strategy and the budget that options describe; their backends are already closed."""
    found = Backends(DrawOptions(**options), default="markov")
    async with found.open():
        return found.make_strategy(), found.make_budget("this call")


@pytest.mark.parametrize(
    ("retries", "attempts", "refusals"), [(1, 2, 10), (5, 6, 10), (20, 21, 21)]
)
@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_retries_are_counted_beside_the_first_try(retries, attempts, refusals):
    strategy, _ = await opened(retries=retries)
    retry = strategy.settings.retry
    assert (retry.attempts, retry.rate_limit_attempts) == (attempts, refusals)


@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_one_limiter_is_around_the_backend_and_the_judge():
    strategy, _ = await opened(
        requests_per_minute=60,
        tokens_per_minute=1000,
        requirements=["is kind"],
        judge_base_url="http://127.0.0.1:9/v1",
    )
    (limiter,) = strategy.settings.backend.limits
    assert strategy.settings.judge.limits == (limiter,)
    assert (limiter.requests_per_minute, limiter.tokens_per_minute) == (60, 1000)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ([], {}),
        (["requests=20"], {"requests": 20}),
        (["cost=0.5", "requests=1"], {"money": 0.5, "requests": 1}),
        ([" input-tokens = 7 "], {"input_tokens": 7}),
        (["output-tokens=9"], {"output_tokens": 9}),
    ],
)
def test_a_budget_is_a_kind_and_an_amount(given, arguments):
    assert parse_budget(given) == arguments


@pytest.mark.parametrize(
    "given",
    [
        *(["request=5"], ["request"], ["tokens=5"], ["seconds=5"], ["requests"], ["cost="]),
        *(["requests=0"], ["requests=1.5"], ["output-tokens=many"], ["cost=0"], ["cost=inf"]),
        *(["cost=nan"], ["requests=1", "requests=2"]),
    ],
)
def test_what_is_no_budget_is_a_sentence_that_says_what_to_write(given):
    with pytest.raises(Problem, match=r"^--budget .*(: write a name and|: use reque| must be )"):
        parse_budget(given)


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("1,2", Price(1, 2)),
        ("1,2, eur", Price(1, 2, "EUR")),
        ("1,2,0.5", Price(1, 2, cached_input=0.5)),
        ("1,2,0,EUR", Price(1, 2, "EUR", cached_input=0)),
    ],
)
def test_a_price_may_have_one_of_cached_input_and_a_currency(text, price):
    assert Backends(DrawOptions(price=text), default="markov").price == price


@pytest.mark.parametrize(
    "text", ["", "1", "1,2,3,4", "1,2,-3", "-1,2", "a,b", "nan,1", "1,inf", "1,1e300", "1,2,$"]
)
def test_what_is_no_price_is_a_sentence_that_says_what_to_write(text):
    with pytest.raises(Problem, match=r"^--price must be two amounts .* 0.15,0.60,EUR, not '"):
        Backends(DrawOptions(price=text), default="markov")


MONEY = {"budget": ["cost=2"], "price": "1,2", "max_tokens": 10}


@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_a_budget_of_money_prices_the_generator_and_the_judge():
    _, budget = await opened(
        **MONEY, requirements=["is kind"], judge_base_url="http://127.0.0.1:9/v1", judge_model="two"
    )
    assert budget.limits.money == 2
    assert budget.prices == {"markov-trigram": Price(1, 2), "two": Price(1, 2)}
    assert budget.assume_output_tokens == 512


@pytest.mark.anyio
@pytest.mark.allow_blocking
async def test_a_budget_of_money_needs_to_know_the_model():
    server = {"base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(Problem, match=r"--budget cost needs to know the model .* add --model NAME"):
        await opened(**MONEY, **server)
    assert (await opened(budget=["requests=2"], price="1,2", **server))[1] is not None


@pytest.mark.parametrize("kind", ["input_tokens", "output_tokens", "money"])
def test_a_budgets_error_is_told_in_options(kind):
    said = in_options(
        f"budget 'this call': x: it needs a higher {kind} limit, or a lower max_tokens"
    )
    option = {"money": "cost"}.get(kind, kind.replace("_", "-"))
    assert said == (
        f"the budget of this call: x: it needs a higher --budget {option}, or a lower --max-tokens"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schedule", "fast"], "--schedule 'fast' is unknown\nAllowed: eager"),
        (["--schedule", "staggered"], "must have the form staggered:SECONDS, as in staggered:0.5"),
        (["--budget", "output-tokens=9"], "needs to know how long one reply may get: add --max-to"),
        (["--budget", "cost=1"], "--budget cost needs the price of tokens: add --price IN,OUT"),
        (["--rpm", "0"], "--rpm must be a number above 0, not 0"),
        (["--tpm", "nan"], "--tpm must be a finite number (leave it out for no limit), not nan"),
        (["--retries", "-1"], "--retries must be at least 0, not -1"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, not 0"),
    ],
)
def test_bad_usage_exits_with_2_and_says_what_to_write(command, arguments, sentence):
    code, out, err = command("sample", "Write.", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mellea-like: ")
    assert sentence in err


# Early rejection


EARLY = {"words<=20", "chars<=100", "lines==3", "excludes:TEXT", "starts:TEXT", "json"}
EARLY |= {"words==3", "words<3"}


@pytest.mark.parametrize("expression", sorted({*EARLY, "sentences<3", *CHECK_FORMS}))
def test_a_check_decides_early_where_it_can_and_is_the_same_check(expression):
    early = parse_check(expression, early=True)
    assert (early.stream is not None) == (expression in EARLY), expression
    assert early.name == parse_check(expression).name
    assert parse_check(expression).stream is None


def test_a_reply_is_rejected_while_it_arrives(sample):
    answers = Answer("As an AI I can not do that now", hang_after=4), Answer("Leaves fall")
    given = ("--early", "--json", "--check", "words<=2", "--lanes=1")
    code, out, err, server = sample(*given, answers=answers)
    record = json.loads(out)
    assert (code, record["text"]) == (0, "Leaves fall")
    assert server.disconnected == 1
    assert [piece["finish_reason"] for piece in record["slices"]] == ["rejected", "stop"]
    assert "attempt 1 of 5: failed early after" in err
    assert record["ledger"]["rows"][0]["saved_tokens"] == 1
    assert record["ledger"]["total"]["saved_tokens"] == 1


def test_a_spent_budget_ends_the_call_with_what_there_is(command):
    code, out, err = command(
        "sample", "Write.", *HARD, "--budget", "requests=3", "-q", "--backend=markov"
    )
    assert code == 1
    assert out.strip()
    assert err.startswith(
        "Nothing passed: the budget of this call: 3 of 3 requests were made, and this would be one"
        " more; "
    )
    assert "3 requests" in err


def test_a_reply_that_was_cut_off_has_failed_unless_it_is_accepted(command):
    given = ("sample", "Write.", "--backend=markov", "--max-tokens=2", "--attempts=2", "--lanes=3")
    code, out, err = command(*given, "--json")
    record = json.loads(out)
    assert (code, len(record["slices"])) == (1, 6)
    assert "the reply was cut off after 2 tokens: raise max_tokens" in err + out
    code, out, _ = command(*given, "--accept-incomplete", "--json")
    record = json.loads(out)
    assert (code, len(record["slices"]), record["usage"]["requests"]) == (0, 1, 1)


def test_json_says_which_budget_is_spent(command):
    code, out, _ = command(
        *("sample", "Write.", *HARD, "--budget", "output-tokens=60", "--max-tokens", "50", "--json")
    )
    record = json.loads(out)
    assert (code, record["stop_reason"]) == (1, "budget")
    assert record["stop_detail"].endswith(
        "a higher --budget output-tokens, or a lower --max-tokens"
    )
    assert record["usage"]["output_tokens"] <= 60


def test_progress_and_the_last_line_name_the_option_that_set_the_spent_budget(command):
    limits = ("--budget", "cost=0.0001", "--price", "1,2", "--max-tokens", "30")
    _, _, err = command("sample", "Write.", *HARD, *limits, "--backend=markov")
    lines = [line for line in err.splitlines() if "0.0001 money spent" in line]
    assert len(lines) > 1
    assert all("it needs a higher --budget cost, or a lower --max-tokens" in line for line in lines)


def test_a_budget_spent_on_errors_names_the_first(sample):
    given = ("-q", "--budget", "requests=1", "--lanes=1", "--retries", "0")
    code, _, err, _ = sample(*given, answers=[Answer.error(503, "busy")])
    assert code == 1
    assert "1 of 1 requests were made" in err
    assert "; the first error was: http://127.0.0.1" in err


def test_the_ledger_is_a_table_on_standard_error(command):
    code, out, err = command("sample", "Write.", "-q", "--backend=markov", "--ledger", "--lanes=1")
    assert code == 0
    assert "wasted" not in out
    heads, row, total = err.splitlines()
    assert heads.split() == ["draw", "outcome", *_COLUMNS]
    assert row.split()[:3] == ["attempt", "1*", "passed"]
    assert total.split()[0] == "total"


_COLUMNS = ["requests", "input", "output", "wasted", "unknown", "saved"]


def test_a_cost_that_is_only_known_in_part_is_a_lower_bound_in_the_last_line_too(sample):
    answers = [Answer("fine", usage=None)]
    _, _, err, _ = sample("--lanes=1", "--price", "1000,2000", answers=answers)
    assert ", cost ≥ $" in err.splitlines()[-1]


# Retries and refusals


def test_a_passing_fault_is_tried_again(sample):
    answers = Answer.error(503, "busy"), Answer("fine")
    code, out, _, server = sample("--lanes=1", answers=answers)
    assert (code, out) == (0, "fine\n")
    assert len(server.requests) == 2


@pytest.mark.parametrize("retries", ["0", "2"])
def test_a_refusal_says_when_to_come_back(sample, retries):
    given = ("--json", "-q", "--retries", retries, "--lanes=1", "--attempts=1")
    answers = [Answer.error(429, "slow down", retry_after="300")]
    code, out, err, _ = sample(*given, answers=answers)
    assert code == 3
    assert "answered 429: slow down; come back in 300 s" in err
    assert "max_retry_after" not in err
    assert len(err.splitlines()) == 1
    assert json.loads(out)["retry_after"] == 300


def test_requests_keep_to_a_rate(sample):
    given = (*HARD, "-q", "--attempts=3", "--lanes=1", "--rpm", "120")
    began = time.monotonic()
    code, _, _, server = sample(*given, answers=[Answer("long enough")])
    assert code == 1
    assert len(server.requests) == 3
    assert time.monotonic() - began >= 0.4  # two at once, and half a second for each other one


# Schedules and giving up


def test_it_gives_up_what_is_hopeless(command):
    # With more lanes, threads decide which draw ends first, and so how many it takes.
    arguments = ("--give-up", "--attempts=50", "--lanes=1", "--json", "-q")
    code, out, _ = command("sample", "Write.", *HARD, *arguments)
    record = json.loads(out)
    assert (code, record["stop_reason"]) == (1, "hopeless")
    assert record["stop_detail"].startswith("requirement 'words<1' was met in 0 of 6 replies")
    assert len(record["slices"]) < 15


@pytest.mark.parametrize(
    "schedule", ["eager", "pooled", "staggered:0.01", "hedged:0.5", "restart:0.5"]
)
def test_every_schedule_uses_all_turns_and_no_more(command, schedule):
    code, out, err = command(
        *("sample", "Write.", *HARD, "--schedule", schedule, "--attempts=4", "--lanes=3"), "--json"
    )
    record = json.loads(out)
    assert (code, record["stop_reason"]) == (1, "exhausted")
    assert sorted(piece["iteration"] for piece in record["slices"]) == list(range(1, 13))
    assert sum(line.startswith("attempt ") for line in err.splitlines()) == 12
