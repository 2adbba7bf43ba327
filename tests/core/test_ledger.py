"""The cost of each iteration of a call, and the part of it that was wasted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from engine_kit import a_slice

from mellea_like import (
    Budget,
    Generation,
    Outcome,
    Price,
    RejectionSamplingStrategy,
    Requirement,
    SamplingResult,
)
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import StopReason
from mellea_like.core.generation import Usage
from mellea_like.core.ledger import Ledger, LedgerTotal, ledger
from mellea_like.errors import BackendUnavailable
from mellea_like.limits import FallbackBackend, Retry
from mellea_like.report.views import TraceView

PRICES = {"m": Price(1, 2), "dear": Price(100, 100)}
DOWN = BackendUnavailable("503", status=503)
EUROS = {"m": Price(1, 2, "EUR")}


def cut(
    outcome=Outcome.FAILED,
    usage=Usage(1, 10, 20),
    *,
    iteration=1,
    depth=2,
    model="m",
    stage=None,
    asked=None,
    **reply,
):
    where = {"depth": depth, "stage": stage, "asked": asked}
    given = {"usage": usage, "model": model, "finish_reason": "stop", **reply}
    generation = None if model == "none came" else Generation("text", **given)
    return a_slice(iteration, outcome, subsample=1, generation=generation, usage=usage, **where)


def no_reply(outcome=Outcome.CANCELLED, usage=Usage(1, 10, 5, 1), **fields):
    return cut(outcome, usage, model="none came", **fields)


def rejected(output: int, **fields):
    return cut(usage=Usage(1, 10, output, 1), finish_reason="rejected", **fields)


# --- rows -------------------------------------------------------------------------------------


def test_all_but_the_winner_is_wasted_other_passing_slices_too():
    slices = [no_reply(), cut(Outcome.PASSED), cut(), cut(Outcome.PASSED)]
    assert [row.wasted_tokens for row in ledger(slices, 3).rows] == [15, 30, 30, 0]


# --- what early rejection saved ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "saved"),
    [
        ([], None),
        ([no_reply()], None),
        ([rejected(50)], None),
        ([cut(usage=Usage(1, 1, 100))], 95),
        ([cut(usage=Usage(1, 1, 100)), cut(usage=Usage(1, 1, 51)), no_reply()], 71),
        ([cut(usage=Usage(1, 1, 3))], 0),
        ([cut(usage=Usage(1, 1, 0))], 0),
        ([cut(usage=Usage(1, 0, 0, 1))], None),
        ([cut(usage=Usage(1, 0, 40, 1))], 35),
        ([cut(usage=Usage(1, 0, 40), finish_reason="length")], 35),
    ],
)
def test_saved_is_the_mean_length_of_complete_replies_less_what_had_arrived(others, saved):
    rows = ledger([rejected(5), *others], None).rows
    assert rows[0].saved_tokens == saved


# --- money ------------------------------------------------------------------------------------


def test_a_slice_without_a_reply_is_priced_as_the_one_model_of_all_others():
    assert ledger([no_reply(), cut()], None, PRICES).rows[0].cost == pytest.approx(20e-6)
    assert ledger([no_reply(), cut(), cut(model="dear")], None, PRICES).rows[0].cost is None
    assert ledger([no_reply()], None, PRICES).rows[0].cost is None


@pytest.mark.parametrize("model", ["other", None])
def test_where_the_price_is_not_known_neither_is_the_cost(model):
    made = ledger([cut(), cut(model=model)], None, PRICES)
    assert made.rows[1].cost is None
    assert made.total.cost is None


def test_a_reply_whose_model_has_no_price_costs_that_of_the_model_that_was_asked():
    made = ledger([cut(model="gpt-9", asked="m"), cut(model="dear", asked="m")], None, PRICES)
    assert [row.cost for row in made.rows] == [pytest.approx(50e-6), pytest.approx(3000e-6)]
    assert list(made.by_model) == ["gpt-9", "dear"]


# --- sums and the table -----------------------------------------------------------------------


def test_cached_and_reasoning_tokens_have_columns_and_their_price_where_there_are_any():
    slices = [cut(usage=Usage(1, 10, 20, 0, 8, 6)), cut(Outcome.PASSED, Usage(cache_hits=2))]
    made = ledger(slices, 1, {"m": Price(1, 2, cached_input=0.25)})
    assert made.total[-4:-1] == (8, 6, 2)
    assert made.total.cost == pytest.approx((2 * 1 + 8 * 0.25 + 20 * 2) / 1e6)
    heads, first, *_ = str(made).splitlines()
    assert heads.split()[-7:] == ["cached", "input", "reasoning", "cache", "hits", "cost", "USD"]
    assert first.split()[-4:-1] == ["8", "6", "0"]


def test_an_empty_ledger_sums_to_nothing():
    assert Ledger(()).total == LedgerTotal(0, 0, 0, 0, 0, 0, 0.0)
    assert str(Ledger(())).split()[:2] == ["draw", "outcome"]


PRINTED = """\
                   draw  outcome  requests  input  output  wasted  unknown  saved  cost EUR
 attempt 2 of 3, lane 2  failed          1     10      20      30        0      0  0.000050
attempt 3 of 3, lane 2*  passed          1     10      20       0        0      0  0.000050
                  total                  2     20      40      30        0      0  0.000100\
"""


def test_it_prints_as_an_aligned_table_with_the_winner_marked():
    slices = [cut(Outcome.FAILED, iteration=5, depth=1), cut(Outcome.PASSED, iteration=6, depth=2)]
    assert str(ledger(slices, 1, EUROS)) == PRINTED


def test_without_prices_the_table_has_no_costs_and_what_is_not_known_is_a_question_mark():
    lines = str(ledger([rejected(5, iteration=1)], None)).splitlines()
    assert lines[0].split()[-1] == "saved"
    assert [line.split()[-1] for line in lines[1:]] == ["?", "?"]


# --- from a result ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "winner", "cost"), [(Outcome.PASSED, 1, 15), (Outcome.FAILED, None, 45)]
)
def test_a_result_has_a_ledger_whose_winner_is_its_best_slice_if_that_passed(outcome, winner, cost):
    slices = (no_reply(), cut(outcome))
    started = datetime(2026, 1, 1, tzinfo=UTC)
    result = SamplingResult(slices, 1, StopReason.EXHAUSTED, "id7", started, 1.5)
    made = result.ledger(PRICES)
    assert made.winner == winner
    assert made.total.wasted_tokens == cost
    assert made.total.cost == pytest.approx(70e-6)
    assert result.ledger().total.cost is None
    with pytest.raises(ValueError, match="all prices must be in the same currency, not EUR, USD"):
        result.ledger({"m": Price(1, 2), "n": Price(1, 2, "EUR")})
    with pytest.raises(TypeError, match="prices must map model names to Price"):
        result.ledger({"m": 3})


def test_a_cost_that_may_be_more_says_so_in_print():
    text = str(ledger([cut(), no_reply()], 0, PRICES))
    first, second, total = text.splitlines()[1:]
    assert "≥" not in first
    assert "≥0.000020" in second
    assert "≥0.000070" in total


# --- which model ------------------------------------------------------------------------------


def test_the_model_of_a_slice_without_a_reply_is_that_of_its_stage_or_the_one_asked():
    slices = [
        cut(model="small-2026-01-31", stage=0, asked="small"),
        no_reply(stage=0, asked="small"),
        cut(model="big", stage=1),
        cut(model="huge", stage=1),
        no_reply(stage=1, asked="big"),
        cut(model="small-2026-01-31", stage=2),
        no_reply(stage=3),
    ]
    prices = {"small": Price(1, 1), "big": Price(10, 10), "huge": Price(20, 20)}
    made = ledger(slices, None, prices)
    small = "small-2026-01-31"
    models = [small, small, "big", "huge", "big", small, None]
    assert [row.model for row in made.rows] == models
    assert made.by_model[small].requests == 3
    assert made.by_model["big"].cost == pytest.approx(450e-6)
    assert made.by_model[None].cost is None
    assert list(made.by_stage) == [(0, small), (1, "big"), (1, "huge"), (2, small), (3, None)]
    assert made.by_stage[1, "big"].requests == 2
    names = [line.strip().partition("  ")[0] for line in str(made).splitlines()[8:-1]]
    assert names == [f"{small}, stage 0", "big", "huge", f"{small}, stage 2", "?"]


def test_an_older_record_that_names_a_fallbacks_first_model_is_not_misread():
    failed = (("m", Usage(1, 4, 0, 1)),)
    fell_back = replace(cut(model="dear", asked="m"), check_usage=failed)
    made = ledger([fell_back, no_reply(asked="m")], None, PRICES)
    assert [row.model for row in made.rows] == ["dear", "m"]
    assert made.rows[1].cost == pytest.approx(20e-6)


@pytest.mark.anyio
@pytest.mark.usefixtures("virtual_clock")
@pytest.mark.parametrize(
    ("replies", "delay", "models"),
    [([Reply("no", 1), DOWN], 5, ["m", "dear"]), ([DOWN, Reply("late", 5)], 1, ["dear", "m"])],
)
async def test_a_draw_without_a_reply_has_the_price_of_the_backend_that_was_asked_last(
    replies, delay, models
):
    first = ScriptedBackend(replies, model="m")
    other = ScriptedBackend([Reply("no", delay)], model="dear")
    strategy = RejectionSamplingStrategy(
        FallbackBackend(first, other, retry=Retry(1)),
        loop_budget=1,
        concurrency_budget=2,
        timeout=3,
        budget=(budget := Budget(money=1, prices=PRICES, assume_output_tokens=10)),
    )
    never = Requirement("never", lambda _: False, inline=True)
    result = await strategy.sample("do", [never])
    made = result.ledger(PRICES)
    assert [row.model for row in made.rows] == models
    assert TraceView(result.to_dict()).models == models  # As reports say.
    assert made.total.cost == pytest.approx(budget.statistics().spent.money)
