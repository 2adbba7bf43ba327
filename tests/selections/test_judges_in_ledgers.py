"""What judges and tools spend has the price of their model: in ledgers, records and reports."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import anyio
import pytest

from mellea_like import (
    BestOf,
    Budget,
    Generation,
    RejectionSamplingStrategy,
    SamplingResult,
    judge_score,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.batch import Journal, read_items, read_run, sample_many
from mellea_like.core import Usage
from mellea_like.core.prices import Price
from mellea_like.report.run_figures import figures_of
from mellea_like.selections import Tournament

pytestmark = pytest.mark.anyio

PRICES = {"small": Price(0.15, 0.60), "big": Price(2, 8)}
VERDICT = '{"passed": true, "reason": "it does"}'
SCORE = '{"reason": "it does", "score": 7}'
SPENT = Usage(1, 100, 50)


def model(name, reply):
    async def answer(_request):
        return Generation(reply, usage=SPENT, model=name, finish_reason="stop")

    return FunctionBackend(answer, model=name, can_judge=True)


def judged_by(how, budget):
    """A strategy of ``small`` that ``big`` judges, and the requirements."""
    given = {"budget": budget, "options": {"max_tokens": 50}, "judge_options": {"max_tokens": 50}}
    if how == "sentence":
        judge = model("big", VERDICT)
        return RejectionSamplingStrategy(model("small", "hi"), judge=judge, **given), ["It greets."]
    if how == "score":
        selection = BestOf(judge_score("How warm?", judge=model("big", SCORE)), n=2)
    else:
        selection = Tournament(n=2, judge=model("big", '{"better": "a"}'))
    made = RejectionSamplingStrategy(
        model("small", "hi"), loop_budget=2, selection=selection, **given
    )
    return made, []


def figures_in(path):
    return figures_of(read_run(path), read_items(path))


def forget_the_judge(path):
    """Make a journal what it was before it had the models of judges."""
    with closing(sqlite3.connect(path)) as db, db:
        for row, body in db.execute("SELECT rowid, body FROM slices").fetchall():
            old = json.loads(body)
            del old["check_usage"]
            db.execute("UPDATE slices SET body = ? WHERE rowid = ?", (json.dumps(old), row))


@pytest.mark.parametrize("how", ["sentence", "score", "comparison"])
async def test_a_ledger_is_what_the_budget_charged_and_has_a_row_for_the_judge(how):
    budget = Budget(requests=99, prices=PRICES)
    strategy, requirements = judged_by(how, budget)
    result = await strategy.sample("Greet.", requirements)
    for known in (result, SamplingResult.from_dict(json.loads(json.dumps(result.to_dict())))):
        ledger = known.ledger(PRICES)
        assert ledger.total.cost == pytest.approx(budget.statistics().spent.money)
        assert (ledger.total.unpriced, "≥" in str(ledger)) == (0, False)
        judged = ledger.by_model["big"]
        assert judged.cost == pytest.approx(judged.requests * (100 * 2 + 50 * 8) / 1e6)
        assert sum(part.requests for part in ledger.by_model.values()) == result.usage.requests


@pytest.mark.parametrize("how", ["sentence", "score"])
async def test_a_judge_without_a_price_makes_the_cost_a_lower_bound(how):
    strategy, requirements = judged_by(how, None)
    result = await strategy.sample("Greet.", requirements)
    drawn = len(result.slices)
    ledger = result.ledger({"small": PRICES["small"]})
    assert ledger.total.cost == pytest.approx(drawn * (100 * 0.15 + 50 * 0.60) / 1e6)
    assert ledger.total.unpriced == drawn
    assert str(ledger).splitlines()[-1].split()[-1].startswith("≥")


@pytest.mark.parametrize("how", ["sentence", "score"])
async def test_a_report_charges_judges_their_price_and_says_where_a_journal_lacks_the_model(
    tmp_path, how
):
    path, budget = tmp_path / "run.db", Budget(requests=99, prices=PRICES)
    strategy, requirements = judged_by(how, budget)
    kept = Journal(path, prices=PRICES)
    given = {"requirements": requirements, "journal": kept, "concurrency": 1}
    async with sample_many(strategy, ["Greet."] * 2, **given) as run:
        usages = [item.usage async for item in run]
    figures = await anyio.to_thread.run_sync(figures_in, path)
    assert figures.money == (pytest.approx(budget.statistics().spent.money), True)
    assert figures.models[None, "big"].draws == 0
    assert figures.models[None, "big"].money.known > figures.models[None, "small"].money.known

    await anyio.to_thread.run_sync(forget_the_judge, path)
    figures = await anyio.to_thread.run_sync(figures_in, path)
    assert figures.usage == sum(usages, Usage())
    tokens = figures.usage.requests * (100 * 0.15 + 50 * 0.60)
    assert figures.money == (pytest.approx(tokens / 1e6), False)


async def test_a_record_without_the_judges_model_has_a_lower_bound_where_a_judge_may_have_spent():
    strategy, requirements = judged_by("sentence", None)
    result = await strategy.sample("Greet.", requirements)
    old = result.to_dict()
    del old["slices"][0]["check_usage"]
    read = SamplingResult.from_dict(old)
    total = read.ledger(PRICES).total
    assert total.cost == pytest.approx(2 * (100 * 0.15 + 50 * 0.60) / 1e6)
    assert total.unpriced == 1
    assert SamplingResult.from_dict(read.to_dict()).slices[0].check_usage is None
