"""How many draws the next run needs, from results and from journals."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import cycle
from math import isclose
from statistics import fmean

import anyio.to_thread
import pytest
from report_kit import trace_of

from mellea_like import (
    BestOf,
    Collect,
    Escalate,
    FunctionBackend,
    Instruction,
    Price,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    SamplingResult,
    Stage,
    Vote,
)
from mellea_like.backends import SimulatedBackend
from mellea_like.batch import Journal, sample_many
from mellea_like.errors import JournalError
from mellea_like.estimate import PassRateFit, coverage_curve, plan
from mellea_like.estimate.planner import NO_ANSWER, Simulation
from mellea_like.sampling.schedules.expressions import parse_schedule
from mellea_like.testing import run_virtual


def simulated(alpha, beta, hopeless, items, stop, seed=5):
    """What items show that are drawn for until one passes, at most so often."""
    chance = random.Random(seed)
    for _ in range(items):
        rate = 0.0 if chance.random() < hopeless else chance.betavariate(alpha, beta)
        first = next((n for n in range(1, stop + 1) if chance.random() < rate), None)
        yield first or stop, int(first is not None), first


# --- the curve --------------------------------------------------------------------------------


def test_without_censoring_the_measured_part_is_the_share_of_items_with_wilsons_interval():
    curve = coverage_curve([(1, 1, 1)] * 3 + [(2, 1, 2)] * 2 + [(4, 0, None)] * 5)
    assert [(c.draws, c.share) for c in curve.measured] == [
        (1, pytest.approx(0.3)), (2, pytest.approx(0.5)), (3, pytest.approx(0.5)),
        (4, pytest.approx(0.5)),
    ]  # fmt: skip
    # Newcombe's method 3 for 5 of 10.
    assert (curve.measured[1].low, curve.measured[1].high) == pytest.approx(
        (0.2366, 0.7634), abs=1e-4
    )


def test_an_item_says_nothing_about_draws_that_it_did_not_get():
    # Half of the items had one draw only. Of those that had two, half had passed after them.
    curve = coverage_curve([(1, 0, None)] * 10 + [(2, 1, 2)] * 5 + [(2, 0, None)] * 5)
    assert [c.share for c in curve.measured] == pytest.approx([0.0, 0.5])
    low, high = curve.measured[1].low, curve.measured[1].high
    assert (low, high) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # As of ten items.


def test_all_that_were_left_passing_is_as_sure_as_they_are_many():
    curve = coverage_curve([(1, 0, None)] * 98 + [(2, 1, 2)] * 2)
    assert curve.measured[1].share == 1
    assert curve.measured[1].low < 0.4


def test_intervals_hold_the_truth():
    truth = PassRateFit(1.0, 1.5, 0.05, 0, 0.0)
    predicted = {1: 0, 4: 0, 32: 0}
    measured = 0
    for seed in range(30):
        curve = coverage_curve(simulated(1.0, 1.5, 0.05, 100, 6, seed))
        for draws in predicted:
            at = curve.predicted(draws)
            predicted[draws] += at.low <= truth.coverage(draws) <= at.high
        at = curve.measured[3]
        measured += at.low <= truth.coverage(4) <= at.high
    # Fewer than 25 of 30 are rarer than one in two hundred where 95 % hold.
    assert min(*predicted.values(), measured) >= 25


def test_needed_is_the_smallest_number_that_is_enough():
    curve = coverage_curve(simulated(1, 1, 0.02, 500, 8))
    for target in (0.3, 0.8, 0.9):
        needed = curve.needed(target)
        assert curve.fit.coverage(needed) >= target
        assert needed == 1 or curve.fit.coverage(needed - 1) < target
        assert curve.needed(target, surely=True) >= needed
    assert curve.needed(0.999) is None


def test_what_rarely_passes_at_all_needs_more_than_anyone_draws():
    curve = coverage_curve([(200, 0, None)] * 300 + [(200, 1, 100)] * 20)
    assert curve.needed(0.5) is None


# --- from results -----------------------------------------------------------------------------


def results(*calls):
    return [SamplingResult.from_dict(trace_of(*call, best=best)) for call, best in calls]


passed_at_once = ([("passed", 4)], 0)
passed_second = ([("failed", 4), ("passed", 4)], 1)
passed_third = ([("failed", 4), ("failed", 4), ("passed", 4)], 2)
never = ([("failed", 4)] * 6, 0)


def test_a_plan_says_how_many_what_it_costs_and_what_is_wrong():
    made = plan(
        results(*[passed_at_once] * 60, *[passed_second] * 30, *[never] * 10),
        0.85,
        prices={"m": Price(1, 10)},
    )
    assert (made.items, made.passed, made.draws, made.left_out) == (100, 90, 60 + 60 + 60, 0)
    assert [round(c.share, 9) for c in made.measured] == [0.6] + [0.9] * 5
    assert made.fit.coverage(made.needed) >= 0.85
    assert made.needed_surely is None or made.needed_surely >= made.needed
    one_by_one, *_, at_once = made.splits
    assert (one_by_one.loop_budget, one_by_one.concurrency_budget) == (made.needed, 1)
    assert (at_once.loop_budget, at_once.concurrency_budget) == (1, made.needed)
    assert made.suggestion in made.splits
    # A draw is one request of 1 + 4 tokens and lasts a second; those at once all begin.
    assert at_once.draws == at_once.requests == made.needed
    assert at_once.tokens == pytest.approx(5 * made.needed)
    assert at_once.cost == pytest.approx(made.needed * 41e-6)
    assert at_once.seconds == pytest.approx(1)
    # One by one, a further draw begins if all before it failed.
    expected = sum(1 - made.fit.coverage(k) for k in range(made.needed))
    assert one_by_one.draws == pytest.approx(expected, rel=0.05)
    assert one_by_one.seconds == pytest.approx(one_by_one.draws)
    assert (made.bottleneck.requirement, made.bottleneck.failed) == ("it says a word", 90)
    assert (made.bottleneck.judged, made.bottleneck.alone) == (180, 90)
    assert [item.id for item in made.unsolved] == list(range(90, 100))
    assert {item.draws for item in made.unsolved} == {6}
    hopeful = made.fit.still_hopeful(6)
    assert all(item.hopeful == hopeful for item in made.unsolved)
    assert len(made.hopeless) == (10 if hopeful < 0.5 else 0)
    assert made.complete


def test_what_was_cancelled_would_have_taken_longer():
    def call(passed, cancelled):
        trace = trace_of(("passed", 4), *[("cancelled", 1)] * (cancelled > 0), best=0)
        for s, ended in zip(trace["slices"], (passed, cancelled), strict=False):
            s |= {"started_at": 0.0, "ended_at": float(ended)}
        return SamplingResult.from_dict(trace)

    made = plan([call(1, 1), call(1, 1), call(9, 0)], 0.5)
    assert made.schedules == ()  # Of one draw there is nothing to schedule.
    # Two of five that were under way ended after 1 s; what is known of the others is one of 9 s.
    assert made.needed == 1
    assert made.splits[0].seconds == pytest.approx(0.4 * 1 + 0.6 * 9, rel=0.06)


def test_what_schedules_are_said_to_take_is_what_they_take_in_the_engine():
    chance = random.Random(1)
    lengths = [chance.lognormvariate(0, 0.8) for _ in range(2000)]
    simulation = Simulation(PassRateFit(2000.0, 8000.0, 0.0, 0, 0.0), lengths, [])
    said = {}
    for name in ("eager", "pooled", "staggered:1", "hedged"):
        backend = SimulatedBackend(pass_rate=0.2, median=1.0, sigma=0.8, seed=1)
        strategy = RejectionSamplingStrategy(
            backend,
            requirements=[backend.requirement],
            loop_budget=4,
            concurrency_budget=3,
            schedule=parse_schedule(name),
        )

        async def run(strategy=strategy):
            return [await strategy.sample("Say something.") for _ in range(150)]

        took = run_virtual(run)
        said[name] = draws, seconds = simulation.expected(name, chains=3, turns=4)
        assert draws == pytest.approx(fmean(len(r.slices) for r in took), rel=0.08)
        assert seconds == pytest.approx(fmean(r.elapsed for r in took), rel=0.12)
    eager, pooled, staggered, hedged = said.values()
    assert hedged[1] < pooled[1] < eager[1] < staggered[1]
    assert staggered[0] < eager[0] < pooled[0] < hedged[0]


def test_it_can_be_printed_and_written_down():
    made = plan(results(*[passed_at_once] * 12, *[passed_second] * 6, never), 0.8)
    said = str(made)
    assert said.startswith("19 items, 30 draws: 18 passed (94.7 %)\nHopeless by the fit: ")
    assert f"For 80 % it takes {made.needed} draws of each item" in said
    assert "measured" in said
    assert "predicted" in said
    assert said.count("<- suggested") == 1
    assert f"The same for 1 x {made.needed}, by schedule:\n           eager  " in said
    assert "Fails most often: it says a word (12 of 30, 12 by it alone)" in said
    assert "#18 Say a word.: 6 draws" in said
    again = json.loads(json.dumps(made.to_dict()))
    assert again["needed"] == made.needed
    assert again["fit"]["hopeless"] == made.fit.hopeless
    assert again["splits"][0]["concurrency_budget"] == 1
    # Nothing is left to hedge with, and at a time of 1 s a second one starts when the first ends.
    assert [split["schedule"] for split in again["schedules"]] == [
        "eager", "pooled", "staggered:1", "hedged"
    ]  # fmt: skip
    assert len({split["requests"] for split in again["schedules"]}) == 2
    assert [point["draws"] for point in again["measured"]] == [1, 2, 3, 4, 5, 6]
    assert {made.needed, 1, 2, 4, 8} <= {point["draws"] for point in again["predicted"]}


def test_a_target_beyond_the_hopeless_share_cannot_be_reached_and_it_says_why():
    calls = [passed_at_once] * 100 + [passed_second] * 50 + [passed_third] * 25 + [never] * 60
    made = plan(results(*calls), 0.9)
    assert made.needed is None
    assert (made.splits, made.suggestion) == ((), None)
    assert made.fit.hopeless == pytest.approx(0.25, abs=0.05)
    share = f"{100 * made.fit.hopeless:.1f}"
    assert f"90 % can't be reached by drawing more: {share} % of items never pass." in str(made)
    assert len(made.hopeless) == 60


def test_a_few_items_are_not_told_to_be_hopeless_where_they_may_only_be_hard():
    made = plan(results(*[passed_at_once] * 10, *[never] * 10), 0.9)
    assert made.needed is None
    low, high = made.curve.hopeless
    assert low < 0.02
    assert high > 0.3
    assert made.hopeless == ()
    assert "90 % takes more than 1,024 draws of each item: " in str(made)


def test_what_was_cancelled_or_ended_in_an_error_is_no_draw():
    calls = results(([("errored", 1), ("failed", 4), ("cancelled", 1), ("passed", 4)], 3))
    made = plan(calls)
    assert (made.items, made.draws, made.left_out) == (1, 2, 2)


def test_a_reply_that_is_no_answer_can_be_the_bottleneck():
    trace = trace_of(("failed", 4), ("failed", 4), ("passed", 4), best=2)
    for s in trace["slices"][:2]:
        s |= {"reason": "it was cut off", "validations": []}
    made = plan([SamplingResult.from_dict(trace)])
    assert (made.bottleneck.requirement, made.bottleneck.failed) == (NO_ANSWER, 2)
    assert made.bottleneck.alone == 2


def test_one_that_fails_with_others_is_not_alone_and_one_that_was_skipped_is_not_met():
    trace = trace_of(("failed", 4), ("failed", 4), ("failed", 4), best=None)
    other = {**trace["slices"][0]["validations"][0], "description": "it is short"}
    for s, status in zip(trace["slices"], ("failed", "skipped", "passed"), strict=True):
        s["validations"].append({**other, "status": status})
    made = plan([SamplingResult.from_dict(trace)])
    assert made.bottleneck.requirement == "it says a word"
    assert (made.bottleneck.failed, made.bottleneck.alone) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (([],), ValueError, "no draw was judged"),
        (([], 1.0), ValueError, "between 0 and 1, not 1.0"),
        (([], 95), ValueError, "between 0 and 1, not 95"),
        (([], "95"), TypeError, "plan: target"),
        (([3],), TypeError, "a journal or results, not int"),
    ],
)
def test_what_cannot_be_planned_from_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        plan(*arguments)


# --- from real calls --------------------------------------------------------------------------


def says_yes_to_half():
    chance = random.Random(11)

    def reply(request):
        hopeless = request.messages[0].content.startswith("hopeless")
        return "yes" if not hopeless and chance.random() < 0.5 else "no"

    return FunctionBackend(reply)


yes = Requirement("says yes", lambda c: c.text == "yes", inline=True)


@pytest.mark.anyio
async def test_repairs_are_no_draws_but_what_they_mend_is_not_unsolved():
    replies = cycle(["no", "yes"])
    backend = FunctionBackend(lambda _: next(replies))
    strategy = RepairTemplateStrategy(backend, loop_budget=3, concurrency_budget=1)
    made = plan([await strategy.sample(f"item {n}", [yes]) for n in range(5)])
    assert (made.items, made.draws, made.left_out, made.passed) == (5, 5, 5, 5)
    assert made.measured[-1].share == 0
    assert made.unsolved == ()
    # A draw made anew, of an item that has failed once, would pass about as often as the first.
    assert (made.repairs.judged, made.repairs.passed) == (5, 5)
    assert 0 < made.repairs.expected < 1.5
    assert made.to_dict()["repairs"]["passed"] == 5
    assert "5 repairs left out: 100 % passed, of draws made anew it would have been" in str(made)


@pytest.mark.anyio
async def test_what_repairs_are_held_against_is_what_draws_made_anew_would_do():
    chance = random.Random(1)
    rates = {f"item {n}": chance.betavariate(1, 2) for n in range(300)}

    def reply(request):
        item = request.messages[0].content.partition("\n")[0].rstrip("!")
        return "yes" if chance.random() < rates[item] else "no"

    class Useless(RepairTemplateStrategy):
        def repair(self, history):
            first = history[0]
            return Instruction(first.action.description + "!" * len(history)), first.context

    strategy = Useless(FunctionBackend(reply), loop_budget=4, concurrency_budget=1)
    made = plan([await strategy.sample(item, [yes]) for item in rates])
    assert made.repairs.judged > 200
    assert made.repairs.expected == pytest.approx(made.repairs.passed, rel=0.2)


@pytest.mark.anyio
async def test_draws_of_an_escalations_further_stages_are_left_out_and_counted():
    def backend(text):
        return FunctionBackend(lambda _: text, inline=True)

    results = []
    for carry in ("nothing", "best"):
        # Both stages ask one model: it is the stage that tells them apart.
        stages = [Stage(backend("no"), turns=2), Stage(backend("yes"), carry=carry)]
        results += [await Escalate(stages).sample(f"{n}", [yes]) for n in range(5)]
    made = plan(results)
    assert (made.items, made.passed, made.draws) == (10, 10, 20)
    assert (made.others, made.left_out, made.repairs) == (10, 10, None)
    assert made.to_dict()["others"] == 10
    assert made.measured[-1].share == 0
    assert made.passed_by_others == 10
    assert "20 draws: 10 passed (100 %), 10 of them by another model or stage\n" in str(made)
    assert (made.bottleneck.judged, made.bottleneck.failed) == (20, 20), "of the first stage alone"
    assert "10 draws of other models or stages left out: all below is for the first" in str(made)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "selection", ["first", "ordered", Collect(2), Vote(n=3), BestOf(lambda c: len(c.text), n=2)]
)
async def test_where_more_than_one_has_to_pass_it_says_that_it_plans_for_one(selection):
    strategy = RejectionSamplingStrategy(
        FunctionBackend(lambda _: "yes"), loop_budget=3, concurrency_budget=1, selection=selection
    )
    made = plan([await strategy.sample("Say it.", [yes])])
    said = "The run's selection goes on after a first pass: all below is for one reply"
    assert made.selects == made.to_dict()["selects"] == (said in str(made))
    assert made.selects == (not isinstance(selection, str))


def test_where_nothing_was_repaired_nothing_is_said_of_repairs():
    made = plan(results(*[passed_at_once] * 3, *[passed_second] * 3))
    assert made.repairs is None
    assert "repair" not in str(made)


@pytest.mark.anyio
@pytest.mark.parametrize("text", ["all", "none"])
async def test_a_journal_and_its_results_give_the_same_plan(tmp_path, text):
    strategy = RejectionSamplingStrategy(
        says_yes_to_half(), requirements=[yes], loop_budget=6, concurrency_budget=1
    )
    journal = Journal(tmp_path / "run.db", text=text)
    items = [f"{'hopeless' if n % 5 == 0 else 'item'} {n}" for n in range(40)]
    async with sample_many(strategy, items, concurrency=1, journal=journal, ordered=True) as run:
        done = [item async for item in run]
    made = await anyio.to_thread.run_sync(plan, journal, 0.7)
    assert made == await anyio.to_thread.run_sync(plan, str(tmp_path / "run.db"), 0.7)
    assert [item.id for item in made.unsolved] == list(range(0, 40, 5))
    assert made.unsolved[0].label == "hopeless 0"
    same = plan((item.result for item in done), 0.7)
    assert (same.curve, same.needed, same.bottleneck) == (made.curve, made.needed, made.bottleneck)
    assert isclose(same.splits[0].draws, made.splits[0].draws)
    assert made.left_out == 0  # A repetition is a draw, wherever in its chain.


def test_what_is_no_journal_is_refused(tmp_path):
    (tmp_path / "run.db").write_text("no")
    with pytest.raises(JournalError):
        plan(tmp_path / "run.db")


def test_who_only_counts_draws_loads_no_batch():
    code = "import sys, mellea_like.estimate as e; e.pass_at_k(3, 1, 2);"
    code += "print([m for m in sys.modules if m.startswith('mellea_like.batch')], e.plan.__name__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[] plan\n"
